"""Verdicts on losses that are made up: equal, near, far, not finite."""

import json
import math

import pytest

from speedlab.ladder import Rung
from speedlab.measuring.contract import judge

BEFORE = [10.8, 7.3, 6.4]
REFERENCE = Rung(key="baseline", title="Baseline", contract="reference")
IDENTICAL = Rung(key="mask", title="Mask", contract="identical", change={"causal_mask": "on_the_fly"})
ROUNDING = Rung(key="tf32", title="TF32", contract="rounding", tolerance=0.01, change={"matmul_precision": "high"})
TRAINING = Rung(key="batch", title="Batch", contract="training", change={"micro_batch": 32})
BAD = [math.nan, math.inf, -math.inf]


def moved(step, by):
    losses = list(BEFORE)
    losses[step] += by
    return losses


def test_the_first_rung_is_the_reference():
    assert judge(REFERENCE, None, None, BEFORE) == ("reference", None)


def test_identical_means_bit_for_bit():
    verdict, detail = judge(IDENTICAL, "baseline", BEFORE, list(BEFORE))
    assert verdict == "passed" and detail["largest_difference"] == 0.0 and detail["tolerance"] == 0.0
    assert detail["before"] == "baseline" and detail["losses_before"] == BEFORE
    verdict, detail = judge(IDENTICAL, "baseline", BEFORE, [10.8, 7.3, math.nextafter(6.4, 7)])
    assert verdict == "failed" and detail["largest_difference"] > 0 and "baseline" in detail["note"]


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize(
    ("by", "verdict"), [(0.009, "passed"), (-0.009, "passed"), (0.011, "failed"), (-0.011, "failed")]
)
def test_rounding_allows_the_tolerance_at_every_step_in_both_directions(step, by, verdict):
    found, detail = judge(ROUNDING, "mask", BEFORE, moved(step, by))
    assert found == verdict
    assert detail["largest_difference"] == pytest.approx(abs(by)) and detail["tolerance"] == 0.01
    assert (detail["note"] is None) == (verdict == "passed")
    if verdict == "failed":
        assert "0.011" in detail["note"] and "0.01" in detail["note"] and "mask" in detail["note"]


def test_differences_do_not_average_out():
    assert judge(ROUNDING, "mask", BEFORE, [10.8 + 0.02, 7.3 - 0.02, 6.4])[0] == "failed"


def test_training_compares_nothing_and_keeps_both_curves():
    verdict, detail = judge(TRAINING, "vocab", BEFORE, [9.0, 8.0, 7.0])
    assert verdict == "differs" and detail["losses_before"] == BEFORE and detail["note"]
    assert detail["largest_difference"] is None


@pytest.mark.parametrize("rung", [REFERENCE, IDENTICAL, ROUNDING, TRAINING], ids=lambda rung: rung.contract)
@pytest.mark.parametrize("bad", BAD)
def test_a_loss_that_is_not_finite_fails_every_contract(rung, bad):
    before, losses_before = (None, None) if rung is REFERENCE else ("mask", BEFORE)
    for step in range(3):
        losses = list(BEFORE)
        losses[step] = bad
        verdict, detail = judge(rung, before, losses_before, losses)
        assert verdict == "failed"
        assert f"step {step + 1}" in detail["note"] and "not finite" in detail["note"]
        json.dumps(detail, allow_nan=False)


def test_only_the_first_of_several_bad_losses_is_named():
    _, detail = judge(ROUNDING, "mask", BEFORE, [10.8, math.nan, math.nan])
    assert "step 2" in detail["note"]
    _, detail = judge(ROUNDING, "mask", BEFORE, [math.nan, 7.3, 6.4])
    assert "step 1" in detail["note"]


@pytest.mark.parametrize("rung", [IDENTICAL, ROUNDING, TRAINING], ids=lambda rung: rung.contract)
@pytest.mark.parametrize("bad", BAD)
def test_losses_to_compare_with_that_are_not_finite_are_no_comparison_and_no_poison(rung, bad):
    verdict, detail = judge(rung, "mask", [10.8, bad, bad], BEFORE)
    assert verdict == "failed" and "mask" in detail["note"]
    json.dumps(detail, allow_nan=False)  # a record holds finite numbers only


def test_curves_of_different_lengths_are_a_mistake_of_the_program():
    with pytest.raises(ValueError, match="2 losses"):
        judge(ROUNDING, "mask", BEFORE, [10.8, 7.3])
