"""How the memory labs start, change and time a step: what they share. It knows no experiment in particular."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from speedlab.errors import SpeedLabError
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.memory import read_peak, reset_peak
from speedlab.measuring.stopwatch import seconds_of
from speedlab.measuring.variant import start_fresh, start_variant, time_steps
from speedlab.measuring.workbench import Workbench
from speedlab.model import GPT
from speedlab.recipe import Recipe
from speedlab.training.step import TrainingStep

# The fastest recipe of one GPU, and the same without the compiler, whose shapes cost half a minute each.
TOP = NINE_STEPS.recipe_at("batch_size")
EAGER = TOP.but(compile="off")

Prepare = Callable[[GPT], None]


def base_context(bench: Workbench) -> int:
    return bench.scaled(TOP).context_length


def weights_at(bench: Workbench, recipe: Recipe) -> dict[str, Tensor]:
    """Weights for any context: those of the profile's own, its positions repeated. Good for timing, not for losses."""
    base = bench.weights_for(recipe.but(context_length=base_context(bench)))
    positions = base["position_table.weight"]
    repeats = math.ceil(recipe.context_length / len(positions))
    return base | {"position_table.weight": positions.repeat(repeats, 1)[: recipe.context_length]}


def start(bench: Workbench, recipe: Recipe, prepare: Prepare | None = None) -> tuple[TrainingStep, Iterator]:
    """A step alone in memory, with its batches. prepare: changes the model before anything has run."""
    start_fresh(bench.device)
    step, batches = start_variant(recipe, weights_at(bench, recipe), bench.tokens.tokens, bench.place)
    if prepare is not None:
        prepare(step.model)
    return step, batches


def timed(bench: Workbench, step: TrainingStep, batches: Iterator, *, warmup: int, steps: int) -> dict[str, Any]:
    """Raw step times, tokens, peaks and compile time of a step that has not run yet, or has already.

    The first call is left out of the times and of the peaks, as for every record: it holds the compilation. steps:
    how many are timed, unless whoever runs the lab asked for another number.
    """
    if bench.plan.steps != bench.profile.steps:
        steps = bench.plan.steps
    first_s = seconds_of(partial(step, batches), bench.device)
    reset_peak(bench.device)
    retries = _allocation_retries(bench.device)
    for _ in range(warmup):
        step(batches)
    step_ms = time_steps(step, batches, bench.device, steps)
    peak = read_peak(bench.device)
    return {
        "step_ms": step_ms,
        "tokens_per_step": step.recipe.tokens_per_step,
        "peak_allocated_bytes": peak.allocated_bytes,
        "peak_reserved_bytes": peak.reserved_bytes,
        "allocation_retries": _allocation_retries(bench.device) - retries,
        "compile_s": max(0.0, first_s - median(step_ms) / 1e3) if step.recipe.compile != "off" else None,
    }


def timed_alone(
    bench: Workbench, recipe: Recipe, *, warmup: int, steps: int, prepare: Prepare | None = None
) -> dict[str, Any]:
    """`timed` for a step that is started for it and gone after it."""
    step, batches = start(bench, recipe, prepare)
    return timed(bench, step, batches, warmup=warmup, steps=steps)


def gradients(bench: Workbench, recipe: Recipe, prepare: Prepare | None = None) -> list[Tensor]:
    """Gradients of the first step from the profile's weights, float32 on the host. The weights do not move before."""
    step, batches = start(bench, recipe.but(learning_rate=0.0), prepare)
    if step.scaler is not None:  # the usual first scale may overflow, and this one step cannot be repeated
        step.scaler = torch.amp.GradScaler(bench.device.type, init_scale=1024.0)
    step(batches)
    return [parameter.grad.float().cpu() for parameter in step.model.parameters()]


def relative_error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Norm of the difference over norm, all gradients together. `SpeedLabError` where one is not finite."""
    difference = sum((a - b).double().square().sum() for a, b in zip(found, exact, strict=True))
    error = math.sqrt(difference / sum(b.double().square().sum() for b in exact))
    if not math.isfinite(error):
        raise SpeedLabError("a gradient is not finite, so there is nothing to compare")
    return error


def _allocation_retries(device: torch.device) -> int:
    """How often the allocator had to give its unused blocks back before it found room. 0 on a CPU."""
    return torch.cuda.memory_stats(device).get("num_alloc_retries", 0) if device.type == "cuda" else 0
