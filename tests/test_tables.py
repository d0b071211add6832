"""Tables say what the rows say, in each format, and label what others published."""

from __future__ import annotations

import csv
import io
import json

import pytest
from records_helper import make_record, skipped_record

from speedlab.errors import BadInput
from speedlab.ladder import NINE_STEPS, SIX_STEPS
from speedlab.publishing import formatting as form
from speedlab.publishing import tables
from speedlab.records.published import load, published_row, published_rows, sources
from speedlab.records.record import REMARK
from speedlab.records.rows import report_rows

SUBSTITUTION = {"field": "precision", "asked": "bfloat16", "used": "float16_autocast", "reason": "no | units"}


@pytest.fixture(scope="module")
def rows():
    return report_rows(
        [
            make_record("baseline", step_ms=250.0),
            make_record("causal_mask", step_ms=249.9),
            make_record("tensor_cores", step_ms=100.0, substitutions=[SUBSTITUTION], notes=["1 recompile"]),
            skipped_record("data_parallel", reason="1 GPU here,\n4 asked for"),
        ]
    )


def cells(table, rung):
    line = next(line for line in table.cells if line[0] == rung)
    return dict(zip(table.columns, line, strict=True))


def test_a_row_shows_speed_memory_ratios_and_verdict(rows):
    table = tables.ladder_table(rows)
    row = cells(table, "tensor_cores")
    assert row["tokens/s"] == "81,920" and row["ms/step"] == "100" and row["GiB reserved"] == "26.0"
    assert row["this step"] == "2.50x" and row["so far"] == "2.50x"
    assert row["contract"] == "rounding: passed"
    assert row["published tokens/s"] == "27,648"
    assert row["notes"] == "precision float16_autocast instead of bfloat16; 1 recompile"
    assert "precision float16_autocast instead of bfloat16: no | units" in table.notes
    assert cells(table, "baseline")["so far"] == "1.00x"
    assert cells(table, "baseline")["95 %"] == form.NOTHING and row["95 %"].startswith("2.4") and "2.5" in row["95 %"]


def test_the_row_that_was_timed_twice_says_how_it_drifted():
    rows = report_rows([make_record(step_ms=250.0, drift_step_ms=[255.0] * 40), make_record("causal_mask")])
    assert cells(tables.ladder_table(rows), "baseline")["notes"] == "timed again at the end: 2.0 % slower"
    assert cells(tables.ladder_table(rows), "causal_mask")["notes"] == ""


def test_a_difference_inside_the_spread_is_said_in_words(rows):
    assert cells(tables.ladder_table(rows), "causal_mask")["this step"] == "no clear difference"


def test_a_row_without_a_measurement_shows_its_reason_and_no_zero(rows):
    row = cells(tables.ladder_table(rows), "data_parallel")
    assert row["notes"] == "unavailable: 1 GPU here, 4 asked for"
    assert {row[name] for name in ("tokens/s", "ms/step", "GiB reserved", "MFU", "so far")} == {form.NOTHING}
    assert row["published tokens/s"] == "419,259 (4 GPUs)"


def test_published_figures_are_labelled_with_their_source(rows):
    for text in (tables.render(rows, "table"), tables.render(rows, "markdown")):
        assert "published: LLMs-from-scratch" in text and "not measured by this project" in text
    without = tables.ladder_table(rows, published=False)
    assert not any("published" in words for words in (*without.columns, *without.notes))


def test_a_toy_says_so_and_is_not_put_beside_published_figures():
    text = tables.render(report_rows([make_record(device="cpu", step_ms=20.0)]), "table")
    assert "its speeds mean nothing" in text and "published" not in text
    assert "MFU" not in text and "GiB" not in text  # nothing to say about them there


def test_a_flag_stands_in_the_notes_and_a_remark_only_in_the_rows_for_programs():
    rows = report_rows([make_record(notes=["clocks throttled in the timed window: power brake", f"{REMARK}SM clock"])])
    assert tables.row_note(rows[0]) == "clocks throttled in the timed window: power brake"
    assert json.loads(tables.render(rows, "json"))[0]["notes"][1] == f"{REMARK}SM clock"


def test_json_is_every_row_with_raw_numbers(rows):
    parsed = json.loads(tables.render(rows, "json"))
    assert parsed == rows
    assert parsed[0]["tokens_per_s"] == pytest.approx(32_768)
    assert json.loads(tables.render([], "json")) == []


def test_csv_has_the_keys_of_the_rows(rows):
    parsed = list(csv.DictReader(io.StringIO(tables.render(rows, "csv"))))
    assert [row["rung"] for row in parsed] == [row["rung"] for row in rows]
    assert list(parsed[0]) == list(rows[0])
    assert float(parsed[2]["tokens_per_s"]) == pytest.approx(rows[2]["tokens_per_s"])
    assert json.loads(parsed[2]["substitutions"]) == [SUBSTITUTION]
    assert parsed[3]["tokens_per_s"] == "" and parsed[3]["reason"] == "1 GPU here,\n4 asked for"


def test_markdown_keeps_its_columns_whatever_the_words(rows):
    table = tables.ladder_table(rows, titles=True)
    lines = table.markdown().splitlines()[: 2 + len(rows)]
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(table.columns) + 1}
    assert "no \\| units" in table.markdown() and "Tensor Cores through TF32" in table.markdown()
    assert lines[1].startswith("| --- | ---: |")


def test_text_is_aligned_and_csv_cells_are_those_of_the_table(rows):
    table = tables.ladder_table(rows)
    lines = table.text().splitlines()
    start = lines[2].index("tokens/s") + len("tokens/s")
    assert all(line[:start].rstrip()[-1].isdigit() for line in lines[4:7])
    assert list(csv.reader(io.StringIO(table.csv()))) == [list(table.columns), *map(list, table.cells)]


def test_one_table_for_each_device_and_ladder():
    several = report_rows([make_record(), make_record(ladder="six-steps"), make_record(device="cpu", step_ms=20.0)])
    assert [(g[0]["device"], g[0]["ladder"]) for g in tables.by_ladder(several)] == [
        ("cpu", "nine-steps"), ("nvidia-h200", "nine-steps"), ("nvidia-h200", "six-steps"),
    ]  # fmt: skip
    assert tables.render(several, "table").count("session 0f1e2d3c4b5a") == 3


def test_a_terminal_gets_the_same_cells(rows):
    from rich.console import Console

    console = Console(width=300, record=True, file=io.StringIO())
    console.print(tables.ladder_table(rows).rich())
    text = console.export_text()
    assert "no clear difference" in text and "[" not in text.replace("[1", "")
    for line in tables.ladder_table(rows).cells:
        assert line[0] in text and line[1] in text


def test_an_unknown_format_lists_the_known_ones(rows):
    with pytest.raises(BadInput, match="unknown format 'yaml': choose one of table, markdown, csv, json"):
        tables.render(rows, "yaml")


def test_published_rows_are_rungs_of_ours_with_the_figures_of_the_file():
    rows = published_rows("nine-steps")
    assert [row.tokens_per_s for row in rows] == [entry["tokens_per_s"] for entry in load()["ladder_a_a100"]]
    assert {row.rung for row in rows} <= set(NINE_STEPS.keys)
    assert all(row.label.startswith("published") and row.source.key == "raschka" for row in rows)
    # The published FlashAttention program has the joined q/k/v as well.
    assert published_row("nine-steps", "flash_attention") is None
    assert published_row("nine-steps", "merged_qkv").tokens_per_s == 91_901
    assert published_row("nine-steps", "data_parallel").label == "published, 4 x A100"


@pytest.mark.parametrize(
    ("card", "source", "rung", "tokens_per_s"),
    [
        ("A100", None, "baseline", 16 * 1024 / 1.040),
        ("A100", None, "padded_vocab", 16 * 1024 / 0.100),
        ("T4", None, "baseline", 4 * 1024 / 1.100),
        ("A100", "karpathy", "fused_adamw", 16 * 1024 / 0.090),
    ],
)
def test_published_milliseconds_become_tokens_of_their_own_batch(card, source, rung, tokens_per_s):
    row = published_row("six-steps", rung, card=card, source=source)
    assert row.tokens_per_s == pytest.approx(tokens_per_s)
    assert row.rung in SIX_STEPS.keys and row.source is sources()[source or "six_steps"]


def test_what_nobody_published_has_no_rows():
    assert published_rows("beyond") == () and published_rows("nine-steps", card="T4") == ()
    assert tables.published_table("six-steps", card="T4").cells[1][2] == "4,551"


@pytest.mark.parametrize(
    ("value", "words"),
    [(3.456, "3.46"), (9.996, "10.0"), (27.64, "27.6"), (99.96, "100"), (1240.4, "1,240"), (None, "–")],  # noqa: RUF001
)
def test_three_digits(value, words):
    assert form.three_digits(value) == words
