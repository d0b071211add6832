"""Two torchrun agents, as on two machines: they meet by c10d, one is killed and started again.

Each has a network of its own where this machine allows that, and both share the loopback otherwise.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_worker import STEPS
from model_helper import CPU, TINY, lively_weights, random_batches, reference_training

from speedlab.measuring import several_machines
from speedlab.records.store import read_records
from speedlab.training.distributed import Place
from speedlab.training.launching import child_environment

TESTS = Path(__file__).parent
# Without this, an agent that stays keeps the address of the first meeting to itself, and one that is new waits for it
# until it gives up: seen with torch 2.13.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class Machine:
    """Where an agent runs: what stands before its command, its address, its interface."""

    enter: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    interface: str = "lo"


@pytest.fixture(params=["one network", "a network each"])
def machines(request):
    """Two of them on the loopback, or in two network namespaces that a pair of virtual cards joins."""
    if request.param == "one network":
        yield Machine(), Machine()
        return
    with ExitStack() as stack:
        inside = [stack.enter_context(network()) for _ in range(2)]
        pair = ["ip", "link", "add", "name", "left", "type", "veth", "peer", "name", "right", "netns", inside[1]]
        joined = subprocess.run([*entered(inside[0]), *pair], capture_output=True, text=True)
        if joined.returncode:
            pytest.skip(f"this machine allows no networks of their own: {joined.stderr.strip()}")
        found = []
        for number, (process, card) in enumerate(zip(inside, ("left", "right"), strict=True), start=1):
            machine = Machine(enter=entered(process), address=f"10.77.0.{number}", interface=card)
            for words in (f"addr add {machine.address}/24 dev {card}", f"link set {card} up", "link set lo up"):
                subprocess.run([*machine.enter, "ip", *words.split()], check=True)
            found.append(machine)
        yield tuple(found)


@contextmanager
def network():
    """A process that holds a network namespace open, as its id; it ends with the block."""
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    try:
        if holder.stdout.readline() != "ready\n":
            pytest.skip("this machine allows no network namespace")
        yield str(holder.pid)
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


def entered(process: str) -> tuple[str, ...]:
    return ("nsenter", "--target", process, "--net")


class Agent:
    """One torchrun, as it would be started on one machine, in a session of its own."""

    def __init__(self, name: str, host: Machine, own: Machine, port: int, folder: Path) -> None:
        command = [
            *own.enter,
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={host.address}:{port}", "--rdzv-id=test",
            f"--local-addr={own.address}",
            f"--rdzv-conf=is_host={name == 'one'},keep_alive_interval=2,keep_alive_max_attempt=4",
            "--monitor-interval=0.2",
            str(TESTS / "elastic_worker.py"), str(folder), name,
        ]  # fmt: skip
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self.log = folder / f"{name}.log"
        with open(self.log, "w") as log:
            environment = child_environment(2) | {
                "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": own.interface, **OWN_STORE,
            }  # fmt: skip
            self.process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def worker(self) -> int:
        """Wait until its worker steps, and return that process's id."""
        for line in self.process.stdout:
            if line.startswith("stepping "):
                return int(line.split()[1])
        raise AssertionError(f"no worker: {self.log.read_text()[-2000:]}")

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def agents():
    started = []
    yield started
    for agent in started:
        agent.end()


def test_a_recipe_on_several_machines_is_one_record_that_rank_0_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("SPEEDLAB_CACHE", str(tmp_path / "cache"))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{n} bottles of beer on the wall, {n * n} in all\n" for n in range(1_000)))
    asked = {"recipe": "nine-steps/causal_mask", "profile": "smoke", "corpus": str(corpus), "out": tmp_path / "records"}
    record = several_machines.measure(Place(device=CPU), **asked)
    [stored] = read_records(tmp_path / "records")
    assert stored == record and (record.device, record.rung) == ("cpu", "data_parallel_1")
    assert record.notes[-1] == "remark: 1 machines" and record.losses and record.step_ms
    monkeypatch.setattr(several_machines, "measure_variant", lambda *arguments, **options: None)
    written = (tmp_path / "records" / "cpu").stat().st_mtime_ns
    assert several_machines.measure(Place(rank=1, world_size=2, device=CPU), **asked) is None
    assert (tmp_path / "records" / "cpu").stat().st_mtime_ns == written


def test_a_machine_that_dies_and_comes_back_takes_part_again(tmp_path, agents, machines):
    port, (one, two) = free_port(), machines
    agents += [Agent("one", one, one, port, tmp_path), Agent("two", one, two, port, tmp_path)]
    workers = [agent.worker() for agent in agents]
    (tmp_path / "killed").touch()  # whoever starts from now on takes a few steps and answers
    os.killpg(agents[1].process.pid, signal.SIGKILL)
    os.kill(workers[1], signal.SIGKILL)
    agents.append(Agent("two-again", one, two, port, tmp_path))
    for agent in (agents[0], agents[2]):
        agent.process.communicate(timeout=150)
        assert agent.process.returncode == 0, agent.log.read_text()[-2000:]
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert (answer["world_size"], answer["local_rank"]) == (2, 0)
    recipe = TINY.but(micro_batch=2, accumulation=2)
    losses, _ = reference_training(lively_weights(recipe), recipe, iter(random_batches(recipe, 2 * STEPS)), STEPS)
    assert answer["losses"] == pytest.approx(losses, abs=1e-5)
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
