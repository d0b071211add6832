"""The memory labs in the toy profile: every row is there, what must be equal is, and nothing claims a GPU's numbers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx  # the compiler's million objects, before what exists is frozen
from model_helper import short_collections

from speedlab.device import capabilities
from speedlab.errors import NotAvailable, SpeedLabError
from speedlab.labs import accumulation, batch_probe, checkpointing, emulated_cards, memory_limits, steps
from speedlab.labs.emulated_cards import CARDS, guess_from
from speedlab.labs.registry import EXPERIMENTS
from speedlab.measuring.workbench import Workbench
from speedlab.profile import SMOKE
from speedlab.recipe import CHOICES

NAMES = ("batch_probe", "checkpointing", "memory_limits", "accumulation")


@pytest.fixture(scope="module")
def bench():
    with short_collections():
        yield Workbench(SMOKE, capabilities())


@pytest.fixture(scope="module")
def rows(bench: Workbench) -> dict[str, list[dict[str, Any]]]:
    modules = (batch_probe, checkpointing, memory_limits, accumulation)
    return {name: list(module.run(bench, lambda text: None)) for name, module in zip(NAMES, modules, strict=True)}


def of_kind(rows: list[dict], kind: str) -> list[dict]:
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_measured_or_says_why_not_and_a_cpu_has_no_memory_figures(name: str, rows: dict) -> None:
    assert EXPERIMENTS[name].function == f"speedlab.labs.{name}:run"
    assert {row["status"] for row in rows[name]} <= {"measured", "unavailable"}
    for row in rows[name]:
        assert (row["status"] == "measured") == (row["reason"] is None)
        assert row.get("peak_allocated_bytes") is None and row.get("peak_reserved_bytes") is None
        assert row.get("compile_s") is None, "the toy compiles nothing: half a minute a graph on a CPU"


def test_the_grid_holds_the_tokens_of_a_step_and_the_sweep_its_neighbours(rows: dict) -> None:
    grid = of_kind(rows["batch_probe"], "grid")
    assert len(grid) == 5 and {row["tokens_per_step"] for row in grid} == {grid[0]["tokens_per_step"]}
    assert len({row["context_length"] for row in grid}) == 5
    sizes = [row["micro_batch"] for row in of_kind(rows["batch_probe"], "batch")]
    assert sizes == list(batch_probe.TOY_BATCHES)
    assert {31, 32, 33} <= set(batch_probe.BATCHES) and {24, 28, 30, 40, 48} <= set(batch_probe.BATCHES)
    largest = {row["card"]: row for row in of_kind(rows["batch_probe"], "largest")}
    assert set(largest) == set(CARDS)
    assert largest["whole card"]["bounded"] and largest["16 GB"]["status"] == "unavailable"


def test_every_way_stands_beside_the_forms_that_people_know(rows: dict) -> None:
    variants = of_kind(rows["checkpointing"], "variant")
    short = [row["way"] for row in variants if row["context_length"] == 64]
    assert short[:6] == list(CHOICES["checkpointing"])
    assert {"groups_of_2", "checkpoint_sequential_2", "checkpoint_wrapper", "reentrant"} <= set(short)
    assert [row["way"] for row in variants if row["context_length"] == 256] == list(CHOICES["checkpointing"])


def test_forward_runs_are_counted(rows: dict) -> None:
    runs = {
        row["way"]: (row.get("attention_runs"), row.get("feed_forward_runs"))
        for row in of_kind(rows["checkpointing"], "variant")
        if row["context_length"] == 64
    }
    layers = 2
    assert runs["off"] == runs["offload"] == (layers, layers)
    assert runs["every_block"] == runs["reentrant"] == runs["checkpoint_wrapper"] == (2 * layers, 2 * layers)
    assert runs["groups_of_2"] == (2 * layers, 2 * layers), "a larger group is run again as often as a small one"
    assert runs["feed_forward"] == (layers, 2 * layers)
    assert runs["every_second_block"] == runs["checkpoint_sequential_2"] == (layers + 1, layers + 1)
    assert runs["selective"] == (None, None)


def test_gradients_with_dropout_are_the_same_for_every_way_on_a_cpu(rows: dict) -> None:
    errors = {row["way"]: row["relative_error"] for row in of_kind(rows["checkpointing"], "gradients")}
    assert errors == dict.fromkeys(CHOICES["checkpointing"], 0.0)


def test_splitting_a_batch_leaves_the_gradients_as_far_as_the_format_goes(rows: dict) -> None:
    errors = {row["precision"]: row["relative_error"] for row in of_kind(rows["accumulation"], "gradients")}
    assert 0 < errors["float32"] < 1e-6 < errors["float16_autocast"] < 1e-2
    assert errors["float16_autocast"] < errors["bfloat16"] < 5e-2


def test_tokens_are_counted_over_micro_batches_and_the_update_is_timed(rows: dict) -> None:
    over = of_kind(rows["accumulation"], "micro_steps")
    assert [row["tokens_per_step"] / over[0]["tokens_per_step"] for row in over] == list(accumulation.MICRO_STEPS)
    assert all(len(row["update_ms"]) == 2 and min(row["update_ms"]) > 0 for row in over)
    splits = of_kind(rows["accumulation"], "split")
    assert [(row["accumulation"], row["micro_batch"]) for row in splits] == [(1, 4), (2, 2), (4, 1)]
    assert {row["tokens_per_step"] for row in splits} == {256}
    extra = {row["name"]: row for row in of_kind(rows["accumulation"], "extra")}
    assert extra["float16 with scaler"]["precision"] == "float16_autocast"
    assert {row["gradient_clip"] for row in extra.values()} == {accumulation.CLIP}


def test_a_gradient_that_is_not_finite_is_an_error_and_no_number() -> None:
    one = [torch.tensor([1.0, float("inf")])]
    with pytest.raises(SpeedLabError, match="not finite"):
        steps.relative_error(one, one)
    assert steps.relative_error([torch.tensor([3.0, 5.0])], [torch.tensor([3.0, 4.0])]) == pytest.approx(0.2)


def test_weights_of_another_context_are_those_of_the_base_with_its_positions_repeated(bench: Workbench) -> None:
    recipe = bench.scaled(steps.EAGER)
    base = steps.weights_at(bench, recipe)
    longer = steps.weights_at(bench, recipe.but(context_length=160))["position_table.weight"]
    assert torch.equal(longer[:64], base["position_table.weight"]) and torch.equal(longer[64:128], longer[:64])
    assert longer.shape[0] == 160 and base["position_table.weight"].shape[0] == 64


def test_a_guess_follows_the_line_through_two_peaks() -> None:
    assert guess_from({2: 1_200, 8: 1_800}, 11_000) == int((0.97 * 11_000 - 1_000) / 100)
    assert guess_from({2: 1_200, 8: 1_800}, None) is None and guess_from({2: 1_200}, 11_000) is None
    assert guess_from({2: 1_200, 8: 1_100}, 11_000) is None


class ToyGpu:
    """A bench on a card of 20 GiB whose probe fits 3 sequences, or contexts of up to 8 times the base."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bench: Workbench) -> None:
        self.asked: list[int] = []
        self.bench = SimpleNamespace(
            device=torch.device("cuda"), profile=bench.profile, scaled=bench.scaled, weights_for=bench.weights_for,
            tokens=bench.tokens, place=bench.place,
        )  # fmt: skip
        for module in (emulated_cards, memory_limits):
            monkeypatch.setattr(module, "emulated_card", lambda gib, device: nullcontext())
        monkeypatch.setattr(emulated_cards, "card_bytes", lambda device: 20 * 2**30)
        monkeypatch.setattr(memory_limits, "probe_micro_batch", self.probe)

    def probe(self, recipe, *arguments, **options):
        self.asked.append(recipe.context_length)
        if recipe.context_length > 8 * 64:
            raise NotAvailable("no")


def test_the_longest_context_is_searched_in_doublings(monkeypatch: pytest.MonkeyPatch, bench: Workbench) -> None:
    gpu = ToyGpu(monkeypatch, bench)
    found = memory_limits._longest(gpu.bench, bench.scaled(steps.EAGER), "16 GB")
    assert found["longest"] == 8 * 64 and not found["bounded"]
    assert gpu.asked == [8 * 64, 16 * 64]
    with pytest.raises(NotAvailable, match="40 GB cannot be emulated"):
        memory_limits._longest(gpu.bench, bench.scaled(steps.EAGER), "40 GB")


def test_a_timeline_marks_every_part_forward_and_backward_in_order(
    monkeypatch: pytest.MonkeyPatch, bench: Workbench
) -> None:
    with pytest.raises(NotAvailable):
        checkpointing.timeline(bench, bench.scaled(steps.EAGER))
    recipe = bench.scaled(steps.EAGER).but(checkpointing="every_block")
    counter = iter(range(1, 1_000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(counter))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(checkpointing, "start", lambda _, recipe: steps.start(bench, recipe))
    fake = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    found = checkpointing.timeline(fake, recipe)
    assert found["marks"] == [
        "start", "forward block 1", "forward block 2", "forward head", "backward head", "backward block 2",
        "backward block 1", "backward done", "updated",
    ]  # fmt: skip
    assert len(found["held_bytes"]) == len(found["peak_bytes"]) == len(found["marks"])
