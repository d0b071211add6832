"""Seconds to a loss: on curves that are known, and on a toy that learns text it is then not judged on."""

import json

import numpy as np
import pytest

from speedlab.device import capabilities
from speedlab.labs import loss_against_time as lab
from speedlab.labs.loss_against_time import levels, seconds_to, split
from speedlab.measuring.workbench import Workbench
from speedlab.profile import SMOKE


def row(losses: list[float]) -> dict:
    return {"status": "measured", "seconds": [2.0 * index for index in range(len(losses))], "validation_loss": losses}


def test_the_seconds_lie_on_the_line_between_two_points() -> None:
    curve = row([10.0, 6.0, 6.5, 4.0])
    assert seconds_to(curve, 8.0) == pytest.approx(1.0)
    assert seconds_to(curve, 6.0) == pytest.approx(2.0), "first time, whatever comes after"
    assert seconds_to(curve, 5.0) == pytest.approx(4.0 + 2.0 * 1.5 / 2.5)
    assert seconds_to(curve, 10.0) == 0.0 and seconds_to(curve, 3.9) is None


def test_the_levels_are_what_all_reached_what_the_best_reached_and_one_between() -> None:
    rows = [row([10.0, 6.1]), row([10.0, 5.05]), {"status": "error"}]
    assert levels(rows) == [6.25, 5.75, 5.25] and levels(rows[2:]) == []
    assert levels(rows[:1]) == [6.25]
    assert all(seconds_to(one, 6.25) is not None for one in rows[:2])
    assert seconds_to(rows[1], 5.25) is not None


def test_what_is_held_out_is_the_end_of_the_corpus_and_is_not_trained_on() -> None:
    tokens = np.arange(10_000)
    training, held = split(tokens, 9)
    assert held.shape == (32, 10) and held[-1, -1] == 9_999
    assert training[-1] + 1 == held[0, 0] and len(training) + held.size == 10_000
    assert split(np.arange(250), 9)[1].shape == (2, 10)
    assert split(np.arange(50), 9)[1].shape == (1, 10)


def test_a_toy_learns_and_its_curves_count_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "RECIPES", (("merged_qkv", 1.0), ("batch_size", 4.0)))
    monkeypatch.setattr(lab, "POINTS", 4)
    bench = Workbench(SMOKE, capabilities())
    small, large = lab.loss_against_time(bench, lambda text: None)
    json.dumps([small, large], allow_nan=False)
    for curve in (small, large):
        assert curve["status"] == "measured" and curve["updates"][0] == 0 and curve["seconds"][-1] >= lab.TOY_BUDGET_S
        assert curve["tokens"] == [updates * curve["tokens_per_step"] for updates in curve["updates"]]
        assert len(curve["train_loss"]) == len(curve["validation_loss"]) - 1 == len(curve["seconds"]) - 1
        assert curve["validation_loss"][0] == pytest.approx(np.log(1_001), abs=0.1), "an untrained model knows nothing"
        assert lab.final_loss(curve) < curve["validation_loss"][0]
    assert large["learning_rate"] == 4 * small["learning_rate"] and large["micro_batch"] == 4 * small["micro_batch"]
    assert lab.tokens_per_s(small) == pytest.approx(small["tokens"][-1] / small["seconds"][-1])


def test_a_recipe_that_diverges_keeps_the_points_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "RECIPES", (("merged_qkv", 1.0),))
    losses = iter([6.9, 6.5, float("nan")])
    monkeypatch.setattr(lab, "validation_loss", lambda step, windows: next(losses))
    [found] = lab.loss_against_time(Workbench(SMOKE, capabilities()), lambda text: None)
    assert found["status"] == "measured" and found["validation_loss"] == [6.9, 6.5]
    assert found["diverged_after_s"] > found["seconds"][-1] > 0
    json.dumps(found, allow_nan=False)
