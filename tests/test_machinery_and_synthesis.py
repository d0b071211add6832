"""The tables of the pages on the machine and on all changes together, against arithmetic done by hand and records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from records_helper import make_record

from speedlab.cards import CARDS
from speedlab.ladder import NINE_STEPS
from speedlab.publishing.diagrams import alt_text
from speedlab.publishing.machinery import balance, machinery_tables, operations, rates_table, shortest
from speedlab.publishing.synthesis import SWITCHES, cheat_sheet, which_card
from speedlab.records.rows import report_rows

BOOK = Path(__file__).resolve().parents[1] / "book"
H200 = next(card for card in CARDS if card.slug == "nvidia-h200")


def row_of(table: str, start: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_feed_forward_matmul_by_hand() -> None:
    flops = 2 * 8192 * 768 * 3072
    moved = 2 * (8192 * 768 + 768 * 3072 + 8192 * 3072)
    row = row_of(machinery_tables()["machinery_ceilings"], "feed-forward, up")
    assert row[1] == f"{flops / moved:.0f}"
    assert row[-1] == f"{1e6 * flops / 989.5e12:.1f} A"


def test_the_optimizer_moves_seven_passes_of_all_weights() -> None:
    adamw = next(operation for operation in operations() if operation.name.startswith("AdamW"))
    assert adamw.bytes == pytest.approx(7 * 2 * (163_009_536 + 2 * 47 * 768), rel=0.001)
    assert shortest(adamw, H200) == f"{1e6 * adamw.bytes / 4.8e12:.0f} M"


def test_each_card_has_its_rates_and_a_dash_for_a_format_without_a_unit() -> None:
    table = rates_table().markdown()
    assert row_of(table, "T4")[1:] == ["8.1", "–", "–", "65", "203"]  # noqa: RUF001
    assert row_of(table, "H200")[1:5] == ["66.9", "494.7", "989.5", "989.5"]
    assert balance(H200) == pytest.approx(989.5 / 4.8)


def test_matmuls_are_bound_by_arithmetic_and_the_rest_by_traffic_as_the_page_says() -> None:
    lines = machinery_tables()["machinery_ceilings"].splitlines()[2:8]
    assert [set(re.findall(r" ([AM])(?= \|)", line)) for line in lines] == [{"A"}] * 3 + [{"M"}] * 3


def test_the_page_is_right_that_h100_and_h200_differ_in_the_rows_of_traffic_only() -> None:
    table = machinery_tables()["machinery_ceilings"]
    for start in ("head", "feed-forward", "attention output"):
        assert row_of(table, start)[-1] == row_of(table, start)[-2]
    for start in ("GELU", "LayerNorm", "AdamW"):
        assert row_of(table, start)[-1] != row_of(table, start)[-2]


def test_what_runs_on_which_card() -> None:
    table = which_card()
    header = row_of(table, "change")
    assert header[0] == "change" and "T4" in header and "H200 SXM" in header
    column = header.index("T4")
    assert row_of(table, "[Tensor Cores")[column] == "no"
    assert row_of(table, "[bfloat16]")[column] == "as float16_autocast"
    assert row_of(table, "[bfloat16]")[header.index("H200 SXM")] == "yes"


def test_the_cheat_sheet_takes_its_numbers_from_the_records() -> None:
    rows = report_rows([make_record("baseline", step_ms=500.0), make_record("causal_mask", step_ms=250.0)])
    row = row_of(cheat_sheet(rows, "nvidia-h200"), "[Causal mask")
    assert row[2] == "2.00x"
    assert "→" in row[3]
    assert row_of(cheat_sheet(rows, "nvidia-h200"), "[bfloat16]")[2] == "–"  # noqa: RUF001


def test_the_cheat_sheet_without_records_says_so() -> None:
    words = cheat_sheet([], "nvidia-h200")
    assert "not measured yet" in words and "x |" not in words


def test_the_cheat_sheet_has_every_change() -> None:
    assert list(SWITCHES) == [rung.key for rung in NINE_STEPS.rungs[1:]]


@pytest.mark.parametrize("page", ["machinery", "synthesis"])
def test_diagrams_on_a_page_have_the_alternative_text_of_the_list(page: str) -> None:
    words = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r"\{figure\} _generated/diagrams/(\w+)\.svg\n:name: \S+\n:alt: (.+)\n", words)
    assert words.count("{figure}") == len(found) > 0
    for name, alt in found:
        assert alt == alt_text(name)
