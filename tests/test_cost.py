"""Seconds, joules and money per million tokens, from records whose speed and energy are known."""

from __future__ import annotations

import csv
import io
import json

import pytest
from records_helper import make_record, skipped_record

from speedlab.errors import BadInput
from speedlab.publishing.cost import check_price, cost_table, priced_rows, render_with_cost
from speedlab.records.rows import report_rows

TOKENS = 8 * 1024  # a step of the helper's records; 40 of them are timed


@pytest.fixture
def rows():
    return report_rows(
        [
            make_record("baseline", step_ms=250.0, energy_j=6_000.0),
            make_record("tensor_cores", step_ms=125.0, energy_j=3_000.0),
            make_record("fused_adamw", step_ms=120.0),
            skipped_record("data_parallel"),
        ]
    )


def test_energy_of_a_row_is_that_of_all_timed_steps_over_their_tokens(rows):
    joules = {row["rung"]: row["energy_j_per_million_tokens"] for row in rows}
    assert joules["baseline"] == pytest.approx(6_000.0 / (40 * TOKENS) * 1e6)
    assert joules["tensor_cores"] == pytest.approx(joules["baseline"] / 2)
    assert joules["fused_adamw"] is None and joules["data_parallel"] is None
    assert rows[0]["tokens_per_joule"] == pytest.approx(40 * TOKENS / 6_000.0)


def test_energy_of_a_longer_window_is_shared_among_its_own_steps():
    [row] = report_rows([make_record("baseline", step_ms=250.0, energy_j=1_000.0, energy_steps=200)])
    assert row["tokens_per_joule"] == pytest.approx(200 * TOKENS / 1_000.0)


def test_money_is_time_at_the_price(rows):
    [base, *_, skipped] = priced_rows(rows, 2.5)
    hours = 1e6 / (TOKENS / 0.250) / 3_600
    assert base["seconds_per_million_tokens"] == pytest.approx(hours * 3_600)
    assert base["price_per_million_tokens"] == pytest.approx(2.5 * hours)
    assert skipped["seconds_per_million_tokens"] is None and skipped["price_per_million_tokens"] is None
    assert priced_rows(rows, 0)[0]["price_per_million_tokens"] == 0


def test_a_row_of_four_gpus_costs_four_times_the_price():
    one, four = priced_rows(
        report_rows([make_record("data_parallel_1", step_ms=100.0), make_record("data_parallel_4", step_ms=100.0)]), 2.0
    )
    assert four["seconds_per_million_tokens"] == pytest.approx(one["seconds_per_million_tokens"] / 4)
    assert four["price_per_million_tokens"] == pytest.approx(one["price_per_million_tokens"])


@pytest.mark.parametrize("price", [-1.0, -1e-9, float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_price_that_is_none_is_refused_in_one_line(price, rows):
    for call in (lambda: check_price(price), lambda: render_with_cost(rows, "json", price)):
        with pytest.raises(BadInput, match="price per hour is") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_table_writes_small_amounts_without_exponent_and_absent_ones_as_dashes(rows):
    table = cost_table(priced_rows(rows, 0.35))
    cells = {line[0]: line[1:] for line in table.cells}
    assert cells["baseline"] == ("30.5", "18,311", "54.6", "0.00297")
    assert cells["fused_adamw"][1] == "–" and set(cells["data_parallel"]) == {"–"}  # noqa: RUF001
    assert "0.35 an hour for one GPU" in table.notes[0]


def test_a_table_without_any_energy_says_that_no_counter_was_read():
    table = cost_table(priced_rows(report_rows([make_record()]), 1.0))
    assert any("no energy counter" in note for note in table.notes)


def test_a_toy_says_so_and_is_priced_by_the_machine():
    table = cost_table(priced_rows(report_rows([make_record(device="cpu", step_ms=20.0)]), 1.0))
    assert "for one machine" in table.notes[0] and "its speeds mean nothing" in table.notes[-1]


@pytest.mark.parametrize("format", ["table", "markdown"])
def test_people_get_the_report_and_then_the_cost(rows, format):
    text = render_with_cost(rows, format, 2.5)
    assert text.index("ms/step") < text.index("cost of a million tokens") < text.index("tokens/J")
    assert render_with_cost([], format, 2.5) == ""


def test_programs_get_the_cost_as_more_keys_of_each_row(rows):
    parsed = json.loads(render_with_cost(rows, "json", 2.5))
    assert [row["price_per_hour"] for row in parsed] == [2.5] * 4 and parsed == priced_rows(rows, 2.5)
    cells = list(csv.DictReader(io.StringIO(render_with_cost(rows, "csv", 2.5))))
    assert float(cells[0]["price_per_million_tokens"]) == pytest.approx(parsed[0]["price_per_million_tokens"])
    assert cells[3]["price_per_million_tokens"] == ""
