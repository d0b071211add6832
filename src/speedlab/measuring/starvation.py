"""How long the device stands still because its batch is not there. It knows nothing of how batches are made.

A pass of its own, like that of `loader_wait`, but without waiting for the device: a host that runs ahead may load while
the device still works, and then nothing was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from speedlab.measuring.stopwatch import Stopwatch, synchronize


@dataclass(frozen=True, kw_only=True)
class Starvation:
    """Milliseconds of each batch, on the clock of the device: from the end of the work queued before it until it is
    there (`wait_ms`), and from then until the next one is asked for and all its work is done (`work_ms`)."""

    wait_ms: list[float]
    work_ms: list[float]

    @property
    def share(self) -> float:
        """The part of the time in which the device waited for data."""
        return sum(self.wait_ms) / (sum(self.wait_ms) + sum(self.work_ms))


class MarkedBatches(Iterator[Any]):
    """Hands on batches and marks, in the stream of the device, when each is asked for and when it is there."""

    def __init__(self, batches: Iterator[Any], device: torch.device) -> None:
        self._batches, self.stopwatch = batches, Stopwatch(device)

    def __next__(self) -> Any:
        self.stopwatch.mark()
        batch = next(self._batches)
        self.stopwatch.mark()
        return batch


def starvation(
    step: Callable[[Iterator[Any]], Any], batches: Iterator[Any], device: torch.device, steps: int
) -> Starvation:
    """Take `steps` steps and see how long the device waits for each batch. The first begins on an idle device, where
    nothing can hide its loading, and is left out."""
    synchronize(device)
    marked = MarkedBatches(batches, device)
    for _ in range(steps + 1):
        step(marked)
    marked.stopwatch.mark()
    between = marked.stopwatch.step_ms()
    waits, works = between[0::2], between[1::2]
    skip = len(waits) // (steps + 1)  # batches of one step
    return Starvation(wait_ms=waits[skip:], work_ms=works[skip:])
