"""Rows of an experiment by kind, their speed, and the spread of their steps. It knows no page and measures nothing."""

from __future__ import annotations

from statistics import median
from typing import Any

from speedlab.publishing import formatting as form
from speedlab.records import stats
from speedlab.records.experiment import Experiment

Row = dict[str, Any]


def of(experiment: Experiment, kind: str) -> list[Row]:
    """Measured rows of one kind."""
    return [row for row in experiment.measured if row["kind"] == kind]


def tokens_per_s(row: Row) -> float:
    """Tokens per second of the median step."""
    return row["tokens_per_step"] / (median(row["step_ms"]) / 1e3)


def apart(one: Row, other: Row) -> bool:
    """Whether the speeds of two rows differ clearly, by the rule of the ladders (`stats.times_faster`)."""
    work = other["tokens_per_step"] / one["tokens_per_step"]
    return stats.times_faster(one["step_ms"], other["step_ms"], work=work).clear


def middle(row: Row) -> str:
    """The middle half of the steps in ms."""
    steps = stats.quartiles(row["step_ms"])
    return _range(steps.q1, steps.q3)


def middle_speed(row: Row) -> str:
    """The same in thousand tokens per second."""
    steps = stats.quartiles(row["step_ms"])
    return _range(row["tokens_per_step"] / steps.q3, row["tokens_per_step"] / steps.q1)


def _range(low: float, high: float) -> str:
    return f"{form.three_digits(low)}–{form.three_digits(high)}"  # noqa: RUF001
