"""Experiments: what a file may hold, how one is run, what a lab shows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from records_helper import MACHINE_CPU, MACHINE_H200

from speedlab import cli, lab
from speedlab.errors import BadInput, NotAvailable
from speedlab.labs import registry
from speedlab.labs.rows import attempt
from speedlab.measuring.experiments import run_experiment
from speedlab.publishing.tables import Table
from speedlab.recipe import Recipe
from speedlab.records.experiment import (
    Experiment,
    committed_experiments,
    read_experiment,
    read_experiments,
    write_experiment,
)

VALUES = {
    "name": "toy_sweep", "session": "0f1e2d3c4b5a", "device": "cpu", "profile": "smoke", "machine": MACHINE_CPU,
    "rows": [{"size": 1, "status": "measured", "reason": None, "step_ms": [1.0, 2.0]}],
    "source_hash": "0" * 64, "utc": "2026-11-29T12:00:00+00:00",
}  # fmt: skip


def sweep(bench: Any, say: Any) -> Iterator[dict[str, Any]]:
    """Steps of a real model at two batches, and one that finds no memory."""
    from speedlab.measuring.variant import start_variant, time_steps

    for micro_batch in (1, 2):
        recipe = bench.scaled(Recipe()).but(micro_batch=micro_batch)

        def make(recipe: Recipe = recipe) -> dict[str, Any]:
            step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
            return {"step_ms": time_steps(step, batches, bench.device, 2), "tokens": recipe.tokens_per_step}

        yield attempt(make, micro_batch=micro_batch)

    def no_memory() -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    yield attempt(no_memory, micro_batch=4)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        registry.Entry(name="toy_sweep", question="How fast?", function=f"{__name__}:sweep"),
        registry.Entry(name="gpu_only", question="How fast there?", function=f"{__name__}:sweep", gpu=True),
    ]
    for entry in entries:
        monkeypatch.setitem(registry.EXPERIMENTS, entry.name, entry)


def test_an_experiment_is_written_and_read_as_it_was(tmp_path: Path) -> None:
    experiment = Experiment(**VALUES)
    assert read_experiment(write_experiment(tmp_path, experiment)) == experiment
    assert read_experiments(tmp_path, "toy_sweep") == [experiment]
    assert read_experiments(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [{"size": 1}]}, "rows[0].status"),
        ({"rows": [{"status": "error"}]}, "rows[0].reason"),
        ({"rows": [{"status": "measured", "step_ms": float("nan")}]}, "rows[0].step_ms"),
        ({"device": "nvidia-h200"}, "device"),
        ({"machine": MACHINE_H200}, "device"),
        ({"schema": 99}, "schema"),
        ({"name": "../up"}, "name"),
    ],
)
def test_an_impossible_experiment_is_refused_by_the_name_of_the_field(change: dict, message: str) -> None:
    with pytest.raises(BadInput) as error:
        Experiment(**VALUES | change)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[: len(text) // 2], lambda text: text.replace('"rows"', '"row"'), lambda text: "[1]"],
)
def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path, damage: Any) -> None:
    path = write_experiment(tmp_path, Experiment(**VALUES))
    path.write_text(damage(path.read_text()))
    with pytest.raises(BadInput, match=r"toy_sweep\.json"):
        read_experiment(path)


def test_a_toy_run_never_enters_the_published_folder() -> None:
    with pytest.raises(BadInput, match="unpublished"):
        write_experiment(committed_experiments(), Experiment(**VALUES))
    assert not (committed_experiments() / "cpu").exists()


def test_running_one_gives_its_rows_with_machine_and_corpus(toy: None, tmp_path: Path) -> None:
    experiment = run_experiment("toy_sweep", profile="smoke", out=tmp_path)
    assert [row["status"] for row in experiment.rows] == ["measured", "measured", "out_of_memory"]
    assert [len(row["step_ms"]) for row in experiment.measured] == [2, 2]
    assert experiment.rows[1]["tokens"] == 2 * experiment.rows[0]["tokens"]
    assert experiment.machine["gpu"] is None and experiment.corpus["tokens"] > 10_000
    assert read_experiment(tmp_path / "cpu" / "toy_sweep.json") == experiment


def test_one_that_needs_a_gpu_says_so(toy: None) -> None:
    with pytest.raises(NotAvailable, match="gpu_only needs a GPU"):
        run_experiment("gpu_only", profile="smoke")


def test_the_command_lists_runs_and_refuses(toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["experiment", "--list"]) == 0
    assert "toy_sweep  How fast?" in capsys.readouterr().out
    assert cli.run(["experiment", "toy_sweep", "--profile", "smoke", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 3
    assert cli.run(["experiment", "toy_sweep", "toy_sweep", "--profile", "smoke", "--json"]) == 0
    decoder, text = json.JSONDecoder(), capsys.readouterr().out
    first, end = decoder.raw_decode(text)
    second, _ = decoder.raw_decode(text[end:].lstrip())
    assert first["session"] == second["session"] and len(second["rows"]) == 3
    assert cli.run(["experiment"]) == 2
    assert cli.run(["experiment", "no_such"]) == 2
    assert "toy_sweep" in capsys.readouterr().err


def test_a_lab_shows_the_run_and_its_reasons(
    toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    results: list[dict] = []
    monkeypatch.setenv("SPEEDLAB_RUN", str(tmp_path))
    monkeypatch.setattr(lab, "show_markdown", shown.append)
    monkeypatch.setattr(lab, "clear_progress", lambda: None)
    monkeypatch.setattr(lab, "show_result", lambda result, text: results.append(result))
    notebook = lab.Lab("toy", profile="smoke")
    notebook.run("toy_sweep")
    # The last line stands when the progress above it is cleared, which happens only when something follows it.
    *progress, last = capsys.readouterr().out.splitlines()
    assert last == "toy_sweep: 3 rows: 2 measured, 1 out of memory"
    assert [line for line in progress if "None" in line] == [] and "micro_batch 1, status measured" in progress[0]
    notebook.run("gpu_only")
    assert "needs a GPU" in shown[0]
    notebook.show_table("toy_sweep", {"batch": "micro_batch", "steps": lambda row: str(len(row["step_ms"]))})
    assert "| 1 | 2 |" in shown[-1] and "| 4 | out of memory: " in shown[-1] and "*smoke*" in shown[-1]
    two = [Table(f"{name}, ms", ("kind", "ms"), (("a", "1"),), frozenset(["ms"])) for name in ("Forward", "Backward")]
    notebook.show_tables("toy_sweep", lambda experiment: two)
    assert shown[-2].startswith("**Forward, ms.** Here and now, CPU") and "| a | 1 |" in shown[-1]
    notebook.show_words("toy_sweep", lambda experiment: "fast")
    assert "Nothing recorded yet" in shown[-1]
    notebook.finish()
    assert results[0]["status"] == "measured" and results[0]["records"] == ["experiments/cpu/toy_sweep.json"]
    assert (tmp_path / results[0]["records"][0]).is_file()
