"""The pages of the memory labs: sources as every page has them, figures and sentences that follow the rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from records_helper import MACHINE_CPU, MACHINE_H200

from speedlab import lab
from speedlab.publishing import figures_of_memory_labs as figures
from speedlab.publishing import words_of_memory_labs as words
from speedlab.publishing.execute import read_source
from speedlab.publishing.plotting import alt_text, svg_text
from speedlab.records.experiment import Experiment, write_experiment
from speedlab.repository import colab_url

LABS = Path(__file__).resolve().parents[1] / "notebooks" / "labs"
STEMS = ("accumulation", "batch_probe", "checkpointing")
NAMES = {"accumulation": ["accumulation"], "batch_probe": ["batch_probe"],
         "checkpointing": ["checkpointing", "memory_limits"]}  # fmt: skip
HEADINGS = [
    "What changes", "Why it should be faster", "The change", "Measured", "What ran", "Same training?", "On other cards",
    "What we learned", "Try it yourself",
]  # fmt: skip
GIB = 2**30


def timed(kind: str, ms: float, tokens: int, gib: float | None, **what: Any) -> dict[str, Any]:
    return {
        "kind": kind, "status": "measured", "reason": None, "compile": "off", "step_ms": [ms * 0.99, ms, ms * 1.03],
        "tokens_per_step": tokens, "peak_allocated_bytes": gib and int(gib * GIB), "allocation_retries": 0,
        "peak_reserved_bytes": gib and int(1.1 * gib * GIB), "context_length": 1024, "micro_batch": 8, **what,
    }  # fmt: skip


def made_up(name: str, gib: float | None = 4.0) -> list[dict[str, Any]]:
    """Rows of every kind of an experiment, with numbers that no card gave."""
    failed = {"kind": "largest", "card": "40 GB", "way": "off", "status": "out_of_memory", "reason": "no room"}
    found = {"status": "measured", "reason": None, "bounded": False, "emulated": True, "limit_bytes": gib and 15 * GIB}
    return {
        "batch_probe": [
            *(timed("batch", 2.0 * size, 1024 * size, gib, micro_batch=size) for size in (8, 16, 31, 32, 33)),
            timed("batch", 40.0, 32_768, gib, micro_batch=32, compile="default"),
            *(timed("grid", ms, 16_384, gib, context_length=16_384 // size, micro_batch=size)
              for size, ms in ((64, 40.0), (16, 42.0), (4, 50.0))),
            {**found, "kind": "largest", "card": "16 GB", "compile": "off", "largest": 24},
            failed,
        ],
        "checkpointing": [
            *(timed("variant", ms, 8192, gib and gib * share, way=way, compile=mode, context_length=context)
              for mode, context in (("off", 1024), ("off", 4096), ("default", 1024))
              for way, ms, share in (("off", 30, 1), ("every_block", 39, 0.5), ("selective", 32, 0.75))),
            {"kind": "gradients", "way": "off", "status": "measured", "reason": None, "relative_error": 0.0},
            {"kind": "timeline", "way": "off", "status": "measured", "reason": None,
             "marks": ["start", "forward block 1", "forward head", "backward head", "backward block 1", "updated"],
             "held_bytes": [GIB, 2 * GIB, 3 * GIB, 3 * GIB, 2 * GIB, GIB], "peak_bytes": [GIB] * 3 + [4 * GIB] * 3}
            if gib else
            {"kind": "timeline", "way": "off", "status": "unavailable", "reason": "a CPU does not count"},
        ],
        "memory_limits": [
            {**found, "kind": "largest", "way": "every_block", "card": "16 GB", "largest": 96},
            {**found, "kind": "longest", "way": "off", "card": "16 GB", "longest": 16_384},
            *(timed("fill", 2.5 * size, 1024 * size, gib and gib * size / 8, micro_batch=size, card="16 GB",
                    limit_bytes=15 * GIB) for size in (6, 18, 20, 24)),
            failed,
        ],
        "accumulation": [
            *(timed("micro_steps", 30 * k, 8192 * k, gib, accumulation=k, update_ms=[3.0, 3.1], compile=mode)
              for mode in ("off", "default") for k in (1, 2, 4)),
            *(timed("split", 100 + k, 32_768, gib and gib / k, accumulation=k, micro_batch=32 // k, total_batch=32,
                    update_ms=[3.0]) for k in (1, 2, 4)),
            timed("extra", 33.0, 8192, gib, name="clipped", accumulation=4, gradient_clip=1.0, precision="bfloat16"),
            {"kind": "gradients", "precision": "float32", "status": "measured", "reason": None,
             "relative_error": 1.5e-7},
        ],
    }[name]  # fmt: skip


def experiment(name: str, *, gib: float | None = 4.0) -> Experiment:
    return Experiment(
        name=name, session="0f1e2d3c4b5a", device="nvidia-h200" if gib else "cpu", profile="full" if gib else "smoke",
        machine=MACHINE_H200 if gib else MACHINE_CPU, rows=made_up(name, gib), source_hash="0" * 64,
        utc="2026-11-29T12:00:00+00:00",
    )  # fmt: skip


def run_page(stem: str, source: str) -> None:
    """Execute the code cells of a lab one after another, with the parameters of a batch run."""
    scope: dict[str, Any] = {}
    for cell in read_source(LABS / f"{stem}.py").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, stem, "exec"), scope)
            if "parameters" in cell.metadata.get("tags", ()):
                scope["source"] = source


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    seen: list[str] = []
    monkeypatch.delenv("SPEEDLAB_RUN", raising=False)
    monkeypatch.setattr(lab, "committed_experiments", lambda: tmp_path)
    monkeypatch.setattr(lab, "show_markdown", seen.append)
    monkeypatch.setattr(lab, "show_svg", lambda figure: seen.append(alt_text(figure)))
    monkeypatch.setattr(lab, "show_result", lambda result, text: seen.append(text))
    return seen


@pytest.mark.parametrize("stem", STEMS)
def test_a_page_has_the_headings_the_link_and_the_parameters_of_every_page(stem: str) -> None:
    notebook = read_source(LABS / f"{stem}.py")
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert re.findall(r"^## (.+?)\s*$", text, re.MULTILINE) == HEADINGS
    assert colab_url(stem) in text and len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert 6 <= len(code) <= 11 and "class " not in "".join(cell.source for cell in code)
    assert code[-1].source == "lab.finish()"
    assert sum("parameters" in cell.metadata.get("tags", ()) for cell in code) == 1
    assert not re.findall(r"\d\s?(?:tok/s|tokens/s|GiB reserved|ms per step|ms/step)", text)


@pytest.mark.parametrize("stem", STEMS)
def test_a_page_without_records_says_so_and_runs_to_its_end(stem: str, shown: list[str]) -> None:
    run_page(stem, "recorded")
    assert shown[-1] == f"{stem}: recorded"
    assert sum("Nothing recorded yet" in text for text in shown) >= 1


@pytest.mark.parametrize("stem", STEMS)
def test_a_page_fills_itself_from_records(stem: str, shown: list[str], tmp_path: Path) -> None:
    for name in NAMES[stem]:
        write_experiment(tmp_path, experiment(name))
    run_page(stem, "recorded")
    text = "\n".join(shown)
    assert "Nothing recorded yet" not in text and "**H200 SXM.**" in text and "| --- |" in text
    assert "No row was measured" not in text and words.NOTHING_TO_SAY not in text


DRAWN = [
    ("batch_probe", figures.throughput_over_batch, "compiled 32: 819 k"),
    ("batch_probe", figures.batch_against_context, "4 x 4,096: 328 tokens per second"),
    ("batch_probe", figures.largest_batches, "16 GB (emulated), off: 24 seq"),
    ("checkpointing", figures.checkpointing_ways, "every block: 39.0 ms per step, 2.00 GiB"),
    ("checkpointing", figures.memory_along_a_step, "off at most 4.0 GiB"),
    ("memory_limits", figures.largest_batches, "16 GB (emulated), every block: 96 seq"),
    ("memory_limits", figures.throughput_over_fill, "88 %: 409.6 k"),
    ("accumulation", figures.speed_over_micro_steps, "compiled K=4: 273 k"),
]


@pytest.mark.parametrize(("name", "draw", "words_in_it"), DRAWN, ids=lambda value: getattr(value, "__name__", None))
def test_a_figure_tells_its_numbers_in_words_and_draws_the_same_twice(name: str, draw: Any, words_in_it: str) -> None:
    figure = draw(experiment(name))
    assert words_in_it in alt_text(figure)
    assert svg_text(figure) == svg_text(draw(experiment(name)))


@pytest.mark.parametrize(("name", "draw", "words_in_it"), DRAWN, ids=lambda value: getattr(value, "__name__", None))
def test_a_figure_of_a_cpu_shows_what_there_is_or_says_what_is_missing(name: str, draw: Any, words_in_it: str) -> None:
    text = alt_text(draw(experiment(name, gib=None)))
    assert ("GiB" not in text and "smoke profile" in text) or "No row was measured" in text


def test_other_settings_of_checkpointing_have_figures_of_their_own() -> None:
    found = experiment("checkpointing")
    assert "4,096 tokens, eager" in alt_text(figures.checkpointing_ways(found, long=True))
    assert "1,024 tokens, compiled" in alt_text(figures.checkpointing_ways(found, compiled=True))


def test_sentences_follow_the_rows() -> None:
    assert words.batch_sentence(experiment("batch_probe")).startswith("Without the compiler, 8 sequences reach 95 %")
    assert "1.30x the time, 50.0 % of the peak" in words.checkpointing_sentence(experiment("checkpointing"))
    fill = words.fill_sentence(experiment("memory_limits"))
    assert "88.0 % and gave 100.0 % of the best" in fill and "between 65 and 85 % reserved" in fill
    assert "4 micro-batches of 8 instead of 1 make 1.00x" in words.accumulation_sentence(experiment("accumulation"))
    assert "32 sequences in 4 parts run at 0.97x" in words.accumulation_sentence(experiment("accumulation"))


def test_cells_are_empty_where_a_row_has_no_such_value() -> None:
    row = {"kind": "gradients", "relative_error": 1.5e-7}
    assert words.error_cell(row) == "1.5e-07" and words.step_cell(row) == words.held_cell(row) == "–"  # noqa: RUF001
    assert words.of_kind("split", "total_batch")(row) == words.found_cell(row) == "–"  # noqa: RUF001
    assert words.found_cell({"largest": 1024, "bounded": True}) == "1,024 (bound)"
