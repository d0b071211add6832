"""The experiments on feeding a step, on a toy with few steps: rows, closed worker processes, failures as rows."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from speedlab.data.shaping import IGNORED
from speedlab.device import capabilities
from speedlab.errors import NotAvailable
from speedlab.labs import data_feeds, shapes_of_text
from speedlab.labs import data_pipeline as lab
from speedlab.labs.data_pipeline import drained_after
from speedlab.labs.registry import EXPERIMENTS
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.variant import Plan
from speedlab.measuring.workbench import Workbench
from speedlab.profile import SMOKE
from speedlab.recipe import Recipe

CPU = torch.device("cpu")
RECIPE = Recipe(num_layers=1, embedding_width=8, num_heads=1, context_length=8, vocab_size=999, micro_batch=2)


@pytest.fixture(scope="module")
def bench() -> Workbench:
    bench = Workbench(SMOKE, replace(capabilities(), cores=2))
    bench.plan = Plan(contract_steps=0, warmup_steps=1, steps=2)
    return bench


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"num_layers": 1, "embedding_width": 8, "num_heads": 1, "precision": "float32", "compile": "off"}
    recipe = SMOKE.scaled(NINE_STEPS.recipe_at(lab.RUNG)).but(**tiny)
    monkeypatch.setattr(lab, "_recipe", lambda bench: recipe)
    monkeypatch.setattr(lab, "CARRIED_ALONE", ("pageable", "double_buffered"))
    monkeypatch.setattr(lab, "CARRIED_BY_MANY", ("pageable",))
    monkeypatch.setattr(lab, "MANY_WORKERS", 1)
    monkeypatch.setattr(lab, "TOY_DELAYS", (0.0, 2.0))
    monkeypatch.setattr(lab, "PREFETCHES", (2,))
    monkeypatch.setattr(lab, "LOADS", 1)
    monkeypatch.setattr(lab, "HICCUP_STEPS", 0.5)


def test_one_step_is_fed_in_every_way_and_no_process_is_left(bench: Workbench, small: None) -> None:
    rows = list(lab.data_pipeline(bench, lambda text: None))
    json.dumps(rows, allow_nan=False)
    assert [(row["status"], row["reason"]) for row in rows] == [("measured", None)] * len(rows)
    assert multiprocessing.active_children() == []
    fed = {(row["source"], row["workers"], row["carried"]) for row in rows if row["what"] == "pipeline"}
    assert fed == {
        ("memory_mapped", 0, "pageable"), ("memory_mapped", 0, "double_buffered"), ("memory_mapped", 1, "pageable"),
        ("memory_mapped", 1, "pinned_non_blocking"), ("tokenised_online", 0, "pinned_non_blocking"),
        ("tokenised_online", 1, "pinned_non_blocking"),
    }  # fmt: skip
    assert rows[0]["what"] == "resident" and len(rows[0]["step_ms"]) == 2
    assert all(0.0 <= row["starved_share"] <= 1.0 and row["tokens_per_step"] == 256 for row in rows[1:])
    slow = {(row["workers"], row["delay_in_steps"]): row for row in rows if row["what"] == "slow"}
    assert set(slow) == {(workers, delay) for workers in (0, 1) for delay in (0.0, 2.0)}
    for workers in (0, 1):
        row = slow[workers, 2.0]
        assert row["delay_ms"] > 0 and row["predicted_step_ms"] >= row["delay_ms"]
    # A host that sleeps before each batch leaves the device without work for so long: no clock can deny that.
    alone = slow[0, 2.0]
    assert min(alone["step_ms"]) >= alone["delay_ms"] and min(alone["wait_ms"]) >= alone["delay_ms"]


def test_a_feed_that_fails_is_a_row_and_the_next_one_runs(bench: Workbench, small: None, monkeypatch) -> None:
    def broken(*args, **options):
        raise OSError("the disk is gone")

    monkeypatch.setattr(lab, "tokenised_online", broken)
    monkeypatch.setattr(lab, "_fed", lambda *args: {"step_ms": [1.0]})
    rows = list(lab.data_pipeline(bench, lambda text: None))
    failed = [row for row in rows if row["status"] == "error"]
    assert {row["source"] for row in failed} == {"tokenised_online"} and len(failed) == 2
    assert failed[0]["reason"] == "OSError: the disk is gone" and rows[-1]["status"] == "measured"


def test_workers_end_with_their_feed_even_when_the_step_fails() -> None:
    tokens = np.arange(900, dtype=np.uint16) % 999
    documents = ["x = 1\n" * 60, "y = 2\n" * 60]
    feeds = (
        lambda: data_feeds.mapped(tokens, RECIPE, CPU, workers=1, delay_ms=1.0, every=2),
        lambda: data_feeds.tokenised_online(documents, 1_000, RECIPE, CPU, workers=1),
    )
    for feed in feeds:
        with pytest.raises(RuntimeError, match="step failed"), feed() as batches:
            next(batches)
            assert len(multiprocessing.active_children()) == 1
            raise RuntimeError("the step failed")
        assert multiprocessing.active_children() == []


def test_a_delay_changes_no_batch_and_comes_as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(data_feeds.time, "sleep", slept.append)
    tokens = np.arange(900, dtype=np.uint16) % 999
    with data_feeds.mapped(tokens, RECIPE, CPU) as plain, data_feeds.mapped(
        tokens, RECIPE, CPU, delay_ms=40.0, every=3
    ) as delayed:  # fmt: skip
        for _ in range(7):
            assert all(torch.equal(a, b) for a, b in zip(next(plain), next(delayed), strict=True))
    assert slept == [0.04, 0.04]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_worker_holds_as_many_batches_ready_as_asked(prefetch: int) -> None:
    tokens = np.arange(900, dtype=np.uint16) % 999
    with data_feeds.mapped(tokens, RECIPE, CPU, workers=1, prefetch=prefetch) as stream:
        next(stream)
        # Asked for and not handed out yet, in PyTorch's own books.
        assert stream._batches._tasks_outstanding == prefetch


@pytest.mark.parametrize(("ahead", "slowness"), [(8, 0.5), (8, 1.0), (8, 1.5), (8, 2.0), (2, 3.0), (0, 2.0)])
def test_batches_loaded_ahead_are_used_up_before_the_clock_starts(ahead: int, slowness: float) -> None:
    """Played through: each step takes one batch, and 1 / slowness of a new one has come until the next."""
    ready, steps, comes = Fraction(ahead), 0, 1 / Fraction(slowness)
    while slowness > 1 and ready > 0:
        ready, steps = ready - 1 + comes, steps + 1
    assert drained_after(ahead, slowness) == (steps if slowness > 1 else ahead)


def test_shapes_of_text_count_what_is_trained_and_not_the_padding(bench: Workbench) -> None:
    rows = {row["shaping"]: row for row in shapes_of_text.shapes_of_text(bench, lambda text: None)}
    json.dumps(list(rows.values()), allow_nan=False)
    assert {row["status"] for row in rows.values()} == {"measured"}
    assert rows["packed"]["padding_share"] == 0.0 < rows["pad_to_max"]["padding_share"]
    for row in rows.values():
        assert row["padding_share"] == pytest.approx(1 - row["trained_tokens"] / row["positions"])
        assert row["trained_tokens_per_s"] == pytest.approx(1e3 * row["trained_tokens"] / sum(row["step_ms"]))


def test_padding_enters_no_loss(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = shapes_of_text.real_tokens
    monkeypatch.setattr(shapes_of_text, "real_tokens", lambda targets: seen.append(targets) or original(targets))
    list(shapes_of_text.shapes_of_text(bench, lambda text: None))
    padded = [targets for targets in seen if (targets == IGNORED).any()]
    assert padded and all(original(targets) < targets.numel() for targets in padded)


def test_a_corpus_that_is_too_short_is_a_reason(bench: Workbench) -> None:
    examples = [np.arange(9, dtype=np.uint16)] * 3
    with pytest.raises(NotAvailable, match="1 batches, 3 are timed: give a longer corpus"):
        shapes_of_text._timed(bench, RECIPE, shapes_of_text.SHAPINGS["dynamic"], examples)


def test_the_step_is_the_same_for_all_and_plain_on_a_cpu(bench: Workbench) -> None:
    recipe = lab._recipe(bench)
    assert (recipe.precision, recipe.compile) == ("float32", "off")
    on_gpu = SimpleNamespace(device=SimpleNamespace(type="cuda"), scaled=lambda recipe: recipe)
    assert lab._recipe(on_gpu).compile == "default"
    assert {"data_pipeline", "shapes_of_text"} <= EXPERIMENTS.keys() and "slow_loader" not in EXPERIMENTS
