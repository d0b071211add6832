"""The double buffer under a scheduler that runs queued work in every order that streams and events allow."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from speedlab.data.double_buffer import DoubleBuffer, Slot
from speedlab.data.stream import HOST_MEMORY, BatchStream


class Event:
    """Marks a place in a stream. `waits` false: nobody waits for it, the fault that the test is there to catch."""

    def __init__(self, waits: bool = True) -> None:
        self.waits, self.done = waits, True


class FakeDevice:
    """Two streams whose work is queued and run later, in a random order that respects streams and events."""

    def __init__(self, seed: int, *, guard_device: bool = True, guard_host: bool = True) -> None:
        self.random = random.Random(seed)
        self.streams: dict[str, list[tuple[Event | None, Callable[[], None]]]] = {"copy": [], "compute": []}
        self.guard_device, self.guard_host = guard_device, guard_host

    def make_slot(self, batch: tuple) -> Slot:
        return Slot(
            tuple(torch.full_like(part, -1) for part in batch), tuple(torch.full_like(part, -2) for part in batch),
            copied=Event(self.guard_host), released=Event(self.guard_device),
        )  # fmt: skip

    def fill_host(self, slot: Slot, batch: tuple) -> None:
        while slot.copied.waits and not slot.copied.done:
            assert self.run_one(), "the host waits for a copy that can never run"
        for target, part in zip(slot.on_host, batch, strict=True):
            target.copy_(part)

    def start_copy(self, slot: Slot) -> None:
        # A new mark each time: as on a real device, who waits already waits for the mark of before.
        wait, end = slot.released if slot.released.waits else None, Event(slot.copied.waits)
        slot.copied, end.done = end, False

        def copy() -> None:
            for target, part in zip(slot.on_device, slot.on_host, strict=True):
                target.copy_(part)
            end.done = True

        self.streams["copy"].append((wait, copy))

    def use(self, slot: Slot) -> None:
        self.streams["compute"].append((slot.copied, lambda: None))

    def release(self, slot: Slot) -> None:
        released = slot.released = Event(slot.released.waits)
        released.done = False

        def mark() -> None:
            released.done = True

        self.streams["compute"].append((None, mark))

    def launch(self, work: Callable[[], None]) -> None:
        self.streams["compute"].append((None, work))
        for _ in range(self.random.randrange(3)):
            self.run_one()

    def run_one(self) -> bool:
        ready = [queue for queue in self.streams.values() if queue and (queue[0][0] is None or queue[0][0].done)]
        if not ready:
            return False
        self.random.choice(ready).pop(0)[1]()
        return True


def read_by_the_device(seed: int, **faults: bool) -> list[int]:
    """What queued work reads from each batch, if each batch is the number of its turn."""
    device, seen = FakeDevice(seed, **faults), []
    batches = iter([(torch.full((3,), number), torch.full((2,), number)) for number in range(9)])
    for inputs, targets in DoubleBuffer(batches, device):
        device.launch(lambda inputs=inputs, targets=targets: seen.append((inputs.tolist(), targets.tolist())))
    while device.run_one():
        pass
    return [inputs[0] for inputs, targets in seen if inputs + targets == [inputs[0]] * 5]


@pytest.mark.parametrize("seed", range(40))
def test_every_batch_is_read_whole_and_in_order_whatever_runs_first(seed: int) -> None:
    assert read_by_the_device(seed) == list(range(9))


@pytest.mark.parametrize("fault", ["guard_device", "guard_host"])
def test_without_either_guard_some_order_reads_a_wrong_batch(fault: str) -> None:
    assert any(read_by_the_device(seed, **{fault: False}) != list(range(9)) for seed in range(40))


def test_the_stream_gives_the_same_batches_whatever_carries_them() -> None:
    import numpy as np

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = np.arange(2_000, dtype=np.uint16)
    given = []
    for host_memory in HOST_MEMORY:
        stream = BatchStream(tokens, micro_batch=4, context_length=10, host_memory=host_memory, device=device, seed=7)
        given.append([next(stream)[0].sum().item() for _ in range(60)])
    assert all(batches == given[0] for batches in given)
