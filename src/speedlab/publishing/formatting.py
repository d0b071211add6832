"""How numbers are written for people: units, digits, the words for what is absent. It knows values, not records."""

from __future__ import annotations

from typing import Any

NOTHING = "–"  # a value that does not exist, never 0  # noqa: RUF001
NO_CLEAR_DIFFERENCE = "no clear difference"


def count(value: float | None) -> str:
    """27648.2 -> "27,648"."""
    return NOTHING if value is None else f"{value:,.0f}"


def quartile_range(q1: float | None, q3: float | None) -> str:
    """The two middle quarters of the samples, "27,590–27,702"."""  # noqa: RUF002
    return NOTHING if q1 is None or q3 is None else f"{count(q1)}–{count(q3)}"  # noqa: RUF001


def three_digits(value: float | None) -> str:
    """Three significant digits without an exponent: 3.46, 27.6, 412, 1,240."""
    if value is None:
        return NOTHING
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:,.0f}"


def gib(byte_count: float | None) -> str:
    """Bytes as GiB, the unit in the heading: "26.2"."""
    return NOTHING if byte_count is None else three_digits(byte_count / 2**30)


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f} %"


def ratio(value: float | None, *, clear: bool | None) -> str:
    """A speed-up as "2.21x", or that it cannot be told from the spread."""
    if value is None:
        return NOTHING
    return f"{three_digits(value)}x" if clear else NO_CLEAR_DIFFERENCE


def substitution(values: dict[str, Any]) -> str:
    """What ran in place of what was asked for, and why."""
    return f"{values['field']} {values['used']} instead of {values['asked']}: {values['reason']}"
