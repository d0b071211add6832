"""What a running session tells whoever shows its progress. It knows no terminal and no notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Event:
    """Progress for whoever shows it. kind: "estimate", "rung" (begins), "row" (a record is there), "note"."""

    kind: str
    text: str
    rung: str | None = None
    done: int = 0
    total: int = 0


Report = Callable[[Event], None]


def say_nothing(event: Event) -> None:
    """A `Report` for callers that show no progress."""
