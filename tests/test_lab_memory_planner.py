"""The experiment and the page of the memory planner: its rows, its words, its notebook, and what is committed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from records_helper import MACHINE_H200

from speedlab.device import Capabilities
from speedlab.labs import memory_planner
from speedlab.labs.registry import get_entry
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.workbench import Workbench
from speedlab.memory_plan import not_modelled, plan_memory
from speedlab.profile import FULL, SMOKE
from speedlab.publishing import memory_words
from speedlab.publishing.execute import read_source
from speedlab.publishing.plotting import alt_text
from speedlab.recipe import Recipe
from speedlab.records.experiment import Experiment, committed_experiments, read_experiments

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "labs" / "memory_planner.py"
NONE_YET = pytest.param(
    None, id="none",
    marks=pytest.mark.skip(reason="no H200 run of `speedlab experiment memory_planner` is committed yet"),
)  # fmt: skip
COMMITTED = read_experiments(committed_experiments(), "memory_planner") or [NONE_YET]


def planned(name: str) -> Recipe:
    return memory_planner.BASE.but(**memory_planner.RECIPES[name])


def test_the_recipes_differ_in_what_the_plan_depends_on() -> None:
    recipes = [planned(name) for name in memory_planner.RECIPES]
    assert len(recipes) >= 12 and len(set(recipes)) == len(recipes)
    for field, least in (("num_layers", 3), ("precision", 4), ("attention", 2), ("optimizer", 3), ("compile", 2),
                         ("vocabulary", 2), ("micro_batch", 4), ("context_length", 3), ("layers", 2),
                         ("accumulation", 2), ("dropout", 2), ("output_head", 2)):  # fmt: skip
        assert len({getattr(recipe, field) for recipe in recipes}) >= least, field
    assert {plan_memory(recipe).peak_at for recipe in recipes} >= {"loss", "optimizer"}
    assert [not_modelled(recipe) for recipe in recipes] == [()] * len(recipes)
    assert max(plan_memory(recipe).peak_allocated_bytes for recipe in recipes) < 60 * 2**30


@pytest.fixture
def two_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: memory_planner.RECIPES[name] for name in ("small, few tokens, masters", "small, compiled, padded")}
    monkeypatch.setattr(memory_planner, "RECIPES", some)


def test_on_a_cpu_the_steps_run_and_nothing_is_measured(two_recipes: None) -> None:
    bench = Workbench(SMOKE, Capabilities(device_type="cpu"))
    one, two = memory_planner.predicted_against_measured(bench, lambda text: None)
    assert (one["status"], one["steps"]) == ("not_applicable", 3) and "CPU has no peak" in one["reason"]
    assert two["status"] == "not_applicable" and "not compiled" in two["reason"] and "steps" not in two
    for row in (one, two):
        assert row["measured_allocated_bytes"] is None and row["measured_reserved_bytes"] is None
        recipe = Recipe.from_dict(row["recipe"])
        assert row["predicted_allocated_bytes"] == plan_memory(recipe).peak_allocated_bytes
        assert sum(row["predicted_parts"].values()) == row["predicted_allocated_bytes"]
        assert recipe.num_layers == 2


def test_a_recipe_that_fails_is_a_row_and_the_next_one_runs(two_recipes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from speedlab.measuring import variant

    monkeypatch.setattr(variant, "start_variant", lambda *rest: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
    bench: Any = SimpleNamespace(
        machine=Capabilities(device_type="cuda", capability=(9, 0)), device=torch.device("cpu"), place=None,
        scaled=SMOKE.scaled, weights_for=lambda recipe: {}, tokens=SimpleNamespace(tokens=None),
    )  # fmt: skip
    rows = list(memory_planner.predicted_against_measured(bench, lambda text: None))
    assert [row["status"] for row in rows] == ["out_of_memory", "not_applicable"]
    assert all(row["predicted_allocated_bytes"] for row in rows)


def experiment(*factors: float) -> Experiment:
    """An experiment of the first recipes whose measured peaks are so many times the predicted ones."""
    rows = []
    for name, factor in zip(memory_planner.RECIPES, factors, strict=False):
        recipe = planned(name)
        plan = plan_memory(recipe)
        peak = round(factor * plan.peak_allocated_bytes)
        rows.append(
            {
                "name": name, "recipe": recipe.as_dict(), "predicted_allocated_bytes": plan.peak_allocated_bytes,
                "predicted_parts": plan.parts, "peak_at": plan.peak_at, "measured_allocated_bytes": peak,
                "measured_reserved_bytes": 2 * peak, "status": "measured", "reason": None, "steps": 3,
            }
        )  # fmt: skip
    failed = {**rows[0], "name": "too large", "status": "out_of_memory", "reason": "it needs more memory",
              "measured_allocated_bytes": None, "measured_reserved_bytes": None}  # fmt: skip
    return Experiment(
        name="memory_planner", session="0f1e2d3c4b5a", device="nvidia-h200", profile="full", rows=[*rows, failed],
        machine=MACHINE_H200, source_hash="a" * 64, utc="2026-11-29T12:00:00Z",
    )  # fmt: skip


def test_table_figure_and_words_say_the_error() -> None:
    made = experiment(1.0, 1.25, 0.98)
    (table,) = memory_words.accuracy_table(made)
    assert [line[3] for line in table.cells] == ["\N{MINUS SIGN}20.0 %", "+2.0 %", "0.0 %"], "the largest error first"
    assert table.notes == ("no measured peak of too large: it needs more memory",)
    figure = memory_words.planned_against_measured(made)
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert drawn == ["0.0 %", "\N{MINUS SIGN}20.0 %", "+2.0 %"]
    names = list(memory_planner.RECIPES)
    assert f"{names[1]} " in alt_text(figure) and "too large" not in alt_text(figure)
    words = memory_words.accuracy_words(made)
    assert words.startswith("3 recipes, each over 3 whole optimizer steps")
    assert f"\N{MINUS SIGN}20.0 % ({names[1]})" in words and "100.0 % at most" in words
    parts = made.rows[0]["predicted_parts"]
    share = 100 * (parts["weights"] + parts["gradients"] + parts["optimizer"]) / sum(parts.values())
    assert f"Weights and moments are {share:.1f} % of it" in memory_words.share_words(made, names[0])
    assert memory_words.share_words(made, "none") == "The recipe none was not measured."


def test_where_nothing_has_a_peak_the_predictions_stand_with_one_reason() -> None:
    rows = [
        {"name": str(number), "predicted_allocated_bytes": 2**30, "peak_at": "loss", "status": "not_applicable",
         "reason": "no peak here"} for number in range(4)
    ]  # fmt: skip
    (table,) = memory_words.accuracy_table(replace(experiment(1.0), rows=rows))
    assert [line[1] for line in table.cells] == ["1.00"] * 4
    assert table.notes == ("no measured peak of 4 recipes: no peak here",)


def test_tables_by_formula() -> None:
    cards = memory_words.card_table({"top": NINE_STEPS.recipe_at("batch_size")}).markdown()
    assert "| T4 | 16 |" in cards and "float16 under autocast" in cards
    paper = memory_words.paper_table().markdown()
    assert "LLaMA-7B, mixed | 6.74 | 108 |" in paper and "LLaMA-13B" in paper
    recipe = Recipe()
    beside = memory_words.accelerate_table({"baseline": recipe}, {"baseline": 20 * 2**30}).markdown()
    assert "| baseline | 2.43 | 20.0 |" in beside  # 16 bytes for each of 163 million weights


def test_the_registry_knows_it() -> None:
    entry = get_entry("memory_planner")
    assert entry.function == "speedlab.labs.memory_planner:predicted_against_measured" and not entry.gpu
    assert entry.function.startswith(f"speedlab.labs.{NOTEBOOK.stem}:")


def test_the_notebook_runs_on_records_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is recorded for some time, or there is: the page must not care."""
    space: dict[str, Any] = {}
    for cell in read_source(NOTEBOOK).cells:
        if cell.cell_type == "code":
            exec(
                compile(cell.source.replace('source: str = "auto"', 'source: str = "recorded"'), "cell", "exec"), space
            )
    assert "largest micro-batch that fits" in capsys.readouterr().out


@pytest.mark.parametrize("committed", COMMITTED, ids=lambda experiment: experiment and experiment.device)
def test_committed_peaks_are_within_ten_percent(committed: Experiment) -> None:
    rows = committed.measured
    assert len(rows) >= 12
    wrong = {row["name"]: round(memory_words.error(row), 3) for row in rows if abs(memory_words.error(row)) > 0.10}
    assert wrong == {}


def test_the_full_profile_leaves_the_recipes_as_they_are() -> None:
    assert [FULL.scaled(planned(name)) for name in memory_planner.RECIPES] == [
        planned(name) for name in memory_planner.RECIPES
    ]
