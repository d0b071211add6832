"""Rows of an experiment by kind, their speed, and the spread of their steps. It knows no page and measures nothing."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

from speedlab.publishing import formatting as form
from speedlab.records.experiment import Experiment

Row = dict[str, Any]


def of(experiment: Experiment, kind: str) -> list[Row]:
    """Measured rows of one kind."""
    return [row for row in experiment.measured if row["kind"] == kind]


def speed(row: Row) -> float:
    """Tokens per second of the median step."""
    return row["tokens_per_step"] / (median(row["step_ms"]) / 1e3)


def quartiles(row: Row) -> tuple[float, float]:
    """First and third quartile of the step times in ms: the middle half lies between them."""
    times = row["step_ms"]
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = quantiles(times, n=4, method="inclusive")
    return low, high


def apart(one: Row, other: Row) -> bool:
    """Whether the middle halves of two samples of steps do not meet, counted in time for each token."""
    (low, high), (other_low, other_high) = (
        tuple(ms / row["tokens_per_step"] for ms in quartiles(row)) for row in (one, other)
    )
    return low > other_high or high < other_low


def middle(row: Row) -> str:
    """The middle half of the steps in ms."""
    return _range(*quartiles(row))


def middle_speed(row: Row) -> str:
    """The same in thousand tokens per second."""
    return _range(*(row["tokens_per_step"] / ms for ms in reversed(quartiles(row))))


def _range(low: float, high: float) -> str:
    return f"{form.three_digits(low)}–{form.three_digits(high)}"  # noqa: RUF001
