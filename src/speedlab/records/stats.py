"""One statistic for the whole book: the median of per-step times, with quartiles. No numpy: it loads too slowly."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from speedlab.records.record import Record

# 95 % of 400 resamples leaves ten on either side of the interval; a record of 40 steps then takes 4 ms.
CONFIDENCE = 0.95
RESAMPLES = 400


@dataclass(frozen=True)
class Quartiles:
    """q1 <= median <= q3, in the unit of the samples."""

    q1: float
    median: float
    q3: float


@dataclass(frozen=True)
class Ratio:
    """How many times faster: the ratio of two medians with the interval that resampling gives it."""

    value: float
    low: float
    high: float
    clear: bool  # False: print "no clear difference" instead


def quartiles(samples: Sequence[float]) -> Quartiles:
    """Quartiles with linear interpolation between samples, as numpy computes them; at least one sample."""
    if len(samples) == 1:
        return Quartiles(samples[0], samples[0], samples[0])
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return Quartiles(q1, median, q3)


def step_ms(record: Record) -> Quartiles | None:
    """Milliseconds per step; None where nothing was timed."""
    return quartiles(record.step_ms) if record.step_ms else None


def tokens_per_s(record: Record) -> Quartiles | None:
    """Tokens per second over all processes. The slow quartile of the step times is the low one here."""
    steps = step_ms(record)
    if steps is None or record.tokens_per_step is None:
        return None
    tokens_ms = record.tokens_per_step * 1e3
    return Quartiles(tokens_ms / steps.q3, tokens_ms / steps.median, tokens_ms / steps.q1)


def tokens_per_joule(record: Record) -> float | None:
    """Tokens over the joules that the GPUs took for them; None where no energy was counted."""
    if not record.energy_j or record.tokens_per_step is None:
        return None
    return energy_steps(record) * record.tokens_per_step / record.energy_j or None


def energy_steps(record: Record) -> int:
    """How many steps took `energy_j`: the timed ones, or those of a longer window of their own."""
    return record.energy_steps or len(record.step_ms)


def ratio_interval(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float]:
    """Bootstrap interval (95 %) of median(slow) / median(fast), from medians of samples drawn with replacement.

    Always the same for the same samples: they seed their own draws.
    """
    medians = zip(_resampled_medians(tuple(slow)), _resampled_medians(tuple(fast)), strict=True)
    ratios = sorted(one / two for one, two in medians)
    cut = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return ratios[cut], ratios[-1 - cut]


@lru_cache(maxsize=1024)  # a rung is the after of one ratio, the before of the next and part of one over all
def _resampled_medians(samples: tuple[float, ...]) -> tuple[float, ...]:
    source = random.Random(repr(samples))
    return tuple(statistics.median(source.choices(samples, k=len(samples))) for _ in range(RESAMPLES))


def drift(records: Iterable[Record]) -> float:
    """Relative change between the start and the end of a session of the rung that was timed twice; 0.0 without one."""
    for record in records:
        change = own_drift(record)
        if change is not None:
            return abs(change)
    return 0.0


def own_drift(record: Record) -> float | None:
    """Relative change of the median step of a rung that was timed twice, positive where it got slower."""
    if not record.drift_step_ms or not record.step_ms:
        return None
    return statistics.median(record.drift_step_ms) / statistics.median(record.step_ms) - 1


def speedup(before: Record, after: Record, *, drift: float = 0.0) -> Ratio | None:
    """Tokens/s of `after` over those of `before`, None where one of them was not timed.

    `drift` is what the machine itself changed during the session (see the function of that name). The difference is
    clear when it exceeds the spread, that is, when the quartile ranges do not meet, and when the bootstrap interval,
    widened by the drift, excludes 1.
    """
    if not before.step_ms or not after.step_ms or before.tokens_per_step is None or after.tokens_per_step is None:
        return None
    return times_faster(before.step_ms, after.step_ms, work=after.tokens_per_step / before.tokens_per_step, drift=drift)


def times_faster(before: Sequence[float], after: Sequence[float], *, work: float = 1.0, drift: float = 0.0) -> Ratio:
    """The same of two rows of samples, times of steps of which the second does `work` times as much."""
    one, two = quartiles(before), quartiles(after)
    low, high = (work * bound for bound in ratio_interval(before, after))
    apart = work * one.q1 > two.q3 or work * one.q3 < two.q1
    return Ratio(
        value=work * one.median / two.median,
        low=low,
        high=high,
        clear=apart and not low * (1 - drift) <= 1 <= high * (1 + drift),
    )
