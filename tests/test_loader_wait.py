"""The time that a step waits for its data: on a clock that only the loader and the device move, then on a real step."""

import pytest
import torch
from model_helper import CPU, TINY, draw_weights, random_batches

from speedlab.measuring import loader_wait
from speedlab.measuring.loader_wait import LoaderWait, TimedBatches, loader_wait_ms
from speedlab.training.step import TrainingStep


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        seconds = 100.0
        queued = 0.0  # seconds of work that the device has before it

        def perf_counter(self):
            return self.seconds

        def synchronize(self, device):
            self.seconds += self.queued
            self.queued = 0.0

    clock = Clock()
    monkeypatch.setattr(loader_wait, "time", clock)
    monkeypatch.setattr(loader_wait, "synchronize", clock.synchronize)
    return clock


def batches(clock, *, load_s, copy_s=0.0):
    """Batches that take load_s on the host and leave a copy of copy_s to the device."""
    for number in range(1_000):
        clock.seconds += load_s
        clock.queued += copy_s
        yield number


def test_the_batches_of_a_step_are_counted_and_its_work_is_not(clock):
    def step(source):
        for _ in range(2):
            next(source)
            clock.seconds += 0.5

    assert loader_wait_ms(step, batches(clock, load_s=0.003), CPU, steps=5) == pytest.approx(6.0)


def test_work_that_was_queued_before_is_not_counted_and_the_copy_is(clock):
    def step(source):
        next(source)
        clock.queued += 7.0  # kernels of this step, still running when the next batch is asked for

    source = batches(clock, load_s=0.002, copy_s=0.001)
    assert loader_wait_ms(step, source, torch.device("cuda"), steps=4) == pytest.approx(3.0)


def test_one_slow_step_does_not_move_the_median(clock):
    def uneven():
        for number in range(5):
            clock.seconds += 9.0 if number == 2 else 0.004
            yield number

    assert loader_wait_ms(next, uneven(), CPU, steps=5) == pytest.approx(4.0)


def test_batches_are_handed_on_as_they_are_until_there_are_no_more():
    timed = TimedBatches(iter(["a", "b"]), CPU)
    assert list(timed) == ["a", "b"]


def test_on_a_cpu_the_wait_is_part_of_the_step():
    wait = LoaderWait(loader_wait_ms=3.0, step_ms=12.0)
    assert (wait.loader_share, wait.gpu_idle_share) == (0.25, None)
    assert wait.as_dict() == {
        "loader_wait_ms": 3.0, "loader_share": 0.25, "step_ms": 12.0, "kernel_ms": None, "gpu_idle_share": None
    }  # fmt: skip


def test_a_gpu_waits_for_the_loader_no_longer_than_it_idles():
    busy = LoaderWait(loader_wait_ms=30.0, step_ms=100.0, kernel_ms=95.0)
    assert busy.gpu_idle_share == pytest.approx(0.05) and busy.loader_share == busy.gpu_idle_share
    idle = LoaderWait(loader_wait_ms=30.0, step_ms=100.0, kernel_ms=40.0)
    assert (idle.gpu_idle_share, idle.loader_share) == (pytest.approx(0.6), pytest.approx(0.3))


def test_shares_stay_shares_when_kernels_overlap_or_the_pass_was_slow():
    assert LoaderWait(loader_wait_ms=1.0, step_ms=10.0, kernel_ms=11.0).gpu_idle_share == 0.0
    assert LoaderWait(loader_wait_ms=20.0, step_ms=10.0).loader_share == 1.0


def test_the_wait_of_a_real_step_is_within_it_and_changes_nothing():
    recipe = TINY.but(accumulation=2)
    stored = random_batches(recipe, 6)
    losses = []
    for wrap in (iter, lambda source: TimedBatches(iter(source), CPU)):
        step, source = TrainingStep(recipe, draw_weights(recipe), CPU), wrap(stored)
        losses.append([step(source).item() for _ in range(3)])
    assert losses[0] == losses[1]
    assert source.seconds > 0
