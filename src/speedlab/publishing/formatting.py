"""How numbers are written for people: units, digits, the words for what is absent. It knows values, not records."""

from __future__ import annotations

import math
from typing import Any

from speedlab.errors import BadInput, check_choice

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


def significant(value: float | None) -> str:
    """Three significant digits of a number that may be far below 1, without an exponent: 0.00143, 0.0721, 3.46."""
    if value is None:
        return NOTHING
    if value == 0 or abs(value) >= 1:
        return three_digits(value)
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def gib(byte_count: float | None) -> str:
    """Bytes as GiB, the unit in the heading: "26.2"."""
    return NOTHING if byte_count is None else three_digits(byte_count / 2**30)


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f} %"


def ratio(value: float | None, *, clear: bool | None) -> str:
    """A speed-up as "2.21x", or that it cannot be told from the spread."""
    if value is None:
        return NOTHING
    return f"{_times(value)}x" if clear else NO_CLEAR_DIFFERENCE


def interval(low: float | None, high: float | None) -> str:
    """The interval of a ratio: "2.19–2.23"."""  # noqa: RUF002
    return NOTHING if low is None or high is None else f"{_times(low)}–{_times(high)}"  # noqa: RUF001


def _times(value: float) -> str:
    """Three digits, and one more near 1: a small difference may be a clear one."""
    text = three_digits(value)
    return f"{value:.3f}" if text in ("0.99", "1.00") and value != 1.0 else text


def drift(change: float) -> str:
    """What a rung took the second time, at the end of its session: 0.012 is 1.2 % more."""
    return f"timed again at the end: {percent(abs(change))} {'slower' if change > 0 else 'faster'}"


def substitution(values: dict[str, Any]) -> str:
    """What ran in place of what was asked for, and why."""
    return f"{values['field']} {values['used']} instead of {values['asked']}: {values['reason']}"


def format_value(key: str, value: Any) -> str:
    """One value of a report row as it stands in a sentence, with its unit. The unit follows from the key.

    tokens_per_s 27648 -> "27.6 k tokens/s"; step_ms_median 242.31 -> "242 ms"; peak_reserved_bytes -> "26.2 GiB";
    speedup_total 11.34 -> "11.3x"; mfu, ceiling_fraction 0.431 -> "43.1 %"; compile_s -> "41.2 s"; words as they are.
    """
    if value is None or isinstance(value, bool | list | dict):
        raise BadInput(f"{key} is {value!r}: a sentence can hold a number or a word")
    if isinstance(value, str):
        return value
    if key.startswith("tokens_per_s"):
        return f"{three_digits(value / 1000)} k tokens/s" if value >= 1000 else f"{three_digits(value)} tokens/s"
    if key.endswith("_bytes"):
        return f"{gib(value)} GiB"
    if key == "energy_j_per_million_tokens":
        return f"{three_digits(value)} J per million tokens"
    if key == "tokens_per_joule":
        return f"{three_digits(value)} tokens/J"
    if key.startswith(("speedup_", "scaling", "over_predicted")):
        return f"{three_digits(value)}x"
    if key in ("mfu", "ceiling_fraction", "drift"):
        return percent(value)
    if key.startswith("step_ms"):
        return f"{three_digits(value)} ms"
    if key.endswith("_s"):
        return f"{three_digits(value)} s"
    return f"{value:,}"


def words_of(row: dict[str, Any], key: str) -> str:
    """One value of a report row in words. `BadInput` when the row has no such key or no value for it.

    A ratio that the spread does not bear out reads "no clear difference". `verdict_step` and `verdict_total` say what
    a ratio means: "2.21x faster", "1.04x slower" or "no clear difference".
    """
    verdicts = {"verdict_step": "speedup_step", "verdict_total": "speedup_total"}
    check_choice("key", key, (*row, *verdicts))
    source = verdicts.get(key, key)
    value = row[source]
    if value is None:
        why = f"{row['status']}: {row['reason']}" if row.get("reason") else row["status"]
        raise BadInput(f"the record has no {source} ({why})")
    if row.get(f"{source}_clear") is False:
        return NO_CLEAR_DIFFERENCE
    if key not in verdicts:
        return format_value(key, value)
    return f"{format_value(source, max(value, 1 / value))} {'faster' if value > 1 else 'slower'}"
