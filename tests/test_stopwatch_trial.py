"""What each trial's window holds, on a clock that only steps, evaluations and starting loaders move."""

import numpy as np
import pytest
from model_helper import CPU, TINY, lively_weights

from speedlab.measuring import stopwatch, stopwatch_trial
from speedlab.measuring.stopwatch_trial import TRIALS, Trial, trial_rows
from speedlab.training.distributed import Place

STEP_MS, EVALUATION_MS, KEPT_MS, START_MS = 10.0, 700.0, 20.0, 100.0
STEPS = 30
BY_HAND = {
    "training_only": STEPS * STEP_MS,
    "evaluation_every_10": STEPS * STEP_MS + 3 * EVALUATION_MS,
    "evaluation_every_5": STEPS * STEP_MS + 6 * EVALUATION_MS,
    "persistent_workers": STEPS * STEP_MS + 6 * KEPT_MS,
    "restarted_after": STEPS * STEP_MS,
    "short_epochs": STEPS * STEP_MS + 3 * START_MS,
    "short_epochs_kept": STEPS * STEP_MS,
}


class Clock:
    ms = 0.0

    def perf_counter(self):
        return self.ms / 1e3


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()

    class Step:
        device, recipe = CPU, TINY

        def __call__(self, batches):
            next(batches)
            clock.ms += STEP_MS

    class Stream:
        started = False

        def __init__(self, tokens, **options):
            pass

        def start(self):
            clock.ms += 0.0 if self.started else START_MS
            self.started = True

        def close(self):
            self.started = False

        def __next__(self):
            assert self.started

    def move(ms):
        clock.ms += ms

    monkeypatch.setattr(stopwatch, "time", clock)
    monkeypatch.setattr(stopwatch_trial, "start_variant", lambda *arguments: (Step(), None))
    monkeypatch.setattr(stopwatch_trial, "start_fresh", lambda device: None)
    monkeypatch.setattr(stopwatch_trial, "BatchStream", Stream)
    monkeypatch.setattr(stopwatch_trial, "evaluate_as_published", lambda step, windows, *, workers: move(EVALUATION_MS))
    monkeypatch.setattr(stopwatch_trial, "_kept_evaluation", lambda *arguments: lambda: move(KEPT_MS))
    return clock


TOKENS = np.arange(2_000, dtype=np.int64) % TINY.vocab_size


def test_each_window_holds_what_its_trial_says_and_nothing_else(clock):
    rows = list(trial_rows(TINY, {}, TOKENS, Place(device=CPU), steps=STEPS))
    assert {row["key"]: row["window_ms"] for row in rows} == pytest.approx(BY_HAND)
    assert [row["key"] for row in rows] == [trial.key for trial in TRIALS] == list(BY_HAND)
    assert all(row["steps"] == STEPS and row["tokens_per_step"] == TINY.tokens_per_step for row in rows)


def test_a_real_model_goes_through_every_trial(monkeypatch):
    monkeypatch.setattr(stopwatch_trial, "WORKERS", 0)  # worker processes are tested with the stream
    short = [
        Trial(key="all", title="all", evaluate_every=1, workers=kind, epoch_steps=1) for kind in ("new", "persistent")
    ]
    monkeypatch.setattr(stopwatch_trial, "TRIALS", short)
    weights = lively_weights(TINY)
    rows = list(trial_rows(TINY, weights, TOKENS, Place(device=CPU), steps=2))
    assert len(rows) == 2 and all(row["window_ms"] > 0 for row in rows)
