"""Predicted against measured memory over recipes of different size, format, attention, optimizer and moment of peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS
from speedlab.memory_plan import plan_memory
from speedlab.recipe import Recipe

STEPS = 3  # counted ones, after a first step that makes the optimizer's state and compiles

NO_PEAK = "a CPU has no peak to read: PyTorch counts the memory of GPUs alone"
NOT_COMPILED = "not compiled here: a CPU has no peak to read, and compiles for a minute"

SMALL = {"num_layers": 6, "embedding_width": 512, "num_heads": 8}
MEDIUM = {"num_layers": 24, "embedding_width": 1024, "num_heads": 16}  # GPT-2 medium, about 350 M weights
PLAIN = {"layers": "handwritten", "attention": "plain", "qkv_projection": "separate"}
# Few tokens: the peak moves from the loss to the optimizer's step.
FEW_TOKENS = {"micro_batch": 1, "context_length": 128}
BASE = NINE_STEPS.recipe_at("merged_qkv")  # bfloat16, native layers, fused attention and optimizer, micro-batch 8

RECIPES: dict[str, dict[str, Any]] = {
    "small, all by hand": {**SMALL, **PLAIN, "causal_mask": "stored", "precision": "float32", "optimizer": "foreach"},
    "small, float32, plain attention": {
        **SMALL, "attention": "plain", "precision": "float32", "optimizer": "for_loop", "micro_batch": 4,
    },
    "small, bfloat16": {**SMALL, "micro_batch": 16},
    "small, autocast, plain attention": {**SMALL, "attention": "plain", "precision": "bfloat16_autocast"},
    "small, autocast, tied, no dropout": {
        **SMALL, "precision": "bfloat16_autocast", "output_head": "tied", "qkv_bias": True, "dropout": 0.0,
    },
    "small, few tokens, foreach": {**SMALL, **FEW_TOKENS, "precision": "float32", "optimizer": "foreach"},
    "small, few tokens, loop": {**SMALL, **FEW_TOKENS, "precision": "float32", "optimizer": "for_loop"},
    "small, few tokens, masters": {**SMALL, **FEW_TOKENS, "precision": "bfloat16_master", "optimizer": "foreach"},
    "small, long context": {**SMALL, "context_length": 4096, "micro_batch": 4},
    "124M, TF32": {"precision": "float32"},
    "124M, bfloat16": {},
    "124M, float32 masters": {"precision": "bfloat16_master"},
    "124M, autocast": {"precision": "bfloat16_autocast", "qkv_projection": "separate"},
    "124M, autocast, by hand": {**PLAIN, "precision": "bfloat16_autocast", "micro_batch": 4},
    "124M, accumulation": {"micro_batch": 4, "accumulation": 2},
    "350M, bfloat16": {**MEDIUM},
    "350M, autocast": {**MEDIUM, "precision": "bfloat16_autocast", "micro_batch": 4},
    "small, compiled, padded": {**SMALL, "compile": "default", "vocabulary": "padded"},
    "small, compiled, autocast, plain attention": {
        **SMALL, "compile": "default", "attention": "plain", "precision": "bfloat16_autocast", "vocabulary": "padded",
    },
}  # fmt: skip


def predicted_against_measured(bench: Any, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row for each recipe: what the formulas say, and the peak over `STEPS` whole optimizer steps.

    Row: name, recipe, predicted_allocated_bytes, predicted_parts (bytes by component), peak_at, steps,
    measured_allocated_bytes, measured_reserved_bytes. On a CPU the steps run and the measured bytes are null.
    """
    capability = bench.machine.capability or (9, 0)
    for name, changes in RECIPES.items():
        recipe = bench.scaled(BASE.but(**changes))
        plan = plan_memory(recipe, capability=capability)
        say(f"{name}: {plan.peak_allocated_bytes / 2**30:.2f} GiB predicted")
        yield attempt(
            lambda recipe=recipe: _measured(bench, recipe),
            name=name,
            recipe=recipe.as_dict(),
            predicted_allocated_bytes=plan.peak_allocated_bytes,
            predicted_parts=plan.parts,
            peak_at=plan.peak_at,
            measured_allocated_bytes=None,
            measured_reserved_bytes=None,
        )


def _measured(bench: Any, recipe: Recipe) -> dict[str, Any]:
    from speedlab.measuring.memory import free_everything, read_peak, reset_peak
    from speedlab.measuring.stopwatch import synchronize
    from speedlab.measuring.variant import start_fresh, start_variant

    on_gpu = bench.device.type == "cuda"
    if recipe.compile != "off" and not on_gpu:
        return {"status": "not_applicable", "reason": NOT_COMPILED}
    start_fresh(bench.device)
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    try:
        step(batches)
        reset_peak(bench.device)
        for _ in range(STEPS):
            step(batches)
        synchronize(bench.device)
        peak = read_peak(bench.device)
    finally:
        del step, batches
        free_everything(bench.device)
    row = {
        "steps": STEPS,
        "measured_allocated_bytes": peak.allocated_bytes,
        "measured_reserved_bytes": peak.reserved_bytes,
    }
    return row if on_gpu else {**row, "status": "not_applicable", "reason": NO_PEAK}
