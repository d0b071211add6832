"""Two real gloo processes against one process with the joined batch; refusals and the end of all processes."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from data_helper import one_line_error
from distributed_worker import ACCUMULATION, RECIPE, STEPS, WORLD_SIZE, all_batches
from model_helper import CPU, TINY, lively_weights

from speedlab.errors import NotAvailable, SpeedLabError
from speedlab.measuring import processes
from speedlab.measuring.variant import Plan
from speedlab.model import canonical_weights
from speedlab.profile import SMOKE
from speedlab.training.distributed import Place, check_world_size, launch
from speedlab.training.step import TrainingStep

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """One real launch: what two ranks measured and wrote before one of them failed, and the launcher's error."""
    folder = tmp_path_factory.mktemp("ranks")
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"{n} bottles of beer on the wall, {n * n} in all\n" for n in range(1_000)))
    recipe = TINY.but(vocab_size=SMOKE.tokenizer_ranks + 1, layers="native", attention="sdpa", data_parallel=2)
    errors = []

    def launch_worker(module, arguments, **options):
        assert module == "speedlab.measuring.processes"  # which the worker calls, before it does more
        with pytest.raises(SpeedLabError) as caught:
            launch("distributed_worker", [str(folder), *arguments], **options)
        errors.append(str(caught.value))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        patch.setenv("SPEEDLAB_CACHE", str(folder / "cache"))
        patch.setattr(processes, "launch", launch_worker)
        plan = Plan(contract_steps=3, warmup_steps=1, steps=4)
        measured = processes.measure_in_processes(recipe, plan, corpus=str(corpus), profile="smoke", timeout_s=120)
    assert (folder / "answer-0.json").is_file(), errors
    answers = [json.loads((folder / f"answer-{rank}.json").read_text()) for rank in range(WORLD_SIZE)]
    pids = [int((folder / f"process-{rank}.txt").read_text()) for rank in range(WORLD_SIZE)]
    return SimpleNamespace(answers=answers, pids=pids, error=errors[0], measured=measured)


@pytest.fixture(scope="module")
def joined():
    """One process that sees, in each step, the micro-batches of all ranks."""
    recipe = RECIPE.but(data_parallel=1, accumulation=ACCUMULATION * WORLD_SIZE)
    step = TrainingStep(recipe, lively_weights(recipe), CPU)
    stream = iter(all_batches())
    return [step(stream).item() for _ in range(STEPS)], step


def test_gradients_and_losses_are_those_of_one_process_with_the_joined_batch(launched, joined):
    answers = launched.answers
    losses, step = joined
    for answer in answers:
        assert answer["losses"] == pytest.approx(losses, abs=1e-5)
        for name, parameter in step.model.named_parameters():
            torch.testing.assert_close(torch.tensor(answer["gradients"][name]), parameter.grad, rtol=0, atol=1e-5)
        for name, value in canonical_weights(step.model, RECIPE).items():
            error = (torch.tensor(answer["weights"][name]) - value).abs()
            assert error.max() < TINY.learning_rate / 10 and error.mean() < TINY.learning_rate / 1_000


def test_the_ranks_stay_equal_bit_for_bit(launched):
    one, two = launched.answers
    assert (one["rank"], two["rank"]) == (0, 1) and one["world_size"] == two["world_size"] == 2
    assert one["weights"] == two["weights"] and one["gradients"] == two["gradients"]


def test_gradients_are_exchanged_once_a_step_and_not_once_a_micro_batch(launched, joined):
    for answer in launched.answers:
        assert answer["exchanged"] == [joined[1].model.num_parameters()] * STEPS


def test_children_share_the_cores_and_get_no_notebook_backend(launched):
    for answer in launched.answers:
        assert int(answer["threads"]) == max(1, os.cpu_count() // WORLD_SIZE)
        assert answer["backend"] == "Agg"


def test_a_failed_rank_ends_all_and_its_error_is_the_message(launched):
    message = launched.error
    assert "\n" not in message and "2 processes of distributed_worker failed" in message
    assert "ValueError: rank 1 fails on purpose" in message
    for pid in launched.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_recipe_is_measured_in_two_processes(launched):
    measured = launched.measured
    assert len(measured.step_ms) == 4 and all(ms > 0 for ms in measured.step_ms)
    assert len(measured.losses) == 3 and measured.losses[0] == pytest.approx(6.9, abs=0.1)
    assert measured.peak == (None, None) and measured.recompiles == 0 and measured.compile_s is None
    assert {"communication", "matmul, ordinary", "attention, cpu"} <= {kernel["kind"] for kernel in measured.kernels}


def test_a_launch_that_takes_too_long_is_ended(monkeypatch):
    children = []
    popen = subprocess.Popen

    def remembered(*args, **options):
        children.append(popen(*args, **options))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", remembered)
    error = one_line_error(
        SpeedLabError,
        lambda: launch("distributed_worker", [], world_size=2, timeout_s=0.3),
        "2 processes",
        "did not end",
    )
    assert "distributed_worker" in error
    [child] = children
    assert child.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)
    child.stdout.close()


@pytest.mark.parametrize(("asked", "gpus"), [(2, 1), (4, 2), (8, 0)])
def test_more_processes_than_gpus_are_refused_before_anything_starts(monkeypatch, asked, gpus):
    one_line_error(NotAvailable, lambda: check_world_size(asked, gpus=gpus), str(asked), str(gpus))
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: pytest.fail("a process was started"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    one_line_error(NotAvailable, lambda: launch("distributed_worker", [], world_size=asked, timeout_s=1), str(asked))


def test_enough_gpus_or_none_at_all_are_no_reason_to_refuse():
    check_world_size(4, gpus=4)
    check_world_size(1, gpus=1)
    check_world_size(2, gpus=None)


def test_a_lone_process_is_its_own_mean():
    values = torch.tensor([1.0, 2.0])
    assert torch.equal(Place(device=CPU).mean(values), values)
