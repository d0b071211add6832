"""The sweep over the shapes of a session: what it times, under which names, and what it does not time twice."""

import json

import pytest
import torch

from speedlab.device import Capabilities
from speedlab.measuring import counting, sweep, traffic
from speedlab.measuring.prediction import predict
from speedlab.measuring.sweep import measure_shapes
from speedlab.recipe import Recipe
from speedlab.records.record import CHECKS

MACHINE = Capabilities(device_type="cpu", cores=1)
CEILINGS = {
    "matmul_flops_per_s": {"float32": 1e10, "bfloat16": 1e10}, "copy_bytes_per_s": 1e10,
    "utc": "2026-11-29T12:00:00+00:00",
}  # fmt: skip
SMALL = Recipe(num_layers=2, embedding_width=32, num_heads=2, context_length=16, micro_batch=2, vocab_size=51)


@pytest.fixture
def timed(monkeypatch):
    """Every call runs once and takes a made-up time of its own."""
    calls = []

    def seconds(call, device):
        calls.append(call())
        return 1e-3 * len(calls)

    monkeypatch.setattr(sweep, "_seconds", seconds)
    return calls


RECIPES = [
    SMALL, SMALL.but(precision="bfloat16"), SMALL.but(attention="sdpa", qkv_projection="merged", layers="native"),
    SMALL.but(precision="bfloat16_autocast", compile="default"), SMALL.but(vocabulary="padded", dropout=0.0),
]  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_rate_that_a_prediction_looks_up_is_measured(recipe, timed):
    """A prediction from the sweep alone: neither the square matmul nor, apart from the long streams, the copy."""
    measured = measure_shapes(CEILINGS, [recipe], MACHINE)
    without = measured | {"matmul_flops_per_s": {"float32": 1e-9, "bfloat16": 1e-9}}
    assert predict(recipe, without)["step_ms"] == pytest.approx(predict(recipe, measured)["step_ms"])
    wanted = {
        traffic_kind for traffic_kind in {p.kind for p in counting.passes_of(recipe)} if traffic_kind != "streamed"
    }
    assert {key.partition("/")[0] for key in measured["pass_bytes_per_s"]} == wanted


def test_the_record_takes_what_the_sweep_measures(timed):
    measured = measure_shapes(CEILINGS, RECIPES, MACHINE)
    CHECKS["ceilings"]("ceilings", json.loads(json.dumps(measured)))
    CHECKS["ceilings"]("ceilings", CEILINGS)  # and what an earlier method measured


def test_rates_are_amounts_over_seconds(timed):
    measured = measure_shapes(CEILINGS, [SMALL], MACHINE)
    first = next(iter(measured["gemm_flops_per_s"].items()))
    assert first == ("float32/32x32x32/forward", pytest.approx(2 * 32 * 32 * 32 / 1e-3))
    assert set(measured["attention_flops_per_s"]) == {"float32/matmuls/2x2x16x16"}
    index = 12 + 1  # after three passes of four matmuls comes attention: six matmuls of 2 x 2 heads
    expected = 6 * 2 * (2 * 2) * 16 * 16 * 16 / (1e-3 * index)
    assert measured["attention_flops_per_s"]["float32/matmuls/2x2x16x16"] == pytest.approx(expected)


def test_a_shape_is_timed_once_in_a_session(timed):
    measured = measure_shapes(CEILINGS, [SMALL, SMALL], MACHINE)
    count = len(timed)
    assert count == sum(len(measured[t]) for t in ("gemm_flops_per_s", "attention_flops_per_s", "pass_bytes_per_s"))
    again = measure_shapes(measured, [SMALL, SMALL.but(optimizer="fused")], MACHINE)
    assert again == measured and len(timed) == count
    measure_shapes(measured, [SMALL.but(vocabulary="padded")], MACHINE)
    assert len(timed) == count + 3  # the head


def test_the_operations_have_the_shapes_of_their_names(timed):
    measure_shapes(CEILINGS, [SMALL.but(dropout=0.0)], MACHINE)
    shapes = [tuple(out.shape) for out in timed[:12]]
    tokens = 32
    assert shapes[:3] == [(tokens, 32), (tokens, 32), (32, 32)]
    assert shapes[3:6] == [(tokens, 128), (tokens, 32), (128, 32)]
    assert shapes[9:12] == [(tokens, 51), (tokens, 32), (51, 32)]


def test_a_format_without_a_ceiling_is_left_out(timed):
    ceilings = CEILINGS | {"matmul_flops_per_s": {"float32": 1e10}}
    measured = measure_shapes(ceilings, [SMALL.but(precision="bfloat16")], MACHINE)
    assert not measured["gemm_flops_per_s"] and not timed


def test_a_shape_that_does_not_fit_has_no_rate_and_ends_nothing(timed, monkeypatch):
    def no_memory(matmul, direction, dtype, device):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(sweep, "_matmul", no_memory)
    measured = measure_shapes(CEILINGS, [SMALL], MACHINE)
    assert measured["gemm_flops_per_s"] == {} and measured["pass_bytes_per_s"]
    assert predict(SMALL, measured)["step_ms"] > 0


def test_every_kind_has_an_operation_of_its_own():
    kinds = set(traffic.KINDS) - {"streamed"}
    assert kinds == set(sweep._BYTES_PER_ELEMENT)
    for kind in kinds:
        assert sweep._pass(SMALL, kind, torch.float32, torch.device("cpu"))() is not None


def test_times_and_launches_are_positive():
    measured = measure_shapes(CEILINGS, [SMALL], MACHINE)
    assert measured["launch_s"] > 0
    assert all(rate > 0 for name in ("gemm_flops_per_s", "pass_bytes_per_s") for rate in measured[name].values())


@pytest.mark.parametrize(("call_s", "calls_each"), [(1e-6, 20), (4e-4, 5), (0.0126, 1), (0.0, 20)])
def test_a_sample_on_a_gpu_holds_enough_calls_to_hide_its_marks(call_s, calls_each, monkeypatch):
    """A clock that moves by `call_s` with each call and by 50 ns with each mark stands in for the GPU's events."""
    now, calls = [0.0], []

    class Clock:
        def __init__(self, device):
            self.marks = []

        def mark(self):
            now[0] += 5e-8
            self.marks.append(now[0])

        def step_ms(self):
            return [1e3 * (self.marks[1] - self.marks[0])]

    def call():
        calls.append(1)
        now[0] += call_s

    monkeypatch.setattr(sweep, "Stopwatch", Clock)
    monkeypatch.setattr(sweep, "synchronize", lambda device: None)
    seconds = sweep._seconds(call, torch.device("cuda"))
    assert len(calls) == 2 + sweep.SAMPLES * calls_each
    assert seconds == pytest.approx(call_s, abs=6e-8)
