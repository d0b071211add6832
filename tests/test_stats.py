"""Medians, quartiles and intervals against numpy, and the words "no clear difference" where they belong."""

from __future__ import annotations

import numpy as np
import pytest
from records_helper import make_record, skipped_record, spread

from speedlab.records import stats


@pytest.mark.parametrize(
    "samples", [[3.0], [1.0, 2.0], [5.0, 1.0, 4.0, 2.0], list(np.random.default_rng(0).gamma(2, 5, 41))]
)
def test_quartiles_are_those_of_numpy(samples):
    ours = stats.quartiles(samples)
    assert [ours.q1, ours.median, ours.q3] == pytest.approx(np.quantile(samples, [0.25, 0.5, 0.75]))


def test_tokens_per_s_is_tokens_over_the_median_time_and_its_quartiles_are_in_order():
    record = make_record(step_ms=[100.0] * 20 + [200.0] * 20 + [400.0] * 20)
    tokens = stats.tokens_per_s(record)
    assert tokens.median == pytest.approx(8 * 1024 / 0.2)
    assert tokens.q1 == pytest.approx(8 * 1024 / 0.4) and tokens.q3 == pytest.approx(8 * 1024 / 0.1)
    assert stats.tokens_per_s(skipped_record("bfloat16")) is None


@pytest.mark.parametrize(("micro_batch", "accumulation"), [(8, 1), (2, 4)])
def test_the_same_work_in_the_same_time_is_the_same_speed(micro_batch, accumulation):
    recipe = make_record().recipe | {"micro_batch": micro_batch, "accumulation": accumulation}
    record = make_record(recipe=recipe, tokens_per_step=8 * 1024)
    assert stats.tokens_per_s(record).median == pytest.approx(8 * 1024 / 0.25)


def test_the_interval_agrees_with_an_independent_bootstrap():
    draw = np.random.default_rng(1)
    slow, fast = draw.normal(103, 2, 40), draw.normal(100, 2, 40)
    low, high = stats.ratio_interval(slow.tolist(), fast.tolist())
    ratios = np.median(draw.choice(slow, (20_000, 40)), axis=1) / np.median(draw.choice(fast, (20_000, 40)), axis=1)
    reference_low, reference_high = np.quantile(ratios, [0.025, 0.975])
    assert low == pytest.approx(reference_low, abs=3e-3) and high == pytest.approx(reference_high, abs=3e-3)
    assert (low, high) == stats.ratio_interval(slow.tolist(), fast.tolist())


def test_a_large_difference_is_clear_in_both_directions():
    slow, fast = make_record(step_ms=250.0), make_record("tensor_cores", step_ms=125.0)
    ratio = stats.speedup(slow, fast)
    assert ratio.clear and ratio.value == pytest.approx(2.0) and ratio.low < 2.0 < ratio.high
    assert stats.speedup(fast, slow).clear and stats.speedup(fast, slow).value == pytest.approx(0.5)


def test_a_difference_inside_the_spread_is_not_clear():
    one, two = make_record(step_ms=spread(250.0, relative=0.02)), make_record(step_ms=spread(251.0, relative=0.02))
    assert not stats.speedup(one, two).clear
    assert not stats.speedup(one, one).clear


def test_a_difference_smaller_than_the_drift_of_the_machine_is_not_clear():
    one, two = make_record(step_ms=spread(250.0, relative=1e-4)), make_record(step_ms=spread(252.0, relative=1e-4))
    assert stats.speedup(one, two).clear
    drifted = make_record(step_ms=spread(250.0, relative=1e-4), drift_step_ms=spread(253.0, relative=1e-4))
    assert stats.drift([two, drifted]) == pytest.approx(0.012)
    assert not stats.speedup(one, two, drift=stats.drift([drifted])).clear
    assert stats.drift([one, two]) == 0.0
    assert stats.own_drift(drifted) == pytest.approx(0.012) and stats.own_drift(one) is None


def test_speed_counts_tokens_not_steps():
    """Four times the batch in twice the time is twice the speed."""
    before, after = make_record("padded_vocab", step_ms=50.0), make_record("batch_size", step_ms=100.0)
    assert after.tokens_per_step == 4 * before.tokens_per_step
    ratio = stats.speedup(before, after)
    assert ratio.value == pytest.approx(2.0) and ratio.low < 2.0 < ratio.high


def test_nothing_is_clear_about_a_rung_that_was_not_timed():
    assert stats.speedup(make_record(), skipped_record("bfloat16")) is None
