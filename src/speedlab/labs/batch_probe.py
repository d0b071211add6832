"""Throughput over the micro-batch, batch against context at equal tokens, and the largest batch of three cards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from speedlab.labs.emulated_cards import CARDS, guess_from, largest_batch, limit_bytes
from speedlab.labs.rows import attempt
from speedlab.labs.steps import EAGER, TOP, base_context, timed_alone
from speedlab.measuring.workbench import Workbench

# Powers of two, their neighbours, and the numbers that are said to be bad or good.
BATCHES = (7, 8, 12, 15, 16, 17, 24, 28, 30, 31, 32, 33, 40, 48, 64)
COMPILED_BATCHES = (31, 32, 33)  # each is another graph: half a minute of compilation
TOY_BATCHES = (3, 4, 5)
GRID = (0.25, 0.5, 1, 2, 4)  # times the base context, divided from the batch: as many tokens in every step
GRID_BATCH = 16


def run(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    toy = not bench.profile.publishable
    peaks: dict[int, int] = {}
    plan = [(size, "off") for size in (TOY_BATCHES if toy else BATCHES)]
    plan += [] if toy else [(size, TOP.compile) for size in COMPILED_BATCHES]
    for micro_batch, mode in plan:
        say(f"micro-batch {micro_batch}, compile {mode}")
        # The profile divides batches; here they are what the row says.
        recipe = bench.scaled(TOP.but(compile=mode)).but(micro_batch=micro_batch)
        row = attempt(
            lambda recipe=recipe: timed_alone(bench, recipe, warmup=3, steps=2 if toy else 10),
            kind="batch", micro_batch=micro_batch, compile=recipe.compile, context_length=recipe.context_length,
        )  # fmt: skip
        if row.get("peak_allocated_bytes") and mode == "off":
            peaks[micro_batch] = row["peak_allocated_bytes"]
        yield row

    base = base_context(bench)
    batch = 4 if toy else GRID_BATCH
    for factor in GRID:
        recipe = bench.scaled(EAGER).but(context_length=int(base * factor), micro_batch=int(batch / factor))
        say(f"{recipe.micro_batch} x {recipe.context_length} tokens")
        yield attempt(
            lambda recipe=recipe: timed_alone(bench, recipe, warmup=3, steps=2 if toy else 10),
            kind="grid", micro_batch=recipe.micro_batch, compile=recipe.compile, context_length=recipe.context_length,
        )  # fmt: skip

    for card in CARDS:
        say(f"largest batch: {card}")
        recipe = bench.scaled(EAGER)
        guess = guess_from(peaks, limit_bytes(bench, card))
        yield attempt(
            lambda recipe=recipe, card=card, guess=guess: largest_batch(bench, recipe, card, guess=guess),
            kind="largest", card=card, compile=recipe.compile, context_length=recipe.context_length, guess=guess,
        )  # fmt: skip
