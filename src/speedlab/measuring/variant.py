"""Check and time one recipe: losses first, then compile time, warm-up, the timed window, memory, kernels."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from speedlab.data.stream import BatchStream
from speedlab.measuring.kernels import in_format, kernel_table
from speedlab.measuring.memory import PeakMemory, free_everything, read_peak, reset_peak
from speedlab.measuring.power import ENERGY_WINDOW_S, Watcher, joules_of_all, watch
from speedlab.measuring.stopwatch import Stopwatch, seconds_of, synchronize
from speedlab.recipe import Recipe
from speedlab.training.distributed import Place
from speedlab.training.step import TrainingStep


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How often a variant steps: to be compared (0: not at all), to warm up, to be timed."""

    contract_steps: int
    warmup_steps: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one variant gave. step_ms: each step of the window. losses: nats, of the contract steps, dropout off.

    energy_j: joules of `energy_steps` steps, of the GPUs of all processes. skipped_steps: those of the contract run and
    of the window that the gradient scaler left without an update; None without a scaler. notes: what was odd about
    the window, of this process.
    """

    step_ms: list[float]
    losses: list[float]
    compile_s: float | None
    compile_cache: str | None
    peak: PeakMemory
    recompiles: int
    kernels: list[dict[str, Any]] = field(default_factory=list)
    energy_j: float | None = None
    energy_steps: int | None = None
    skipped_steps: dict[str, int] | None = None
    notes: list[str] = field(default_factory=list)


def contract_recipe(recipe: Recipe) -> Recipe:
    """The recipe as it is compared: dropout off, because no two kernels draw the same masks."""
    return recipe.but(dropout=0.0)


def contract_losses(recipe: Recipe, weights: dict[str, Tensor], tokens: Any, steps: int, place: Place) -> list[float]:
    """Losses in nats of `steps` optimizer steps from `weights` with dropout off, over the ids that exist."""
    start_fresh(place.device)
    step, batches = start_variant(contract_recipe(recipe), weights, tokens, place)
    return stepped_losses(step, batches, steps, place)


def measure_variant(
    recipe: Recipe,
    weights: dict[str, Tensor],
    tokens: Any,
    plan: Plan,
    place: Place,
    *,
    kernels: bool = True,
    long_energy: bool = False,
) -> Measured:
    """Check, then time, one recipe on the device of `place`, alone in its memory.

    weights: canonical weights. tokens: token ids of the corpus. Every variant starts with an empty compiler state,
    otherwise the second batch size would be compiled with symbolic shapes, another kernel than the row says. Called
    by every process of a group, it gives each its own times and memory, and all of them the mean losses. kernels:
    profile two steps after the window; our runs suggest that on CUDA a process launches more slowly once it has
    profiled, so a session that has more to time calls `profile_variant` when it is done. long_energy: where the window
    is too short for the energy counter, step on until it is not.
    """
    device = place.device
    first_step_s: list[float] = []
    losses: list[float] = []
    skipped: dict[str, int | None] = {}
    compared = contract_recipe(recipe)
    step = batches = None
    if plan.contract_steps:
        start_fresh(device)
        step, batches = start_variant(compared, weights, tokens, place)
        losses = stepped_losses(step, batches, plan.contract_steps, place, first_step_s)
        skipped["contract"] = step.skipped
    if step is None or compared != recipe:
        step = batches = None  # before the next one is built: each variant is alone in memory
        start_fresh(device)
        step, batches = start_variant(recipe, weights, tokens, place)
        first_step_s = [seconds_of(partial(step, batches), device)]
    cache = compile_cache()
    watcher = watch(device)
    reset_peak(device)
    for _ in range(plan.warmup_steps):
        step(batches)
    graphs_before, skipped_before = _graphs(), step.skipped
    step_ms = time_steps(step, batches, device, plan.steps, watcher)
    recompiles = _graphs() - graphs_before
    skipped["window"] = None if skipped_before is None else step.skipped - skipped_before
    wanted = _energy_steps(step_ms, place) if long_energy else 0
    energy_j, energy_steps = _energy(step, batches, len(step_ms), wanted, watcher, place)
    scaled = {run: count for run, count in skipped.items() if count is not None}
    measured = Measured(
        step_ms=step_ms,
        losses=losses,
        compile_s=max(0.0, first_step_s[0] - median(step_ms) / 1e3) if recipe.compile != "off" else None,
        compile_cache=cache if recipe.compile != "off" else None,
        peak=read_peak(device),
        recompiles=recompiles,
        kernels=in_format(kernel_table(partial(step, batches), device), recipe) if kernels else [],
        energy_j=energy_j,
        energy_steps=energy_steps,
        skipped_steps=scaled or None,
        notes=[*watcher.notes, *skipped_notes(scaled)],
    )
    del step, batches
    free_everything(device)
    return measured


def profile_variant(
    recipe: Recipe, weights: dict[str, Tensor], tokens: Any, place: Place, *, warmup_steps: int = 2
) -> list[dict[str, Any]]:
    """The kernel table of a recipe, from a step built for nothing else."""
    start_fresh(place.device)
    step, batches = start_variant(recipe, weights, tokens, place)
    for _ in range(1 + warmup_steps):
        step(batches)
    table = in_format(kernel_table(partial(step, batches), place.device), recipe)
    del step, batches
    free_everything(place.device)
    return table


def time_steps(
    step: TrainingStep,
    batches: Iterator,
    device: torch.device,
    steps: int,
    watcher: AbstractContextManager | None = None,
) -> list[float]:
    """Milliseconds of each of `steps` optimizer steps, data included and nothing else.

    watcher: opened on the idle device before the first mark, closed when the device is idle after the last.
    """
    with collector_at_rest():
        synchronize(device)
        stopwatch = Stopwatch(device)
        with watcher or nullcontext():
            stopwatch.mark()
            for _ in range(steps):
                step(batches)
                stopwatch.mark()
            return stopwatch.step_ms()


def skipped_notes(skipped: dict[str, int]) -> list[str]:
    """A flag for each run in which the gradient scaler left steps without an update: {"contract": 2} and so on."""
    return [
        f"float16 overflowed: the gradient scaler skipped the update of {count} steps of the {run}"
        for run, count in skipped.items()
        if count
    ]


def _energy(
    step: TrainingStep, batches: Iterator, timed: int, wanted: int, watcher: Watcher, place: Place
) -> tuple[float | None, int | None]:
    """(joules of the cards of all processes, steps that took them); None where no counter was read.

    watcher: of the window of `timed` steps. Where that is fewer than `wanted`, so many of the same steps run in a
    window of their own; nothing of it enters the times.
    """
    energy_j, steps = joules_of_all(watcher.energy_j, place), timed
    if energy_j is not None and wanted > timed:
        watcher, steps = watch(place.device), wanted
        synchronize(place.device)
        with watcher:
            for _ in range(steps):
                step(batches)
            synchronize(place.device)
        energy_j = joules_of_all(watcher.energy_j, place)
    return energy_j, None if energy_j is None else steps


def _energy_steps(step_ms: list[float], place: Place) -> int:
    """How many steps fill a window that is long enough for the energy counter, the same number in all processes."""
    typical_ms = place.mean(torch.tensor(median(step_ms), dtype=torch.float64)).item()
    return math.ceil(1e3 * ENERGY_WINDOW_S / typical_ms)


def start_variant(recipe: Recipe, weights: dict[str, Tensor], tokens: Any, place: Place):
    """A step and its batches; every variant of a session sees the same tokens in the same order."""
    # Dropout masks: the same draw for each repeat of a variant, another one on each rank.
    torch.manual_seed(recipe.seed + place.rank)
    batches = BatchStream(
        tokens,
        micro_batch=recipe.micro_batch,
        context_length=recipe.context_length,
        host_memory=recipe.host_memory,
        device=place.device,
        seed=recipe.seed,
        rank=place.rank,
        world_size=place.world_size,
    )
    parallelize = place.parallelize if place.world_size > 1 else None
    return TrainingStep(recipe, weights, place.device, parallelize=parallelize), iter(batches)


def stepped_losses(
    step: TrainingStep, batches: Iterator, steps: int, place: Place, first_step_s: list[float] | None = None
) -> list[float]:
    step.true_losses = []
    first = seconds_of(partial(step, batches), step.device)
    if first_step_s is not None:
        first_step_s.append(first)
    for _ in range(steps - 1):
        step(batches)
    per_step = torch.stack(step.true_losses).view(steps, -1).mean(dim=1)
    step.true_losses = None
    return place.mean(per_step).tolist()


def start_fresh(device: torch.device) -> None:
    torch._dynamo.reset()
    counters.clear()
    free_everything(device)


def _graphs() -> int:
    """Graphs that dynamo has captured since the variant began."""
    return int(counters["stats"]["unique_graphs"])


def compile_cache() -> str:
    """ "warm" when every compiled graph came from a cache on disk, otherwise "cold"."""
    misses = counters["inductor"]["fxgraph_cache_miss"] + counters["aot_autograd"]["autograd_cache_miss"]
    hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    return "warm" if hits and not misses else "cold"


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep Python's garbage collector out of the window: its pauses belong to no step in particular."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
