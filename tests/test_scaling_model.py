"""The analytic model against sums worked out by hand, and its behaviour where the answer is known."""

import math
from itertools import pairwise

import pytest

from speedlab.scaling_model import (
    ALGORITHMS,
    Link,
    Step,
    all_reduce_s,
    best_all_reduce_s,
    fit,
    ring_bytes,
    step_s,
    strong_efficiency,
    weak_efficiency,
)

LINK = Link(bytes_per_s=100e9, latency_s=10e-6)
STEP = Step(compute_s=0.060, gradient_bytes=500e6, hidden=0.6)


def ring_by_hand(gpus, size, link):
    """A ring sends one n-th of the gradients in each of 2 (n - 1) rounds, one after another."""
    return sum(size / gpus / link.bytes_per_s + link.latency_s for _ in range(2 * (gpus - 1)))


@pytest.mark.parametrize("gpus", [2, 3, 4, 8, 64, 512])
def test_a_ring_is_its_rounds_added_up(gpus):
    assert all_reduce_s(gpus, 500e6, LINK, "ring") == pytest.approx(ring_by_hand(gpus, 500e6, LINK))
    assert ring_bytes(gpus, 500e6) == pytest.approx(2 * (gpus - 1) * 500e6 / gpus)


def test_a_tree_is_as_deep_as_the_logarithm_and_wins_where_latency_rules():
    assert all_reduce_s(8, 0.0, LINK, "tree") == pytest.approx(6 * 10e-6)
    assert all_reduce_s(9, 0.0, LINK, "tree") == pytest.approx(8 * 10e-6)
    assert all_reduce_s(512, 1e6, LINK, "tree") < all_reduce_s(512, 1e6, LINK, "ring")
    assert all_reduce_s(4, 1e9, LINK, "ring") < all_reduce_s(4, 1e9, LINK, "tree")
    for size in (1e3, 1e9):
        assert best_all_reduce_s(64, size, LINK) == min(all_reduce_s(64, size, LINK, name) for name in ALGORITHMS)


def test_one_gpu_exchanges_nothing_and_an_unknown_algorithm_is_refused():
    assert all_reduce_s(1, 500e6, LINK) == 0 and ring_bytes(1, 500e6) == 0
    assert step_s(STEP, 1, LINK) == STEP.compute_s
    with pytest.raises(ValueError, match="star"):
        all_reduce_s(2, 1.0, LINK, "star")


def test_an_exchange_shorter_than_what_hides_it_costs_nothing_and_the_rest_is_added():
    assert step_s(STEP, 2, LINK) == pytest.approx(0.060)  # 5 ms behind 36 ms
    slow = Link(bytes_per_s=10e9, latency_s=0.0)
    assert step_s(STEP, 2, slow) == pytest.approx(0.060 + 0.050 - 0.036)
    assert weak_efficiency(STEP, 2, slow) == pytest.approx(0.060 / 0.074)


def test_strong_scaling_divides_the_batch_but_not_the_fixed_part():
    step = Step(compute_s=0.060, fixed_s=0.010, gradient_bytes=0.0)
    free = Link(bytes_per_s=math.inf, latency_s=0.0)
    assert step_s(step, 4, free, batch_share=0.25) == pytest.approx(0.010 + 0.050 / 4)
    assert strong_efficiency(step, 4, free) == pytest.approx(0.060 / 4 / 0.0225)
    assert weak_efficiency(step, 512, free) == 1.0


def test_efficiency_never_rises_with_more_gpus():
    counts = [1, 2, 4, 8, 64, 512]
    for efficiency in (weak_efficiency, strong_efficiency):
        shares = [efficiency(STEP, gpus, Link(bytes_per_s=20e9)) for gpus in counts]
        assert shares[0] == pytest.approx(1.0)
        assert all(one >= two for one, two in pairwise(shares[1:]))


def test_fitting_returns_the_drag_that_made_the_points():
    true = Step(compute_s=0.060, gradient_bytes=500e6, drag_s=0.004)
    points = [(gpus, step_s(true, gpus, LINK)) for gpus in (1, 2, 4)]
    assert fit(STEP, LINK, points).drag_s == pytest.approx(0.004)
    assert fit(STEP, LINK, points[:1]) == STEP  # one GPU says nothing about several
    assert fit(STEP, LINK, [(2, 0.050)]).drag_s == 0.0  # faster than the model: no negative drag
