"""What the pages of the labs on precision, attention and the compiler share: rows, medians, cells of their tables.

Nothing is measured here, and torch is not imported: rows come as they were recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median
from typing import Any

from speedlab.publishing import formatting as form
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
NOTHING_TO_SAY = "The rows that this sentence needs were not measured."
# PyTorch gives the reason in a line after this one, which older experiments lack.
HEADLINE = re.compile(r": [\w ]+ kernel not used because:$")


def find(experiment: Experiment, **fields: Any) -> list[Row]:
    """Measured rows that have these values."""
    return [row for row in experiment.measured if all(row.get(name) == fields[name] for name in fields)]


def first(experiment: Experiment, **fields: Any) -> Row | None:
    """The first measured row that has these values."""
    return next(iter(find(experiment, **fields)), None)


def typical(row: Row | None, name: str) -> float | None:
    """The median of the samples of this name; None without the row or without samples."""
    return median(row[name]) if row and row.get(name) else None


def milliseconds(row: Row | None, name: str) -> str:
    """Cell: the median of the samples, what came of the row instead, or a dash where nobody tried."""
    if row is not None and row["status"] != "measured":
        return row["status"].replace("_", " ")
    return form.three_digits(typical(row, name))


def mebibytes(value: float | None) -> str:
    return form.NOTHING if value is None else form.three_digits(value / 2**20)


def small(value: float | None) -> str:
    """Two digits of a number that may be far below one: 0.0077, 8.3e-07."""
    if value is None:
        return form.NOTHING
    return "0" if value == 0 else f"{value:#.2g}" if value >= 1e-4 else f"{value:.1e}"


def span(values: Iterable[float]) -> str:
    """Smallest and largest of ratios: "1.55x to 1.64x", or one of them where they read the same."""
    found = list(values)
    ends = [f"{form.three_digits(value)}x" for value in (min(found), max(found))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def first_then_list(sentences: list[str]) -> str:
    """The first sentence as it is, the others as a list below it."""
    return "\n".join([sentences[0], "", *(f"* {sentence}" for sentence in sentences[1:])])


def absent(rows: Iterable[Row], name: str = "kind") -> tuple[str, ...]:
    """Notes of a table: each reason once, with the things that it kept away."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["status"] not in ("measured", "out_of_memory"):
            things = reasons.setdefault(reason_of(row), [])
            things += [] if row[name] in things else [row[name]]
    return tuple(f"{', '.join(things)}: {reason}" for reason, things in reasons.items())


def reason_of(row: Row) -> str:
    """Why a row was not measured, without a heading whose text is missing."""
    return HEADLINE.sub(" (this record lacks PyTorch's reason)", row["reason"])
