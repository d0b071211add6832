"""Waiting for data is seen on a clock that the test moves; predictions hold against a simulated loader."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
import torch

from speedlab.labs import data_pipeline as lab
from speedlab.measuring import stopwatch
from speedlab.measuring.starvation import starvation

CPU = torch.device("cpu")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: self.now)

    def feed(self, load_ms: float, first_ms: float = 0.0) -> Iterator[int]:
        for number in count():
            self.now += (first_ms if number == 0 else load_ms) / 1e3
            yield number

    def step(self, batches: Iterator[int], work_ms: float = 8.0, micro_steps: int = 1) -> None:
        for _ in range(micro_steps):
            next(batches)
            self.now += work_ms / micro_steps / 1e3


def test_waits_and_works_are_told_apart_and_the_cold_start_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = starvation(clock.step, clock.feed(2.0, first_ms=500.0), CPU, 4)
    assert found.wait_ms == pytest.approx([2.0] * 4) and found.work_ms == pytest.approx([8.0] * 4)
    assert found.share == pytest.approx(0.2)
    assert starvation(clock.step, clock.feed(0.0), CPU, 3).share == 0.0


def test_micro_batches_of_one_step_are_waited_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = starvation(lambda batches: clock.step(batches, micro_steps=2), clock.feed(1.0, 99.0), CPU, 3)
    assert found.wait_ms == pytest.approx([1.0] * 6) and found.share == pytest.approx(0.2)


def simulated_step(load_steps, workers: int, prefetch: int, batches: int = 1200) -> float:
    """Mean step, in steps of the device, of PyTorch's loader: batch i goes to worker i mod W, which begins it when it
    is free and when batch i - W x prefetch was taken."""
    free, taken = [0.0] * workers, []
    for number in range(batches):
        asked = taken[number - workers * prefetch] if number >= workers * prefetch else 0.0
        worker = number % workers
        free[worker] = max(free[worker], asked) + load_steps(number)
        taken.append(max(free[worker], taken[-1] + 1.0 if taken else 0.0))
    half = batches // 2
    return (taken[-1] - taken[half - 1]) / (batches - half)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("delay", [0.0, 0.5, 0.9, 1.0, 1.5, 3.0])
def test_the_knee_is_where_a_simulated_loader_has_it(workers: int, delay: float) -> None:
    expected = simulated_step(lambda number: delay * workers, workers, 2)
    assert lab.predicted_step_ms(10.0, 3.0, 10.0 * delay * workers, workers) == pytest.approx(10.0 * expected, rel=0.01)


def test_without_workers_the_host_loads_and_queues_one_after_the_other() -> None:
    assert lab.predicted_step_ms(10.0, 3.0, 5.0, 0) == 10.0  # hidden behind the device
    assert lab.predicted_step_ms(10.0, 3.0, 9.0, 0) == 12.0
    assert lab.predicted_step_ms(10.0, 10.0, 9.0, 0) == 19.0  # on a CPU nothing is hidden


@pytest.mark.parametrize("prefetch", [*lab.PREFETCHES, 3, 5])
def test_hiccups_hide_behind_so_many_batches(prefetch: int) -> None:
    def load(number: int) -> float:
        return lab.HICCUP_STEPS if number % lab.HICCUP_EVERY == 0 else 0.0

    found = simulated_step(load, 1, prefetch)
    assert lab.predicted_with_hiccups_ms(10.0, prefetch) == pytest.approx(10.0 * found, rel=0.01)
