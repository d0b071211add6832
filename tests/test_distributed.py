"""Two and four real gloo processes against a plain reference with the joined batch; refusals, the end of all ranks."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from data_helper import one_line_error
from distributed_worker import ACCUMULATION, EPOCHS, RECIPE, STEPS, WAYS, all_batches
from model_helper import CPU, TINY, double_leaves, lively_weights, reference_logits, reference_loss, reference_training

from speedlab.errors import BadInput, NotAvailable, SpeedLabError
from speedlab.measuring import processes
from speedlab.measuring.processes import Job, measured_from, run_jobs, variant_arguments
from speedlab.measuring.variant import Plan
from speedlab.profile import SMOKE
from speedlab.training.distributed import Place
from speedlab.training.launching import check_world_size, last_error, launch

TESTS = Path(__file__).parent
MEASURED = TINY.but(vocab_size=SMOKE.tokenizer_ranks + 1, layers="native", attention="sdpa", data_parallel=2)
PLAN = Plan(contract_steps=3, warmup_steps=1, steps=4)
JOBS = (
    Job(key="link", kind="link"),
    Job(key="plain", kind="variant", arguments=variant_arguments(MEASURED, PLAN)),
    Job(
        key="refused", kind="variant",
        arguments=variant_arguments(MEASURED.but(sharding="fsdp2", precision="bfloat16_master"), PLAN),
    ),
    Job(key="timeline", kind="timeline", arguments={"recipe": MEASURED.as_dict()}),
)  # fmt: skip


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Real launches of two and of four ranks: what they wrote before rank 1 failed, and the launcher's errors.

    The launch of two also does the jobs of a scaling session.
    """
    folder = tmp_path_factory.mktemp("ranks")
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"{n} bottles of beer on the wall, {n * n} in all\n" for n in range(1_000)))
    errors, taken = {}, []

    def launch_worker(world_size, arguments, **options):
        own = folder / str(world_size)
        own.mkdir()
        with pytest.raises(SpeedLabError) as caught:
            launch("distributed_worker", [str(own), *arguments], world_size=world_size, **options)
        errors[world_size] = str(caught.value)
        names = [f"{what}-{rank}" for what in ("answer", "process") for rank in range(world_size)]
        assert (own / "answer-0.json").is_file(), errors
        return [(own / f"{name}.json" if "answer" in name else own / f"{name}.txt").read_text() for name in names]

    def for_jobs(module, arguments, *, world_size, look, timeout_s):
        assert module == processes.RANK_MODULE  # whose work the worker does first, before it fails
        found[2] = launch_worker(2, [",".join(WAYS), *arguments], look=look, timeout_s=timeout_s)

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        patch.setenv("SPEEDLAB_CACHE", str(folder / "cache"))
        patch.setattr(processes, "launch", for_jobs)
        answers = run_jobs(
            JOBS, world_size=2, corpus=str(corpus), profile="smoke", job_limit_s=120,
            take=lambda job, answer: taken.append((job.key, answer.key)),
        )  # fmt: skip
        found[4] = launch_worker(4, ["ddp,buckets,fsdp2"], timeout_s=120)
    return SimpleNamespace(
        answers={n: [json.loads(text) for text in texts[:n]] for n, texts in found.items()},
        pids=[int(text) for n, texts in found.items() for text in texts[n:]],
        errors=errors,
        jobs={answer.key: answer for answer in answers},
        taken=taken,
    )


@pytest.fixture(scope="module", params=[2, 4])
def joined(request):
    """Plain PyTorch in one process and float64 that sees, in each step, the micro-batches of all ranks."""
    world_size = request.param
    recipe = RECIPE.but(accumulation=ACCUMULATION * world_size)
    losses, weights = reference_training(lively_weights(recipe), recipe, iter(all_batches(world_size)), STEPS)
    gradients = plain_gradients(all_batches(world_size)[: recipe.accumulation])
    return SimpleNamespace(world_size=world_size, losses=losses, weights=weights, gradients=gradients)


def plain_gradients(batches):
    """Gradients at the first weights of the mean loss over these micro-batches, float64."""
    leaves = double_leaves(lively_weights(RECIPE))
    parts = [reference_loss(reference_logits(leaves, RECIPE, tokens), targets) for tokens, targets in batches]
    found = torch.autograd.grad(torch.stack(parts).mean(), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def largest_error(got, expected):
    assert set(got) == set(expected)
    return max((torch.tensor(got[name]).double() - value).abs().max().item() for name, value in expected.items())


@pytest.mark.parametrize("way", ["ddp", "buckets", "inside", "fused", "fsdp2"])
def test_gradients_and_training_are_those_of_plain_pytorch_with_the_joined_batch(launched, joined, way):
    for answer in launched.answers[joined.world_size]:
        if joined.world_size == 4 and way in ("inside", "fused"):
            assert way not in answer["trained"]
            continue
        found = answer["trained"][way]
        assert largest_error(found["gradients"], joined.gradients) < 1e-5
        assert found["losses"] == pytest.approx(joined.losses, abs=1e-5)
        # AdamW's first steps are as long as the learning rate wherever the gradient's sign is sure.
        assert largest_error(found["weights"], joined.weights) < RECIPE.learning_rate / 5


def test_gradients_sent_in_bfloat16_are_rounded_to_its_eight_bits(launched):
    expected = plain_gradients(all_batches(2)[: 2 * ACCUMULATION])
    for answer in launched.answers[2]:
        found = answer["trained"]["bfloat16"]["gradients"]
        for name, value in expected.items():
            error = (torch.tensor(found[name]).double() - value).abs()
            # Rounded before and after the sum of two: two halves of a step of 2^-8, of the larger addend.
            assert error.max() <= 2**-7 * value.abs().max() + 1e-5
        assert largest_error(found, expected) > 1e-5


def test_where_nothing_is_sent_each_rank_keeps_its_own_gradients(launched):
    for answer in launched.answers[2]:
        start = answer["rank"] * ACCUMULATION
        own = plain_gradients(all_batches(2)[start : start + ACCUMULATION])
        assert largest_error(answer["trained"]["independent"]["gradients"], own) < 1e-5
        assert largest_error(answer["trained"]["off"]["gradients"], own) < 1e-5


def test_the_ranks_stay_equal_bit_for_bit(launched):
    for world_size, answers in launched.answers.items():
        assert [answer["rank"] for answer in answers] == list(range(world_size))
        assert {answer["world_size"] for answer in answers} == {world_size}
        for way in set(answers[0]["trained"]) - {"off", "independent"}:
            for what in ("weights", "gradients", "losses"):
                assert all(answer["trained"][way][what] == answers[0]["trained"][way][what] for answer in answers)
        assert all(answer["each"] == [10.0 + rank for rank in range(world_size)] for answer in answers)


def test_gradients_are_exchanged_once_a_step_and_not_once_a_micro_batch(launched):
    for answers in launched.answers.values():
        for answer in answers:
            assert answer["trained"]["ddp"]["exchanged"] == [answer["trained"]["ddp"]["parameters"]] * STEPS


def test_fsdp2_holds_its_share_of_the_weights_on_each_rank(launched):
    for world_size, answers in launched.answers.items():
        held = [answer["trained"]["fsdp2"]["held"] for answer in answers]
        total = answers[0]["trained"]["fsdp2"]["parameters"]
        assert sum(held) == total == answers[0]["trained"]["ddp"]["held"]
        assert max(held) < 1.1 * total / world_size


def test_each_sample_is_seen_once_an_epoch_in_a_new_order_and_uneven_ends_are_dropped_on_all_ranks_alike(launched):
    for world_size, answers in launched.answers.items():
        orders = [answer["epochs"] for answer in answers]
        for epoch in range(EPOCHS):
            seen = [window for order in orders for window in order[epoch]]
            assert len(seen) == len(set(seen)) == 50 // world_size // 3 * 3 * world_size
            assert {len(order[epoch]) for order in orders} == {50 // world_size // 3 * 3}
        assert all(order[0] != order[1] for order in orders)


def test_children_share_the_cores_and_get_no_notebook_backend_and_no_multicast(launched):
    for world_size, answers in launched.answers.items():
        for answer in answers:
            assert int(answer["threads"]) == max(1, os.cpu_count() // world_size)
            assert (answer["backend"], answer["multicast"]) == ("Agg", "0")


def test_a_failed_rank_ends_all_and_its_error_is_the_message(launched):
    for world_size, message in launched.errors.items():
        assert "\n" not in message and f"{world_size} processes of distributed_worker failed" in message
        assert "ValueError: rank 1 fails on purpose" in message
    assert len(launched.pids) == 6
    for pid in launched.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_jobs_of_a_session_are_answered_one_by_one_and_a_refused_one_ends_nothing(launched):
    keys = [job.key for job in JOBS]
    assert launched.taken == [(key, key) for key in keys]
    assert {key: answer.status for key, answer in launched.jobs.items()} == {
        "link": "measured", "plain": "measured", "refused": "error", "timeline": "measured",
    }  # fmt: skip
    assert "bfloat16_master" in launched.jobs["refused"].reason and "fsdp2" in launched.jobs["refused"].reason


def test_a_recipe_is_measured_in_two_processes(launched):
    value = launched.jobs["plain"].value
    measured = measured_from(value)
    assert len(measured.step_ms) == 4 and all(ms > 0 for ms in measured.step_ms)
    assert len(measured.losses) == 3 and measured.losses[0] == pytest.approx(6.9, abs=0.1)
    assert measured.peak == (None, None) and measured.recompiles == 0 and measured.compile_s is None
    assert list(value["of_each"]) == ["median_step_ms"] and len(value["of_each"]["median_step_ms"]) == 2
    assert len(set(value["of_each"]["median_step_ms"])) == 2  # each rank's own, not one of them twice


def test_communication_is_counted_in_bytes_and_the_link_is_measured(launched):
    link = launched.jobs["link"].value
    assert [row["bytes"] for row in link] == [2**20, 2**22]
    for row in link:  # two GPUs: a ring sends the bytes once
        assert row["bus_bytes_per_s"] == pytest.approx(row["bytes"] / (row["ms"] / 1e3))
    found = launched.jobs["timeline"].value
    parameters = sum(value.numel() for value in lively_weights(MEASURED).values())
    communication = found["communication"]
    assert (communication["backend"], communication["gradient_bytes"]) == ("gloo", 4 * parameters)
    assert communication["ring_bytes"] == 4 * parameters
    rate = max(row["bus_bytes_per_s"] for row in link)
    assert communication["ring_ms"] == pytest.approx(1e3 * 4 * parameters / rate)
    assert communication["timeline"] is None  # on a CPU nothing hides
    assert {"communication", "matmul, ordinary", "attention, cpu"} <= {row["kind"] for row in found["kernels"]}


def test_a_launch_that_takes_too_long_is_ended(monkeypatch):
    children, limits = [], [0.3]
    popen = subprocess.Popen

    def look():
        return limits.pop() if limits else None  # seconds from the first look on

    def remembered(*args, **options):
        children.append(popen(*args, **options))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", remembered)
    error = one_line_error(
        SpeedLabError,
        lambda: launch("distributed_worker", [], world_size=2, timeout_s=60, look=look),
        "2 processes",
        "did not end within 0 s",
    )
    assert "distributed_worker" in error
    [child] = children
    assert child.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


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


def test_the_cause_is_told_and_not_what_the_other_ranks_say_of_it():
    output = (
        "[rank1]: ValueError: a bad number\n[rank0]: RuntimeError: Connection closed by peer\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )
    assert last_error(output) == "[rank1]: ValueError: a bad number"
    assert last_error("[rank0]: RuntimeError: Connection reset by peer") == (
        "[rank0]: RuntimeError: Connection reset by peer"
    )
    assert last_error("a\nb\n\nc\nd\n") == "b | c | d" and last_error("") == "no output"


def test_a_lone_process_is_its_own_mean():
    values = torch.tensor([1.0, 2.0])
    assert torch.equal(Place(device=CPU).mean(values), values)
    assert Place(device=CPU).each(3.5) == [3.5]


@pytest.mark.parametrize("precision", ["bfloat16_master", "float16_autocast"])
def test_fsdp2_refuses_precisions_whose_copies_it_would_not_split(precision):
    recipe = TINY.but(sharding="fsdp2", precision=precision)
    model = torch.nn.Module()
    one_line_error(BadInput, lambda: Place(device=CPU).parallelize(recipe, model, lambda m: m), precision)
