"""Marks on a clock that only moves when the work says so, and the order of events on a GPU that is not there."""

import gc

import pytest
import torch
from model_helper import CPU

from speedlab.measuring import stopwatch as module
from speedlab.measuring.stopwatch import Stopwatch, seconds_of, synchronize
from speedlab.measuring.variant import time_steps
from speedlab.recipe import Recipe

CUDA = torch.device("cuda")


class Clock:
    """Stands in for the `time` module of the stopwatch."""

    def __init__(self):
        self.seconds = 100.0

    def perf_counter(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that writes down what is asked of it, and whose clock is the number of steps done: 5 ms each."""
    happened = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self):
            self.at = happened.count("step")
            happened.append("mark")

        def elapsed_time(self, end):
            happened.append("read")
            return 5.0 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: happened.append("synchronize"))
    return happened


def test_each_sample_is_the_time_between_two_marks(clock):
    watch = Stopwatch(CPU)
    for seconds in (0.0, 0.010, 0.025, 3.0):
        clock.seconds += seconds
        watch.mark()
    clock.seconds += 50.0  # after the window
    assert watch.step_ms() == pytest.approx([10.0, 25.0, 3_000.0])


def test_one_mark_is_no_sample(clock):
    watch = Stopwatch(CPU)
    assert watch.step_ms() == []
    watch.mark()
    assert watch.step_ms() == []


def test_time_steps_times_each_step_and_nothing_before_or_after(clock):
    spent = iter([0.1, 0.2, 0.1, 0.4, 99.0])

    def step(batches):
        clock.seconds += next(batches)

    assert time_steps(step, spent, CPU, 4) == pytest.approx([100.0, 200.0, 100.0, 400.0])
    assert next(spent) == 99.0


def test_tokens_per_second_do_not_depend_on_how_a_step_is_split_into_micro_batches(clock):
    rates = []
    for recipe in (Recipe(micro_batch=16, accumulation=1), Recipe(micro_batch=4, accumulation=4)):

        def step(batches, recipe=recipe):
            for _ in range(recipe.accumulation):
                clock.seconds += 0.1 * recipe.micro_batch / 16

        step_ms = time_steps(step, iter([]), CPU, 3)
        rates += [recipe.tokens_per_step * 1e3 / ms for ms in step_ms]
    assert rates == pytest.approx([163_840.0] * 6)


def test_on_a_gpu_the_host_waits_before_the_first_mark_and_after_the_last_and_never_between(gpu):
    step_ms = time_steps(lambda batches: gpu.append("step"), iter([]), CUDA, 3)
    assert gpu == [
        "synchronize", "mark", "step", "mark", "step", "mark", "step", "mark", "synchronize", "read", "read", "read",
    ]  # fmt: skip
    assert step_ms == [5.0, 5.0, 5.0]


def test_a_watcher_is_opened_and_closed_on_an_idle_gpu_outside_the_marks(gpu):
    class Watcher:
        def __enter__(self):
            gpu.append("open")

        def __exit__(self, *error):
            gpu.append("close")

    time_steps(lambda batches: gpu.append("step"), iter([]), CUDA, 2, Watcher())
    done = [event for event in gpu if event != "read"]
    assert done == ["synchronize", "open", "mark", "step", "mark", "step", "mark", "synchronize", "close"]


def test_on_a_gpu_long_events_are_timed_between_two_waits(gpu, clock):
    def call():
        gpu.append("call")
        clock.seconds += 30.0

    assert seconds_of(call, CUDA) == pytest.approx(30.0)
    assert gpu == ["synchronize", "call", "synchronize"]


def test_a_cpu_is_never_asked_to_synchronize(monkeypatch, clock):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: pytest.fail("a CPU has nothing to wait for"))
    synchronize(CPU)
    time_steps(lambda batches: None, iter([]), CPU, 2)
    assert seconds_of(lambda: None, CPU) == 0.0


def test_the_garbage_collector_rests_inside_the_window_and_works_again_even_after_an_error(clock):
    seen = []

    def step(batches):
        seen.append(gc.isenabled())
        if len(seen) == 3:
            raise RuntimeError("in the window")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="in the window"):
        time_steps(step, iter([]), CPU, 5)
    assert seen == [False] * 3 and gc.isenabled()
