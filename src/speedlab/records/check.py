"""Checks on the values of a record; each raises `BadInput` naming the field. It knows JSON, not measurements."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from speedlab.errors import BadInput

Check = Callable[[str, Any], None]  # (field name, value); raises BadInput

# Larger than any count of bytes, FLOP/s or microseconds that a machine could report.
LARGEST_NUMBER = 1e24


def refuse(field: str, value: object, must: str) -> BadInput:
    """The error for one field, its value cut short so that the message stays one line."""
    shown = " ".join(repr(value).split())
    return BadInput(f"record field {field} is {shown if len(shown) <= 60 else shown[:57] + '...'}: it must be {must}")


def number(*, minimum: float = 0.0, above: bool = False) -> Check:
    """A finite number of at least `minimum`, or above it."""

    def check(field: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(field, value, "a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise refuse(field, value, "a finite number")
        if value < minimum or value > LARGEST_NUMBER or (above and value == minimum):
            raise refuse(field, value, f"a number {'above' if above else 'of at least'} {minimum:g}")

    return check


def whole(*, minimum: int = 0) -> Check:
    def check(field: str, value: Any) -> None:
        if type(value) is not int or not minimum <= value <= LARGEST_NUMBER:
            raise refuse(field, value, f"a whole number of at least {minimum}")

    return check


def text(field: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise refuse(field, value, "a text that is not empty")


def matching(pattern: str, description: str) -> Check:
    def check(field: str, value: Any) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise refuse(field, value, description)

    return check


def one_of(choices: Iterable[str]) -> Check:
    choices = tuple(choices)

    def check(field: str, value: Any) -> None:
        if not isinstance(value, str) or value not in choices:
            raise refuse(field, value, f"one of {', '.join(choices)}")

    return check


def optional(check: Check) -> Check:
    """The same check, with null allowed."""

    def checked(field: str, value: Any) -> None:
        if value is not None:
            check(field, value)

    return checked


def list_of(check: Check) -> Check:
    def checked(field: str, value: Any) -> None:
        if not isinstance(value, list):
            raise refuse(field, value, "a list")
        for index, item in enumerate(value):
            check(f"{field}[{index}]", item)

    return checked


def table_of(check: Check) -> Check:
    """A JSON object with any names, each value checked."""

    def checked(field: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise refuse(field, value, "an object")
        for name, item in value.items():
            text(f"{field} (a name in it)", name)
            check(f"{field}.{name}", item)

    return checked


def fields_of(required: dict[str, Check], extra: dict[str, Check] | None = None) -> Check:
    """A JSON object with these names; those in `extra` may be absent, others are refused."""
    known = required | (extra or {})

    def checked(field: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise refuse(field, value, "an object")
        for name in value:
            if name not in known:
                raise BadInput(f"record field {field}.{name} is unknown: {field} holds {', '.join(known)}")
        for name, check in known.items():
            if name in value:
                check(f"{field}.{name}", value[name])
            elif name in required:
                raise BadInput(f"record field {field}.{name} is missing")

    return checked


def any_json(field: str, value: Any) -> None:
    """Any JSON value, as long as every number in it is finite."""
    if isinstance(value, dict):
        for name, item in value.items():
            any_json(f"{field}.{name}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            any_json(f"{field}[{index}]", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number(minimum=-LARGEST_NUMBER)(field, value)
    elif value is not None and not isinstance(value, str | bool):
        raise refuse(field, value, "a JSON value")


def json_object(field: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise refuse(field, value, "an object")
    any_json(field, value)


def utc_time(field: str, value: Any) -> None:
    """ISO 8601 with the zone: "2026-11-29T14:52:00Z"."""
    must = 'a time in UTC such as "2026-01-31T12:00:00Z"'
    if not isinstance(value, str):
        raise refuse(field, value, must)
    try:
        offset = datetime.fromisoformat(value).utcoffset()
    except ValueError:
        raise refuse(field, value, must) from None
    if offset != timedelta(0):
        raise refuse(field, value, must)
