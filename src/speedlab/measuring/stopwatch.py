"""Time per step without making the host wait inside the window."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Marks step boundaries and gives the milliseconds between neighbouring marks.

    On CUDA a mark is an event in the current stream, so the work is timed and not its launch, and nothing waits. On
    a CPU the work is done when the call returns, so a mark is the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list = []

    def mark(self) -> None:
        """Record a step boundary. The first mark opens the window; let it follow a synchronize."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def step_ms(self) -> list[float]:
        """Milliseconds between the marks, one fewer than marks. Waits for the device, so call it after the window."""
        synchronize(self.device)
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self.device.type == "cuda":
            return [start.elapsed_time(end) for start, end in pairs]
        return [1e3 * (end - start) for start, end in pairs]


def synchronize(device: torch.device) -> None:
    """Wait for all work on `device`; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call, device: torch.device) -> float:
    """Wall-clock seconds of one call with a synchronize at both ends: for compile and other long single events."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start
