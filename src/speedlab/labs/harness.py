"""What the measuring itself costs: the same compiled step with and without stopwatch and loader, in turns.

It knows how to step and how to read its own rows; what they mean on a page is somebody else's business.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS

if TYPE_CHECKING:
    import torch

    from speedlab.measuring.workbench import Workbench
    from speedlab.recipe import Recipe

TOP = "batch_size"
PAIRS, STEPS = 12, 10  # blocks of each kind, steps of a block: about 15 s at the top rung on a fast card
RESAMPLES, CONFIDENCE = 2_000, 0.95


def top_recipe(bench: Workbench) -> Recipe:
    """The top rung as this machine runs it. A toy leaves the compiler out: it takes half a minute and means nothing."""
    recipe, _ = bench.recipe(NINE_STEPS, TOP)
    return recipe if bench.profile.publishable else recipe.but(compile="off")


def harness_overhead(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Rows of blocks: {harness: "on" | "off", pair, steps, block_ms}, and one of kernel time {kernel_ms, step_ms}.

    on: events at each step boundary and the loader, as every record is made. off: the same step object, events at
    both ends of the block alone, batches on the device already. The two take turns, each first in every second pair.
    """
    from speedlab.measuring.kernels import kernel_table
    from speedlab.measuring.variant import start_fresh, start_variant, time_steps

    recipe, device = top_recipe(bench), bench.device
    start_fresh(device)
    say(f"building and compiling {TOP}")
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    staged = cycle([next(batches) for _ in range(STEPS)])
    for _ in range(1 + bench.plan.warmup_steps):
        step(batches)
        step(staged)

    def block(harness: str) -> dict[str, Any]:
        if harness == "on":
            return {"block_ms": sum(time_steps(step, batches, device, STEPS))}
        return {"block_ms": unobserved_ms(step, staged, device, STEPS)}

    off = []
    for pair in range(PAIRS):
        for harness in ("on", "off") if pair % 2 == 0 else ("off", "on"):
            row = attempt(lambda harness=harness: block(harness), harness=harness, pair=pair, steps=STEPS)
            off += [row["block_ms"] / STEPS] if harness == "off" and row["status"] == "measured" else []
            yield row
    if device.type == "cuda":

        def kernels() -> dict[str, Any]:
            table = kernel_table(lambda: step(staged), device)
            return {"kernel_ms": sum(row["time_us"] for row in table) / 1e3, "step_ms": median(off)}

        yield attempt(kernels, harness="profiled")


def unobserved_ms(
    step: Callable[[Iterator[Any]], Any], batches: Iterator[Any], device: torch.device, steps: int
) -> float:
    """Milliseconds of `steps` steps with nothing but the steps between two marks."""
    from speedlab.measuring.stopwatch import Stopwatch, synchronize
    from speedlab.measuring.variant import collector_at_rest

    with collector_at_rest():
        synchronize(device)
        watch = Stopwatch(device)
        watch.mark()
        for _ in range(steps):
            step(batches)
        watch.mark()
        return watch.step_ms()[0]


@dataclass(frozen=True)
class Overhead:
    """share: how much longer a step is with the harness, 0.01 for 1 %, with its 95 % interval. idle_share: of a step
    without it in which the GPU runs nothing; None where no kernels were seen."""

    share: float
    low: float
    high: float
    idle_share: float | None


def overhead(rows: Sequence[dict[str, Any]]) -> Overhead | None:
    """From the rows above, by resampling pairs; None without a complete pair."""
    blocks = {(row["harness"], row.get("pair")): row for row in rows if row["status"] == "measured"}
    pairs = [
        (blocks["on", pair]["block_ms"], blocks["off", pair]["block_ms"])
        for pair in sorted(pair for harness, pair in blocks if harness == "on")
        if ("off", pair) in blocks
    ]
    if not pairs:
        return None

    def share(some: Sequence[tuple[float, float]]) -> float:
        return fmean(on for on, _ in some) / fmean(off for _, off in some) - 1

    source = random.Random(repr(pairs))
    drawn = sorted(share(source.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    profiled = blocks.get(("profiled", None))
    idle = None if profiled is None else max(0.0, 1 - profiled["kernel_ms"] / profiled["step_ms"])
    return Overhead(share=share(pairs), low=drawn[cut], high=drawn[-1 - cut], idle_share=idle)
