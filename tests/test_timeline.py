"""Intervals on a line of time, against counting microsecond by microsecond."""

import random
from itertools import pairwise

import pytest

from speedlab.measuring.timeline import Span, length_us, overlap_us, split_steps, summarize, union


def random_spans(seed, kinds=("fused", "communication"), count=30):
    draw = random.Random(seed)
    starts = [draw.randrange(200) for _ in range(count)]
    return [Span(draw.choice(kinds), float(start), float(start + draw.randrange(1, 12))) for start in starts]


def ticks(spans):
    """The whole microseconds that any span covers."""
    return {tick for span in spans for tick in range(int(span.start_us), int(span.end_us))}


@pytest.mark.parametrize("seed", range(20))
def test_union_and_overlap_are_those_of_sets(seed):
    spans = random_spans(seed)
    sending = [span for span in spans if span.kind == "communication"]
    computing = [span for span in spans if span.kind == "fused"]
    assert length_us(union(spans)) == len(ticks(spans))
    assert overlap_us(union(sending), union(computing)) == len(ticks(sending) & ticks(computing))
    joined = union(spans)
    assert all(one[1] < two[0] for one, two in pairwise(joined))


def test_nothing_covers_nothing():
    assert union([]) == [] and length_us([]) == 0 and overlap_us([], [(0.0, 1.0)]) == 0
    assert summarize([]) is None


def one_step(start):
    """A step of 100 us: update 0-4, gap to 5, kernels to 85, a gap to 90, exchange at 40-50 (hidden) and 80-88."""
    update = [Span("optimizer", start + 2.0 * i, start + 2.0 * i + 2.0) for i in range(2)]
    kernels = [Span("matmul, Tensor Cores", start + 5.0 + 2.0 * i, start + 7.0 + 2.0 * i) for i in range(40)]
    exchange = [
        Span("communication", start + 40.0, start + 50.0),
        Span("communication", start + 80.0, start + 88.0),
    ]
    return update + kernels + exchange


def test_what_communication_hides_and_what_it_does_not():
    spans = [span for number in range(4) for span in one_step(100.0 * number)]
    assert [(begin, end) for begin, end, _ in split_steps(spans)] == [(0.0, 100.0), (100.0, 200.0), (200.0, 300.0)]
    found = summarize(reversed(spans))
    assert found == pytest.approx(
        {
            "span_ms": 0.100, "compute_ms": 0.084, "communication_ms": 0.018, "exposed_ms": 0.003, "idle_ms": 0.013,
            "first_exchange_ms": 0.036, "wait_ms": 0.015, "optimizer_ms": 0.004, "collectives": 2.0,
        }
    )  # fmt: skip


def test_a_step_without_an_exchange_has_no_first_one():
    spans = [span for number in range(3) for span in one_step(100.0 * number) if span.kind != "communication"]
    found = summarize(spans)
    assert found["communication_ms"] == found["exposed_ms"] == found["collectives"] == 0
    assert found["first_exchange_ms"] is None


def test_casts_between_the_kernels_of_one_update_do_not_make_it_two():
    spans = [span for number in range(3) for span in one_step(100.0 * number)]
    spans += [Span("element-wise", 100.0 * number + 1.5, 100.0 * number + 1.9) for number in range(3)]
    assert len(split_steps(spans)) == 2
