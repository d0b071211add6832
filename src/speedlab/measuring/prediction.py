"""How long a step should take: what it has to do, as counted, over what this machine does, as measured beforehand.

Made before a rung runs, from its recipe and the session's ceilings alone. It is a model: parts are added as if nothing
overlapped, and the host's launches either hide behind the device or decide the step.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from speedlab.measuring import counting, traffic
from speedlab.measuring.counting import (
    MATMUL_PASSES,
    Matmul,
    attention_flops,
    attention_key,
    gemm_key,
    pass_key,
)  # fmt: skip
from speedlab.measuring.traffic import Passes
from speedlab.recipe import Recipe
from speedlab.work import compute_dtype

ATTENTION = "matmuls of attention"
WAITING = "waiting for launches"
# How `bound_by` names a ceiling.
ARITHMETIC, BANDWIDTH, LAUNCHES = "{format} matmul rate", "memory bandwidth", "kernel launches"


def predict(recipe: Recipe, ceilings: dict[str, Any], *, utc: str | None = None) -> dict[str, Any] | None:
    """The `predicted` object of a record: {step_ms, bound_by, parts_ms, utc}; None without a rate for the format.

    step_ms is for one optimizer step on one GPU and is the sum of the parts; `bound_by` names, in words, the ceiling
    under which most of it falls. Where the ceilings hold no rate for a shape, the rate of a large square matmul or of
    a copy stands in.
    """
    rate = ceilings["matmul_flops_per_s"].get(compute_dtype(recipe))
    if rate is None:
        return None
    arithmetic_s, traffic_s = _micro_batch_s(recipe, ceilings)
    arithmetic_s = {part: recipe.accumulation * s for part, s in arithmetic_s.items()}
    traffic_s = {part: recipe.accumulation * s for part, s in traffic_s.items()}
    for passes in filter(None, (counting.gradient_accumulation(recipe), counting.optimizer(recipe))):
        traffic_s[passes.part] = _seconds_of_passes(recipe, passes, ceilings)
    device_s = sum(arithmetic_s.values()) + sum(traffic_s.values())
    waiting_s = max(0.0, counting.launches(recipe) * ceilings.get("launch_s", 0.0) - device_s)
    parts_ms = {part: 1e3 * s for part, s in (arithmetic_s | traffic_s | {WAITING: waiting_s}).items()}
    if waiting_s:
        bound_by = LAUNCHES
    elif sum(arithmetic_s.values()) >= sum(traffic_s.values()):
        bound_by = ARITHMETIC.format(format=_FORMATS[compute_dtype(recipe)])
    else:
        bound_by = BANDWIDTH
    return {
        "step_ms": sum(parts_ms.values()),
        "bound_by": bound_by,
        "parts_ms": parts_ms,
        "utc": utc or datetime.now(UTC).isoformat(timespec="seconds"),
    }


_FORMATS = {"float32": "float32", "tf32": "TF32", "bfloat16": "bfloat16", "float16": "float16"}


def _micro_batch_s(recipe: Recipe, ceilings: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of one micro-batch by part: of arithmetic, and of memory traffic."""
    *blocks, head = counting.matmuls(recipe)
    head_s, unpadding = _head_s(recipe, head, ceilings)
    arithmetic_s = {
        blocks[0].part: sum(_matmul_s(recipe, matmul, ceilings) for matmul in blocks),
        head.part: head_s,
        ATTENTION: _attention_s(recipe, ceilings),
    }
    # The same parts for every recipe, so that a part that vanished is a zero beside the number that it was.
    traffic_s = dict.fromkeys((traffic.SCORES, traffic.NORMS, traffic.LOSS), 0.0)
    for passes in (*traffic.element_wise(recipe), *unpadding):
        seconds = _seconds_of_passes(recipe, passes, ceilings)
        traffic_s[passes.part] = traffic_s.get(passes.part, 0.0) + seconds
    return arithmetic_s, traffic_s


def _matmul_s(recipe: Recipe, matmul: Matmul, ceilings: dict[str, Any]) -> float:
    """Seconds of all calls, forward and both gradients."""
    square = ceilings["matmul_flops_per_s"][compute_dtype(recipe)]
    rates = ceilings.get("gemm_flops_per_s", {})
    each = sum(matmul.flops / rates.get(gemm_key(recipe, matmul, direction), square) for direction in MATMUL_PASSES)
    return matmul.calls * each


def _head_s(recipe: Recipe, head: Matmul, ceilings: dict[str, Any]) -> tuple[float, list[Passes]]:
    """Seconds of the head's matmuls, and the traffic of padding them where that is faster: the compiler tries both."""
    as_it_is = _matmul_s(recipe, head, ceilings)
    aligned = counting.aligned_head(recipe)
    if aligned is None:
        return as_it_is, []
    padded, unpadding = _matmul_s(recipe, aligned, ceilings), traffic.unpadding(recipe)
    extra = sum(_seconds_of_passes(recipe, passes, ceilings) for passes in unpadding)
    return (padded, unpadding) if padded + extra < as_it_is else (as_it_is, [])


def _attention_s(recipe: Recipe, ceilings: dict[str, Any]) -> float:
    square = ceilings["matmul_flops_per_s"][compute_dtype(recipe)]
    rate = ceilings.get("attention_flops_per_s", {}).get(attention_key(recipe), square)
    return recipe.num_layers * attention_flops(recipe) / rate


def _seconds_of_passes(recipe: Recipe, passes: Passes, ceilings: dict[str, Any]) -> float:
    rates = ceilings.get("pass_bytes_per_s", {})
    return passes.bytes / rates.get(pass_key(recipe, passes.kind, passes.item), ceilings["copy_bytes_per_s"])
