"""The pages of the memory labs: sources as every page has them, figures and sentences that follow the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_pages_helper import run_page, watch
from records_helper import MACHINE_CPU, MACHINE_H200

from speedlab.publishing import figures_of_memory_labs as figures
from speedlab.publishing import tables_of_memory_labs as tables
from speedlab.publishing import words_of_memory_labs as words
from speedlab.publishing.lab_rows import apart, middle
from speedlab.publishing.plotting import alt_text, svg_text
from speedlab.records.experiment import Experiment, write_experiment

STEMS = ("accumulation", "batch_probe", "checkpointing")
NAMES = {"accumulation": ["accumulation"], "batch_probe": ["batch_probe"],
         "checkpointing": ["checkpointing", "memory_limits", "together_hf"]}  # fmt: skip
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
            {**found, "kind": "largest", "card": "16 GB", "compile": "off", "largest": 24, "micro_batch": 24},
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
            {**found, "kind": "largest", "way": "off", "card": "16 GB", "largest": 24},
            {**found, "kind": "largest", "way": "every_block", "card": "16 GB", "largest": 96},
            {**found, "kind": "longest", "way": "off", "card": "16 GB", "longest": 16_384},
            *(timed("fill", 2.5 * size, 1024 * size, gib and gib * size / 8, micro_batch=size, card="16 GB",
                    limit_bytes=15 * GIB) for size in (6, 18, 20, 24)),
            failed,
        ],
        "together_hf": [
            timed("hf", ms, 8192, gib and gib * share, model="GPT-2", variant=variant, transformers="5.17.0")
            for variant, ms, share in (("baseline", 30.0, 1), ("gradient checkpointing", 39.0, 0.5))
        ],
        "accumulation": [
            *(timed("micro_steps", 30 * k, 8192 * k, gib and gib + (k > 1) / 4, accumulation=k, update_ms=[3.0, 3.1],
                    compile=mode, precision="bfloat16") for mode in ("off", "default") for k in (1, 2, 4)),
            *(timed("split", 100 + k, 32_768, gib and gib / k, accumulation=k, micro_batch=32 // k, total_batch=32,
                    update_ms=[3.0]) for k in (1, 2, 4)),
            timed("extra", 150.0, 32_768, gib, name="clipped", accumulation=4, gradient_clip=1.0, precision="bfloat16"),
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


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    return watch(monkeypatch, tmp_path)


@pytest.mark.parametrize("stem", STEMS)
def test_a_page_without_records_says_so_and_runs_to_its_end(stem: str, shown: list[str]) -> None:
    run_page(stem)
    assert shown[-1] == f"{stem}: recorded"
    assert sum("Nothing recorded yet" in text for text in shown) >= 1


@pytest.mark.parametrize("stem", STEMS)
def test_a_page_fills_itself_from_records(stem: str, shown: list[str], tmp_path: Path) -> None:
    for name in NAMES[stem]:
        write_experiment(tmp_path, experiment(name))
    run_page(stem)
    text = "\n".join(shown)
    assert "Nothing recorded yet" not in text and "**H200 SXM.**" in text and "| --- |" in text
    assert "No row was measured" not in text and words.NOTHING_TO_SAY not in text


DRAWN = [
    ("batch_probe", figures.throughput_over_batch, "compiled 32: 819 k"),
    ("checkpointing", figures.checkpointing_ways, "every block: 39.0 ms per step, 2.00 GiB"),
    ("checkpointing", figures.memory_along_a_step, "off at most 4.0 GiB"),
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
    batch = words.batch_sentence(experiment("batch_probe"))
    assert batch.startswith("Without the compiler, 8 sequences reach 95 %")
    assert "gains: eager 0.0 % against 31, which the spread of the steps covers and 0.0 % against 33" in batch
    assert "4 x 4,096 run at 0.80x the speed of 64 x 256" in words.grid_sentence(experiment("batch_probe"))
    said = words.checkpointing_sentence(experiment("checkpointing"))
    assert "1.30x the time for 50.0 % of the memory (eager, 8 x 1,024); 1.30x" in said and "covers" not in said
    limits = words.limits_sentence(experiment("memory_limits"))
    assert limits == "Checkpointing every block fits on 16 GB (emulated) 96 sequences instead of 24."
    fill = words.fill_sentence(experiment("memory_limits"))
    assert "88.0 % and gave 100.0 % of the best" in fill and "73.3 % reserved gave 100.0 %" in fill
    said = words.accumulation_sentence(experiment("accumulation"))
    assert "An update is 10.2 % of a step of 8 sequences; 4 such parts for each update run at 1.00x its speed" in said
    assert "which the spread of the steps covers, and hold 0.25 GiB more" in said
    assert "Against 32 sequences in one piece: 4 x 8 gives 97.1 % of the speed in 25.0 % of the memory." in said
    assert "A part of" not in said, "half the work takes half the time"
    clipped = words.clipping_sentence(experiment("accumulation"))
    assert clipped.startswith("Clipping adds 30.0 ms to an update of 4 parts, once and not for each part.")
    assert "GPT-2 takes 1.30x the time for 50.0 % of the memory" in words.enable_sentence(experiment("together_hf"))


def test_groups_are_compared_within_one_setting() -> None:
    rows = [
        timed("variant", ms, 8192, gib, way=way, context_length=context) for way, ms, gib, context in
        (("off", 30, 4.0, 1024), ("every_block", 39, 2.0, 1024), ("groups_of_6", 39, 1.5, 1024),
         ("groups_of_12", 39, 3.0, 1024), ("every_block", 39, 9.0, 4096))
    ]  # fmt: skip
    said = words.checkpointing_sentence(replace(experiment("checkpointing"), rows=rows))
    assert "groups of 6 holds least, 1.50 GiB, and groups of 12 most, 3.00." in said


def test_parts_that_are_too_small_for_the_card_are_named() -> None:
    rows = made_up("accumulation")
    slow = [timed("split", ms, 32_768, 1.0, accumulation=k, micro_batch=32 // k, total_batch=32, update_ms=[3.0])
            for k, ms in ((1, 100.0), (4, 104.0), (8, 200.0))]  # fmt: skip
    said = words.accumulation_sentence(
        replace(experiment("accumulation"), rows=[row for row in rows if row["kind"] != "split"] + slow)
    )
    assert "4 x 8 gives 96.2 %" in said and "8 x 4 gives 50.0 % of the speed" in said
    assert "A part of 4 takes 25.0 ms and one of 8 26.0" in said


@pytest.mark.parametrize("say", [words.batch_sentence, words.grid_sentence, words.checkpointing_sentence,
                                 words.limits_sentence, words.fill_sentence, words.accumulation_sentence,
                                 words.clipping_sentence, words.enable_sentence])  # fmt: skip
def test_sentences_without_rows_say_so(say: Any) -> None:
    assert say(replace(experiment("accumulation"), rows=[])) == words.NOTHING_TO_SAY


def test_tables_put_what_is_compared_side_by_side() -> None:
    (found,) = tables.checkpointing_table(experiment("checkpointing"))
    assert found.columns[1:3] == ("eager, 8 x 1,024: time", "memory") and len(found.columns) == 7
    assert found.cells[0] == ("every block", "1.30x", "50.0 %", "1.30x", "50.0 %", "1.30x", "50.0 %")
    parts, pieces = tables.accumulation_tables(experiment("accumulation"))
    assert parts.cells[1][:2] == ("2", "273") and parts.cells[1][-2:] == ("5.1 %", "4.25")
    assert pieces.cells[-1][:4] == ("4 x 8", "104", "315", "97.1 %")
    (extras,) = tables.accumulation_extras(experiment("accumulation"))
    assert [line[0] for line in extras.cells] == ["plain", "clipped"] and extras.title.endswith(
        "4 parts of 8 sequences"
    )
    (gradients,) = tables.gradient_table(experiment("accumulation"))
    assert gradients.cells == (("float32", "1.5e-07", "6.0e-08"),)
    (limits,) = tables.limits_table(experiment("memory_limits"))
    assert limits.cells == (("off", "24", "16,384"), ("every block", "96", "\N{EN DASH}"))
    (fill,) = tables.fill_table(experiment("memory_limits"))
    assert fill.cells[0][:2] == ("6", "22.0 %") and fill.notes[0].startswith("in 0 of 4 rows")
    (batches,) = tables.batch_tables(experiment("batch_probe"))
    assert [line[0] for line in batches.cells] == ["8", "16", "31", "32", "33"]
    assert batches.cells[3][1] == "512" and batches.cells[3][3] == "819" and batches.cells[0][3] == "\N{EN DASH}"
    grid, largest = tables.grid_and_limits(experiment("batch_probe"))
    assert grid.cells[0] == ("64 x 256", "410", "100.0 %", "4.00") and largest.cells[0][:2] == ("16 GB, emulated", "24")
    (runs,) = tables.runs_table(experiment("checkpointing"))
    assert runs.cells == (("off", "\N{EN DASH}", "\N{EN DASH}", "0"),)


def test_a_time_that_the_spread_covers_is_marked() -> None:
    rows = [timed("variant", ms, 8192, 4.0, way=way) for way, ms in (("off", 30.0), ("every_block", 30.2))]
    (found,) = tables.checkpointing_table(replace(experiment("checkpointing"), rows=rows))
    assert found.cells[0][1] == "~ 1.01x"


@pytest.mark.parametrize("make", [tables.accumulation_tables, tables.accumulation_extras, tables.gradient_table,
                                  tables.checkpointing_table, tables.runs_table, tables.limits_table,
                                  tables.fill_table, tables.batch_tables, tables.grid_and_limits])  # fmt: skip
def test_tables_without_rows_have_no_lines(make: Any) -> None:
    assert not any(table.cells for table in make(replace(experiment("accumulation"), rows=[])))


def test_quartiles_tell_samples_apart_per_token() -> None:
    one = {"step_ms": [10.0, 10.0, 11.0, 12.0, 12.0], "tokens_per_step": 100}
    assert middle(one) == "10.0–12.0"  # noqa: RUF001
    assert not apart(one, {"step_ms": [24.0] * 3, "tokens_per_step": 200}), "twice the tokens in twice the time"
    assert apart(one, {"step_ms": [25.0] * 3, "tokens_per_step": 200})
    assert middle({"step_ms": [7.0], "tokens_per_step": 1}) == "7.00–7.00"  # noqa: RUF001


def test_cells_are_empty_where_a_row_has_no_such_value() -> None:
    row = {"kind": "gradients", "relative_error": 1.5e-7}
    assert words.error_cell(row) == "1.5e-07" and words.step_cell(row) == words.held_cell(row) == "\N{EN DASH}"
    assert words.found_cell(row) == "\N{EN DASH}"
    assert words.found_cell({"largest": 1024, "bounded": True}) == "1,024 (bound)"
