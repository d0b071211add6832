"""The pages of the labs on data and on all levers: sources like every page's, figures and sentences of made-up rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab_pages_helper import LABS, run_page, watch
from records_helper import MACHINE_CPU, MACHINE_H200

from speedlab.labs.together import PLAIN
from speedlab.publishing import figures_of_labs_data as figures
from speedlab.publishing import tables_of_labs_data as tables
from speedlab.publishing import words_of_labs_data as words
from speedlab.publishing.plotting import alt_text, svg_text
from speedlab.records.experiment import Experiment, write_experiment

NAMES = {"data_pipeline": ("data_pipeline", "shapes_of_text"), "together": ("together", "together_hf")}
GIB = 2**30


def fed(what: str, ms: float, wait: float, **more: Any) -> dict[str, Any]:
    return {"what": what, "step_ms": [ms] * 4, "wait_ms": [wait] * 3, "work_ms": [ms - wait] * 3,
            "starved_share": wait / ms, "load_ms": 2.0, "tokens_per_step": 8192} | more  # fmt: skip


def shaped(name: str, share: float, ms: float) -> dict[str, Any]:
    return {"what": "shaping", "shaping": name, "step_ms": [ms] * 4, "positions": 32_768, "padding_share": share,
            "trained_tokens": round(32_768 * (1 - share)), "different_shapes": 1,
            "trained_tokens_per_s": 1e3 * 32_768 * (1 - share) / (4 * ms)}  # fmt: skip


def lever(what: str, variant: str, ms: float, held: float, planned: float, **more: Any) -> dict[str, Any]:
    return {"what": what, "variant": variant, "step_ms": [ms] * 3, "tokens_per_step": 8192, "starved_share": 0.01,
            "context_length": 4096, "predicted_needed_bytes": int(1.2 * planned * GIB),
            "losses": [10.5, 10.25], "micro_batch": 2, "accumulation": 1, "peak_allocated_bytes": int(held * GIB),
            "peak_reserved_bytes": int(1.1 * held * GIB), "predicted_peak_bytes": int(planned * GIB),
            "predicted_fits": None} | more  # fmt: skip


def failed(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: row[name] for name in row if name not in ("step_ms", "losses", "starved_share")}
    return kept | {"status": "out_of_memory", "reason": "it needs more memory than there is",
                   "peak_allocated_bytes": None}  # fmt: skip


ROWS: dict[str, list[dict[str, Any]]] = {
    "data_pipeline": [
        {"what": "resident", "source": "on the device", "workers": 0, "carried": "not at all", "step_ms": [18.0] * 4,
         "host_ms": 6.0, "tokens_per_step": 8192},
        fed("pipeline", 18.5, 0.1, source="memory_mapped", workers=0, carried="pinned_non_blocking"),
        fed("pipeline", 27.0, 9.0, source="tokenised_online", workers=0, carried="pinned_non_blocking"),
        *(fed("slow", ms, wait, workers=workers, delay_ms=18.0 * delay, delay_in_steps=delay, predicted_step_ms=said)
          for workers, delay, ms, wait, said in ((0, 0.0, 18.0, 0.1, 18.0), (0, 0.5, 18.2, 0.1, 18.0),
                                                 (0, 2.0, 42.0, 24.0, 42.0), (4, 0.0, 18.0, 0.1, 18.0),
                                                 (4, 8.0, 40.0, 22.0, 36.0))),
        fed("prefetch", 24.0, 6.0, workers=1, prefetch=1, hiccup_every=12, hiccup_steps=6.0, predicted_step_ms=25.5),
        fed("prefetch", 18.0, 0.1, workers=1, prefetch=8, hiccup_every=12, hiccup_steps=6.0, predicted_step_ms=18.0),
    ],
    "shapes_of_text": [shaped("pad_to_max", 0.9, 20.0), shaped("dynamic", 0.5, 10.0), shaped("packed", 0.0, 25.0)],
    "together": [
        {"what": "path", "budget_gib": 24, "number": 0, "question": "Does it fit as it is?", "change": {},
         "cost": "nothing", "needed_bytes": 400 * GIB, "peak_allocated_bytes": 330 * GIB, "fits": False},
        {"what": "path", "budget_gib": 24, "number": 1, "question": "Is attention fused?", "cost": "nothing",
         "change": {"attention": "sdpa"}, "needed_bytes": 20 * GIB, "peak_allocated_bytes": 16 * GIB, "fits": True},
        lever("whole", "baseline", 200.0, 80.0, 84.0),
        lever("whole", "FlashAttention", 100.0, 16.0, 16.0),
        lever("whole", "checkpointing", 260.0, 10.0, 11.0),
        failed(lever("budget", "FlashAttention", 1.0, 1.0, 26.0, budget_gib=24, predicted_fits=False)),
        lever("budget", "all three", 160.0, 14.0, 14.0, budget_gib=24, predicted_fits=True),
        lever("budget", "FlashAttention", 150.0, 15.0, 15.0, budget_gib=24, predicted_fits=True, micro_batch=1,
              accumulation=2),
        lever("budget", "all three", 170.0, 9.0, 9.0, budget_gib=16, predicted_fits=True),
    ],
    "together_hf": [
        {**lever("hf", variant, ms, held, 0.0), "model": model, "predicted_peak_bytes": None}
        for model in ("GPT-2", "Llama") for variant, ms, held in (("baseline", 300.0, 20.0), ("all", 75.0, 5.0))
    ],
}  # fmt: skip


def made(name: str, *, gpu: bool = True, rows: list[dict[str, Any]] | None = None) -> Experiment:
    return Experiment(
        name=name, session="0f1e2d3c4b5a", device="nvidia-h200" if gpu else "cpu", profile="full" if gpu else "smoke",
        machine=MACHINE_H200 if gpu else MACHINE_CPU, source_hash="0" * 64, utc="2026-11-29T12:00:00+00:00",
        rows=[{"status": "measured", "reason": None} | row for row in (ROWS[name] if rows is None else rows)],
    )  # fmt: skip


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    return watch(monkeypatch, tmp_path)


@pytest.mark.parametrize("stem", NAMES)
def test_a_page_without_records_says_so_and_runs_to_its_end(stem: str, shown: list[str]) -> None:
    run_page(stem)
    assert shown[-1] == f"{stem}: recorded"
    assert any("Nothing recorded yet" in text for text in shown)


@pytest.mark.parametrize("stem", NAMES)
def test_a_page_fills_itself_from_records(stem: str, shown: list[str], tmp_path: Path) -> None:
    for name in NAMES[stem]:
        write_experiment(tmp_path, made(name))
    run_page(stem)
    text = "\n".join(shown)
    assert "Nothing recorded yet" not in text and "**H200 SXM.**" in text and "| --- |" in text
    assert "no row of this experiment" not in text and words.NOTHING_TO_SAY not in text
    titles = [piece.partition(".**")[0].removeprefix("**") for piece in shown if "\n\n| " in piece]
    assert len(titles) >= 2 and len(set(titles)) == len(titles), "each table has a title of its own"


DRAWN = [
    ("data_pipeline", figures.starvation_timeline, "no worker, 36.0 ms slower: waiting 57.1 %"),
    ("data_pipeline", figures.starvation_timeline, "1 worker, hiccups, 1 ahead: waiting 25.0 %"),
    ("data_pipeline", figures.knee, "4 workers, 8.00 steps of delay: 40.0 ms, predicted 36.0"),
    ("shapes_of_text", figures.padding, "pad to max: 90.0 padding"),
    ("together", figures.levers, "FlashAttention: 81.9 thousand tokens per second, 16.0 GiB held"),
    ("together", figures.levers, "Predicted GiB from top to bottom: 84.0, 16.0, 11.0."),
    ("together_hf", figures.levers_of_other_models, "Llama: all: 109 thousand"),
]


@pytest.mark.parametrize(("name", "draw", "says"), DRAWN)
def test_figures_hold_the_numbers_of_their_rows_in_words_too(name: str, draw, says: str) -> None:
    figure = draw(made(name))
    assert says in alt_text(figure)
    assert svg_text(figure) == svg_text(draw(made(name))), "the same drawing for the same rows"


@pytest.mark.parametrize(("name", "draw"), dict.fromkeys((name, draw) for name, draw, _ in DRAWN))
def test_figures_without_rows_say_so(name: str, draw) -> None:
    assert "no row of this experiment was measured" in alt_text(draw(made(name, rows=[])))


def test_a_toy_without_counted_memory_is_drawn(shown: list[str]) -> None:
    rows = [row | {"peak_allocated_bytes": None} for row in ROWS["together"] if row["what"] == "whole"]
    assert len(figures.levers(made("together", gpu=False, rows=rows)).axes) == 1


SAID = [
    ("data_pipeline", words.pipeline_words, "on the device a step takes 18.0 ms, and the host needs 6.00"),
    ("data_pipeline", words.pipeline_words, "slowest 27.0 (tokenised online, no worker, pinned non"),
    ("data_pipeline", words.pipeline_words, "0 of them cannot be told from no loading at all"),
    ("data_pipeline", words.knee_words, "no worker from 2.00 steps of delay on, with 4 workers from 8.00"),
    ("data_pipeline", words.knee_words, "off by 11.1 % at most (measured longer)"),
    ("data_pipeline", words.prefetch_words, "1 ahead: 24.0 ms (24.0–24.0; predicted: at most 25.5)"),  # noqa: RUF001
    ("shapes_of_text", words.padding_words, "90.0 % of all positions are padding, and packing trains on 8.00x"),
    ("shapes_of_text", words.padding_words, "takes positions for tokens would see 0.80x"),
    ("together", words.together_words, "FlashAttention 2.00x the speed in 20.0 % of the memory"),
    ("together", words.plan_words, "off by 10.0 % at most. Of 4 runs on emulated cards"),
    ("together", words.plan_words, "said 4 rightly. Everything that was predicted to fit did."),
    ("together", words.budget_words, "on 24 GB (emulated) FlashAttention, 1 x 2 is the fastest that fits, 54.6"),
    ("together_hf", words.other_models_words, "GPT-2 is fastest with all, 4.00x its baseline; Llama is"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "say", "says"), SAID)
def test_sentences_follow_the_rows(name: str, say, says: str) -> None:
    assert says in say(made(name))


@pytest.mark.parametrize(("name", "say"), dict.fromkeys((name, say) for name, say, _ in SAID))
def test_sentences_without_rows_say_that_there_are_none(name: str, say) -> None:
    assert say(made(name, rows=[])) == words.NOTHING_TO_SAY


def test_what_the_spread_covers_is_not_called_longer() -> None:
    noisy = fed("pipeline", 19.0, 0.1, source="memory_mapped", workers=1, carried="pinned") | {
        "step_ms": [17.0, 21.0, 18.0, 20.0]
    }
    found = made("data_pipeline", rows=[*ROWS["data_pipeline"][:2], noisy])
    (table,) = tables.pipeline_table(found)
    assert [line[5] for line in table.cells] == ["\N{EN DASH}", "+2.8 %", words.UNCLEAR]
    assert "1 of them cannot be told from no loading at all" in words.pipeline_words(found)


def test_lengths_that_are_new_are_told_from_padding() -> None:
    rows = [row | {"step_ms": [10.0] * 9 + [90.0]} if row["shaping"] == "dynamic" else row
            for row in ROWS["shapes_of_text"]]  # fmt: skip
    said = words.padding_words(made("shapes_of_text", rows=rows))
    assert "1 of 10 steps took more than three times the median and 50.0 % of the time" in said
    assert tables.shaping_table(made("shapes_of_text", rows=rows))[0].cells[1][-2:] == ("1", "10")
    twice = [row | {"first_pass_ms": [30.0] * 4} for row in ROWS["shapes_of_text"]]
    assert "takes 3.00x the time of a second one" in words.padding_words(made("shapes_of_text", rows=twice))


def test_tables_put_what_is_compared_side_by_side() -> None:
    fast, said = tables.budget_tables(made("together"))
    assert fast.columns == ("variant", "24 GB, 2 x 1", "24 GB, 1 x 2", "16 GB, 2 x 1")
    assert fast.cells == (("FlashAttention", "out of memory", "54.6", "\N{EN DASH}"),
                          ("all three", "51.2", "\N{EN DASH}", "48.2"))  # fmt: skip
    assert said.cells[0][1:3] == ("31.2", "18.0, fits"), "the need with its reserve, and whether it was said to fit"
    (levers,) = tables.levers_table(made("together"))
    assert levers.cells[1][:4] == ("FlashAttention", "81.9", "2.00x", "16.0")
    assert levers.cells[1][-3:] == ("10.5000", "10.2500", "\N{EN DASH}")
    (others,) = tables.other_models_table(made("together_hf"))
    assert [line[:3] for line in others.cells] == [("baseline", "27.3", "1.00x"), ("all", "109", "4.00x")]
    assert [table.title for table in tables.path_tables(made("together"))] == ["The path for a card of 24 GB, by plan"]
    assert [line[-1] for line in tables.path_tables(made("together"))[0].cells] == ["no", "yes"]


def test_a_plan_that_was_wrong_is_marked() -> None:
    broken = failed(lever("budget", "all three", 1.0, 1.0, 14.0, budget_gib=24, predicted_fits=True))
    _, said = tables.budget_tables(made("together", rows=[broken]))
    assert said.cells == (("all three", "16.8, fits (wrong)"),)


@pytest.mark.parametrize(("name", "make"), [
    ("data_pipeline", tables.pipeline_table), ("data_pipeline", tables.slow_table),
    ("shapes_of_text", tables.shaping_table), ("together", tables.path_tables), ("together", tables.levers_table),
    ("together", tables.budget_tables), ("together_hf", tables.other_models_table),
])  # fmt: skip
def test_tables_without_rows_have_no_lines(name: str, make) -> None:
    assert not any(table.cells for table in make(made(name, rows=[])))


def test_a_promise_that_was_broken_is_named() -> None:
    broken = failed(lever("budget", "all three", 1.0, 1.0, 14.0, budget_gib=24, predicted_fits=True))
    said = words.plan_words(made("together", rows=[*ROWS["together"], broken]))
    assert "said 4 rightly" in said and "Predicted to fit, and did not: all three, 2 x 1." in said


def test_the_guess_of_the_page_is_about_the_model_that_is_measured() -> None:
    text = (LABS / "together.py").read_text()
    assert "350 million" in text and "8,192" in text
    assert (PLAIN.num_layers, PLAIN.embedding_width) == (24, 1024)
