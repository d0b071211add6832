"""Kernels on a line of time: how long communication took, and how much of it nothing else was hiding.

It works on plain intervals and knows neither torch nor the profiler that gave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

COMMUNICATION, OPTIMIZER = "communication", "optimizer"
# Two rows of optimizer kernels are two updates if at least this many other kernels lie between them.
FEWEST_BETWEEN_UPDATES = 20


class Span(NamedTuple):
    """One kernel on the card: its kind (as in a record's kernel table) and when it ran, in microseconds."""

    kind: str
    start_us: float
    end_us: float


Interval = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Interval]:
    """The times at which at least one of the spans ran, as intervals that do not touch, in order."""
    joined: list[list[float]] = []
    for start, end in sorted((span.start_us, span.end_us) for span in spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return [(start, end) for start, end in joined]


def length_us(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def overlap_us(one: Sequence[Interval], two: Sequence[Interval]) -> float:
    """Microseconds in which both ran; each as `union` gives it."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(two):
        start, end = max(one[i][0], two[j][0]), min(one[i][1], two[j][1])
        total += max(0.0, end - start)
        if one[i][1] < two[j][1]:
            i += 1
        else:
            j += 1
    return total


def split_steps(spans: Iterable[Span]) -> list[tuple[float, float, list[Span]]]:
    """(begin_us, end_us, spans) of each whole step, from one update of the weights to the next.

    An update is a row of optimizer kernels with few others between them. What ran before the first update belongs to
    no whole step.
    """
    ordered = sorted(spans, key=lambda span: span.start_us)
    begins: list[float] = []
    others = FEWEST_BETWEEN_UPDATES
    for span in ordered:
        if span.kind == OPTIMIZER:
            if others >= FEWEST_BETWEEN_UPDATES:
                begins.append(span.start_us)
            others = 0
        elif span.kind != COMMUNICATION:
            others += 1
    return [(begin, end, [span for span in ordered if begin <= span.start_us < end]) for begin, end in pairwise(begins)]


def summarize(spans: Iterable[Span]) -> dict[str, Any] | None:
    """Milliseconds of a step, the mean over all whole steps; None where there is no whole one.

    span_ms: from the update before to that of this step. compute_ms, communication_ms: while any such kernel ran.
    exposed_ms: communication while nothing was computed. idle_ms: while no kernel ran at all. first_exchange_ms: from
    the end of the update to the first communication. wait_ms: from the last kernel of the backward pass to the next
    update. optimizer_ms: of the optimizer's kernels. collectives: communication kernels of a step.
    """
    rows = [_one_step(*step) for step in split_steps(spans)]
    return {name: _mean([row[name] for row in rows]) for name in rows[0]} if rows else None


def _one_step(begin: float, end: float, step: list[Span]) -> dict[str, float | None]:
    exchange = [span for span in step if span.kind == COMMUNICATION]
    compute = [span for span in step if span.kind != COMMUNICATION]
    updates = [span for span in step if span.kind == OPTIMIZER]
    updated = max(span.end_us for span in updates)
    sending, computing = union(exchange), union(compute)
    return {
        "span_ms": (end - begin) / 1e3,
        "compute_ms": length_us(computing) / 1e3,
        "communication_ms": length_us(sending) / 1e3,
        "exposed_ms": (length_us(sending) - overlap_us(sending, computing)) / 1e3,
        "idle_ms": max(0.0, end - begin - length_us(union(step))) / 1e3,
        "first_exchange_ms": max(0.0, sending[0][0] - updated) / 1e3 if sending else None,
        "wait_ms": max(0.0, end - max(span.end_us for span in compute)) / 1e3,
        "optimizer_ms": length_us(union(updates)) / 1e3,
        "collectives": float(len(exchange)),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
