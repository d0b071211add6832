"""The next batch travels while the present one is worked on; no buffer is written while anybody still reads it.

It knows nothing of corpora or loaders. What a copy, a stream and an event are is behind `Copies`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Batch = tuple[Tensor, ...]


@dataclass
class Slot:
    """Memory for one batch on both sides, and the two moments that decide when it may be written again.

    copied: the device copy is complete, so the host side may be filled again. released: the work that reads the device
    side is done, so a new copy may begin.
    """

    on_host: Batch
    on_device: Batch
    copied: Any
    released: Any


class Copies(Protocol):
    """What `DoubleBuffer` asks of a device."""

    def make_slot(self, batch: Batch) -> Slot: ...

    def fill_host(self, slot: Slot, batch: Batch) -> None:
        """Wait until the last copy out of `slot` is done, then write `batch` into its host side."""

    def start_copy(self, slot: Slot) -> None:
        """Queue the copy to the device, after the work that reads the device side, and mark its end."""

    def use(self, slot: Slot) -> None:
        """Let the work that is queued from now on wait for the copy."""

    def release(self, slot: Slot) -> None:
        """Mark the end of the work queued so far, which may read the device side."""


class CudaCopies:
    """Copies in a stream of their own, out of page-locked memory. Each wait but one is the device's, not the host's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def make_slot(self, batch: Batch) -> Slot:
        return Slot(
            on_host=tuple(torch.empty_like(part, pin_memory=True) for part in batch),
            on_device=tuple(torch.empty_like(part, device=self.device) for part in batch),
            copied=torch.cuda.Event(),
            released=torch.cuda.Event(),
        )

    def fill_host(self, slot: Slot, batch: Batch) -> None:
        slot.copied.synchronize()  # two batches ago: done long since, unless the host runs far ahead
        for target, part in zip(slot.on_host, batch, strict=True):
            target.copy_(part)

    def start_copy(self, slot: Slot) -> None:
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(slot.released)
            for target, part in zip(slot.on_device, slot.on_host, strict=True):
                target.copy_(part, non_blocking=True)
            slot.copied.record(self.stream)

    def use(self, slot: Slot) -> None:
        torch.cuda.current_stream(self.device).wait_event(slot.copied)

    def release(self, slot: Slot) -> None:
        slot.released.record(torch.cuda.current_stream(self.device))


class DoubleBuffer(Iterator[Batch]):
    """Iterates over the batches of `batches`, tensors in host memory, as tensors on the device, one copy ahead.

    A batch is valid until the next one is asked for: its memory is used again then. All batches must have the shapes
    and types of the first one. Ends when `batches` ends.
    """

    def __init__(self, batches: Iterator[Batch], copies: Copies, *, slots: int = 2) -> None:
        self._batches, self._copies, self._num_slots = batches, copies, slots
        self._slots: list[Slot] = []
        self._ahead: list[Slot] = []  # copies under way, oldest first
        self._in_use: Slot | None = None
        self._started = 0

    def __next__(self) -> Batch:
        if self._in_use is not None:
            self._copies.release(self._in_use)
            self._in_use = None
        if not self._ahead:
            self._start_next()
        if not self._ahead:
            raise StopIteration
        self._in_use = self._ahead.pop(0)
        self._copies.use(self._in_use)
        self._start_next()
        return self._in_use.on_device

    def _start_next(self) -> None:
        """Send one more batch on its way, into the slot that has been free for longest."""
        batch = next(self._batches, None)
        if batch is None:
            return
        if len(self._slots) < self._num_slots:
            self._slots.append(self._copies.make_slot(batch))
        slot = self._slots[self._started % self._num_slots]
        self._started += 1
        self._copies.fill_host(slot, batch)
        self._copies.start_copy(slot)
        self._ahead.append(slot)
