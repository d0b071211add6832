"""Every symptom has a check that exists; what doctor says of toolkits, builds and processes left behind."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path

import pytest
import typer

import speedlab
from speedlab import checks, cli
from speedlab.device import Capabilities
from speedlab.doctor_software import cuda_toolkit, extension_build, stray_processes
from speedlab.labs.registry import EXPERIMENTS
from speedlab.ladder import NINE_STEPS
from speedlab.training.choose import recipe_by_name
from speedlab.troubleshooting import SYMPTOMS, troubleshooting_section

COMMANDS = typer.main.get_command(cli.app).commands
CPU = Capabilities(device_type="cpu", cores=2)

# One phrase for each symptom that the page must know.
WANTED = (
    "nvcc", "flash-attn", "MAX_JOBS", "NaN", "checkpointing", "workers", "memory grows", "Out of memory",
    "finished reduction", "ready only once", "new shape", "autograd function", "zombie",
)  # fmt: skip


@pytest.mark.parametrize("phrase", WANTED)
def test_the_page_knows_the_symptom(phrase: str) -> None:
    assert phrase in troubleshooting_section()


@pytest.mark.parametrize("check", sorted({check for symptom in SYMPTOMS for check in symptom.checks}))
def test_every_check_can_be_run(check: str) -> None:
    if check.startswith("speedlab "):
        _, name, *rest = check.split()
        context = COMMANDS[name].make_context(name, rest)  # flags, types and what must be given
        given = context.params
        if "rung" in given:
            assert given["rung"] in NINE_STEPS.keys
        if name == "probe-batch":
            assert recipe_by_name(given["recipe"], CPU).micro_batch
        if name == "memory":
            assert cli.run([name, *rest]) == 0
        if name == "experiment":
            assert set(given["names"]) <= set(EXPERIMENTS)
        return
    call = ast.parse(check, mode="eval").body
    module, name = ast.unparse(call.func).rsplit(".", 1)
    function = getattr({"speedlab": speedlab, "speedlab.checks": checks}[module], name)
    # What the call shows is what the function takes.
    inspect.signature(function).bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords})


def test_out_of_memory_leads_to_the_prediction_and_to_the_search() -> None:
    [symptom] = [symptom for symptom in SYMPTOMS if symptom.title == "Out of memory"]
    assert [check.split()[1] for check in symptom.checks] == ["memory", "probe-batch"]


def test_every_public_check_is_on_the_page() -> None:
    public = {name for name, thing in vars(checks).items() if getattr(thing, "__module__", None) == checks.__name__}
    public = {name for name in public if not name.startswith("_")}
    assert {name for name in public if f"checks.{name}(" not in troubleshooting_section()} == set()


def tool(folder: Path, name: str, says: str = "") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, so that only the tools that a test puts there are found."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.delenv("MAX_JOBS", raising=False)
    return tmp_path / "bin"


def test_nvcc_is_compared_with_the_cuda_of_torch(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tools))
    assert cuda_toolkit("13.0")[0] and "no nvcc" in cuda_toolkit("13.0")[1]
    tool(tools, "nvcc", "Cuda compilation tools, release 12.4, V12.4.131")
    monkeypatch.setenv("PATH", f"{tools}:/bin:/usr/bin")
    ok, found, reason = cuda_toolkit("13.0")
    assert (ok, found) == (False, "torch 13.0, nvcc 12.4") and "make the versions agree" in reason
    assert cuda_toolkit("12.8") == (True, "torch 12.8, nvcc 12.4", None)
    assert cuda_toolkit(None)[0]
    tool(tools, "nvcc", "nonsense")
    assert not cuda_toolkit("12.8")[0]


def test_a_build_is_limited_by_memory_and_needs_ninja(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tools))
    assert "pip install ninja" in extension_build(16, 64.0)[2]
    tool(tools, "ninja")
    assert extension_build(16, 64.0) == (
        False, "ninja there, MAX_JOBS not set", "64 GiB of memory are enough for 8 jobs: set MAX_JOBS=8",
    )  # fmt: skip
    monkeypatch.setenv("MAX_JOBS", "8")
    assert extension_build(16, 64.0) == (True, "ninja there, MAX_JOBS 8", None)
    monkeypatch.setenv("MAX_JOBS", "16")
    assert not extension_build(16, 64.0)[0]
    monkeypatch.delenv("MAX_JOBS")
    assert extension_build(4, 64.0)[0]


def process(proc: Path, number: int, name: str, state: str, parent: int) -> None:
    (proc / str(number)).mkdir(parents=True)
    (proc / str(number) / "status").write_text(f"Name:\t{name}\nState:\t{state}\nPPid:\t{parent}\n")


def test_workers_without_a_program_and_zombies_are_counted(tmp_path: Path) -> None:
    process(tmp_path, 10, "python", "S (sleeping)", 1)
    process(tmp_path, 11, "pt_data_worker", "S (sleeping)", 10)  # its program is alive
    process(tmp_path, 12, "python", "Z (zombie)", 10)
    (tmp_path / "13").mkdir()  # it ended while we looked
    assert stray_processes(tmp_path) == (True, "1 zombies, 0 workers without their program", None)
    process(tmp_path, 200, "pt_data_worker", "S (sleeping)", 1)
    process(tmp_path, 30, "pt_data_worker", "R (running)", 1)
    ok, found, reason = stray_processes(tmp_path)
    assert (ok, found) == (False, "1 zombies, 2 workers without their program")
    assert reason == "they hold memory: end them with kill 30 200"


def test_a_real_zombie_is_seen() -> None:
    before = int(stray_processes()[1].split()[0])
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and is not collected
    try:
        assert int(stray_processes()[1].split()[0]) >= max(1, before)
    finally:
        os.waitpid(child, 0)
