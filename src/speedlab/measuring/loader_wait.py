"""How long a step waits for its data. A pass of its own, so that the timed window holds no clock around the loader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from speedlab.measuring.stopwatch import synchronize


@dataclass(frozen=True, kw_only=True)
class LoaderWait:
    """What data costs in one step.

    loader_wait_ms: from asking for the batches of a step until they are on the device, with nothing else running
    there; the median over steps. step_ms: the median step without these pauses. kernel_ms: the time that the kernels
    and copies of a step take on the GPU; None on a CPU.
    """

    loader_wait_ms: float
    step_ms: float
    kernel_ms: float | None = None

    @property
    def gpu_idle_share(self) -> float | None:
        """The share of a step in which the GPU runs nothing; None on a CPU.

        Kernels that overlap count twice, so several streams make this too small, never less than 0.
        """
        return None if self.kernel_ms is None else max(0.0, 1.0 - self.kernel_ms / self.step_ms)

    @property
    def loader_share(self) -> float:
        """The share of a step spent waiting for the loader: measured on a CPU, the most it can be on a GPU.

        A GPU that still has work queued does not wait while the host loads, so it waits no longer than it idles.
        """
        share = min(1.0, self.loader_wait_ms / self.step_ms)
        return share if self.gpu_idle_share is None else min(share, self.gpu_idle_share)

    def as_dict(self) -> dict[str, float | None]:
        return {
            "loader_wait_ms": self.loader_wait_ms,
            "loader_share": self.loader_share,
            "step_ms": self.step_ms,
            "kernel_ms": self.kernel_ms,
            "gpu_idle_share": self.gpu_idle_share,
        }


class TimedBatches(Iterator[Any]):
    """Hands on the batches of a stream and adds up the seconds that each took to be there, device included.

    It waits for the device before and after each batch: what was queued before is no part of it, its copy is.
    """

    def __init__(self, batches: Iterator[Any], device: torch.device) -> None:
        self._batches, self._device = batches, device
        self.seconds = 0.0

    def __next__(self) -> Any:
        synchronize(self._device)
        start = time.perf_counter()
        batch = next(self._batches)
        synchronize(self._device)
        self.seconds += time.perf_counter() - start
        return batch


def loader_wait_ms(
    step: Callable[[Iterator[Any]], Any], batches: Iterator[Any], device: torch.device, steps: int
) -> float:
    """Milliseconds that one step spends on its batches, all micro-batches together: the median of `steps` steps."""
    waits_ms = []
    for _ in range(steps):
        timed = TimedBatches(batches, device)
        step(timed)
        waits_ms.append(1e3 * timed.seconds)
    return median(waits_ms)
