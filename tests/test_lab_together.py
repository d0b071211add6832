"""The lab on all levers: rows of a toy, losses that agree, cards that are emulated, Hugging Face models beside ours."""

from __future__ import annotations

import builtins
import json
import multiprocessing
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from speedlab.device import capabilities
from speedlab.errors import NotAvailable
from speedlab.labs import together as lab
from speedlab.labs import together_hf as hf
from speedlab.measuring.variant import Plan
from speedlab.measuring.workbench import Workbench
from speedlab.memory_fit import CONTEXT_BYTES
from speedlab.memory_plan import plan_memory
from speedlab.profile import SMOKE
from speedlab.recipe import Recipe
from speedlab.records.experiment import Experiment, committed_experiments, read_experiments

CPU = torch.device("cpu")
NONE_YET = pytest.param(None, id="none", marks=pytest.mark.skip(reason="no run of this experiment is committed yet"))
COMMITTED = read_experiments(committed_experiments(), "together") or [NONE_YET]


def quiet(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def bench() -> Workbench:
    bench = Workbench(replace(SMOKE, changes=SMOKE.changes | {"embedding_width": 16}), capabilities())
    bench.plan = Plan(contract_steps=0, warmup_steps=0, steps=2)
    return bench


@pytest.fixture(scope="module")
def rows(bench: Workbench) -> list[dict]:
    return list(lab.together(bench, quiet))


def test_every_lever_runs_alone_and_together_on_a_toy(rows: list[dict]) -> None:
    json.dumps(rows, allow_nan=False)
    whole = {row["variant"]: row for row in rows if row["what"] == "whole"}
    assert list(whole) == list(lab.VARIANTS) and {row["status"] for row in whole.values()} == {"measured"}
    assert multiprocessing.active_children() == []
    assert all(row["predicted_peak_bytes"] > 0 and len(row["step_ms"]) == lab.TOY_STEPS for row in whole.values())


def test_no_lever_changes_the_training(rows: list[dict]) -> None:
    losses = {row["variant"]: row["losses"] for row in rows if row["what"] == "whole"}
    baseline = losses.pop("baseline")
    assert baseline[0] != baseline[-1], "it trains"
    for variant, own in losses.items():
        assert own == pytest.approx(baseline, abs=2e-3), variant  # bfloat16 rounds in another order
    assert losses["checkpointing"] == losses["pipeline"] == baseline, "these change no arithmetic at all"


def test_a_cpu_emulates_no_card_and_says_so(rows: list[dict]) -> None:
    budget = [row for row in rows if row["what"] == "budget"]
    assert len(budget) == sum(len(names) for _, _, names in lab.BUDGETS)
    assert all(row["emulated"] and row["status"] == "unavailable" and "on a GPU only" in row["reason"]
               for row in budget)  # fmt: skip
    assert {(row["budget_gib"], row["variant"], row["accumulation"]) for row in budget if row["predicted_fits"]} >= {
        (24, "all three", 1), (24, "FlashAttention", 2), (16, "all three", 2)
    }  # fmt: skip


def test_the_path_is_predicted_for_each_card(rows: list[dict]) -> None:
    paths = {gib: [row for row in rows if row["what"] == "path" and row["budget_gib"] == gib] for gib in (24, 16)}
    assert [row["number"] for row in paths[24]] == list(range(len(paths[24])))
    assert all(path[-1]["fits"] and not path[0]["fits"] for path in paths.values())


def test_out_of_memory_is_a_row_with_its_prediction(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(lab, "emulated_card", lambda gib, device: limits.append(gib) or nullcontext())
    monkeypatch.setattr(lab, "start", full)
    row = lab._row(bench, ["x"], "baseline", lab.VARIANTS["baseline"], lab.WANTED, 24)
    assert row["status"] == "out_of_memory" and row["predicted_fits"] is False and row["predicted_peak_bytes"] > 0
    assert limits == [24 - CONTEXT_BYTES / 2**30]


def test_a_card_larger_than_the_real_one_is_not_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "card_bytes", lambda device: 15 * 2**30)
    with pytest.raises(NotAvailable, match=r"24 GB cannot be emulated on one with 15\.0 GiB"):
        lab._limited(SimpleNamespace(device=CPU), 24)


def test_without_the_libraries_every_row_says_what_to_install(bench: Workbench, monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *args, **options):
        if name.partition(".")[0] in ("transformers", "accelerate"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    found = list(hf.together_hf(bench, quiet))
    assert len(found) == len(hf.MODELS) * len(hf.VARIANTS)
    assert {row["status"] for row in found} == {"unavailable"}
    assert all("pip install 'speedlab[hf]' (accelerate is missing)" in row["reason"] for row in found)


TINY = Recipe(
    num_layers=2, embedding_width=24, num_heads=2, context_length=16, vocab_size=101, micro_batch=4, dropout=0.0
)


def gradients(name: str, levers: hf.Levers) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients of one update of four fixed sequences, before the optimizer clears them."""
    accelerate = pytest.importorskip("accelerate")
    model = hf.build(name, TINY, levers)
    step = hf.AcceleratedStep(model, levers, CPU, 0.0)
    step.optimizer.zero_grad = lambda *args: None
    ids = torch.randint(0, 101, (4, 17), generator=torch.Generator().manual_seed(3))
    parts = ids.chunk(levers.accumulation)
    loss = step(iter([(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts]))
    found = [parameter.grad.clone() for parameter in model.parameters()]
    accelerate.state.AcceleratorState._reset_state(True)
    return loss.item(), found


@pytest.mark.parametrize("name", hf.MODELS)
@pytest.mark.parametrize(
    "levers", [hf.Levers(attention="sdpa"), hf.Levers(checkpointing=True), hf.Levers(accumulation=2)], ids=str
)
def test_the_same_levers_leave_the_gradients_of_other_models_alone(name: str, levers: hf.Levers) -> None:
    pytest.importorskip("transformers")
    loss, found = gradients(name, levers)
    expected_loss, expected = gradients(name, hf.Levers())
    assert loss == pytest.approx(expected_loss, abs=1e-5) and expected_loss > 3.0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_loss_is_that_of_the_next_token_and_is_shifted_once() -> None:
    pytest.importorskip("transformers")
    model = hf.build("Llama", TINY, hf.Levers())
    ids = torch.randint(0, 101, (4, 17), generator=torch.Generator().manual_seed(3))
    expected = model(input_ids=ids, labels=ids).loss.item()  # the library's own, which shifts by itself
    assert gradients("Llama", hf.Levers())[0] == pytest.approx(expected, abs=1e-5)


def test_the_rows_of_other_models_come_from_our_stopwatch(bench: Workbench, monkeypatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(hf, "VARIANTS", {"baseline": hf.Levers(), "all": hf.ALL})
    found = list(hf.together_hf(bench, quiet))
    json.dumps(found, allow_nan=False)
    assert [(row["status"], row["reason"]) for row in found] == [("measured", None)] * 4
    assert {row["tokens_per_step"] for row in found} == {256}, "the same tokens, in one pass or two"
    for plain, all_levers in (found[:2], found[2:]):
        assert all_levers["losses"] == pytest.approx(plain["losses"], abs=5e-3)


@pytest.mark.parametrize("committed", COMMITTED, ids=lambda experiment: experiment and experiment.device)
def test_the_plan_of_today_is_within_two_percent_of_every_committed_peak(committed: Experiment) -> None:
    """Rows keep the prediction that was made before they ran; the formulas may have learned since then."""
    off = {}
    for row in committed.measured:
        if row["what"] in ("whole", "budget") and row["peak_allocated_bytes"]:
            shape = {name: row[name] for name in ("context_length", "micro_batch", "accumulation")}
            plan = plan_memory(lab.PLAIN.but(**lab.VARIANTS[row["variant"]].change, **shape), capability=(9, 0))
            off[row["variant"], *shape.values()] = plan.peak_allocated_bytes / row["peak_allocated_bytes"] - 1
    assert len(off) >= 7 and {name: error for name, error in off.items() if abs(error) > 0.02} == {}
