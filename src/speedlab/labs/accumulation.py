"""Gradient accumulation: tokens/s over K, the same batch split up differently, the update's share, equal gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from speedlab.labs.rows import attempt
from speedlab.labs.steps import EAGER, TOP, gradients, relative_error, start, timed, timed_alone
from speedlab.measuring.stopwatch import Stopwatch, synchronize
from speedlab.measuring.workbench import Workbench
from speedlab.recipe import Recipe
from speedlab.training.step import TrainingStep

MICRO_BATCH = 8
MICRO_STEPS = (1, 2, 4, 8, 16)
TOTALS = (32, 64)  # sequences per update, split up in every way
FEWEST = 4  # sequences of the smallest part
CLIP = 1.0


def run(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    toy = not bench.profile.publishable
    eager = bench.scaled(EAGER).but(micro_batch=2 if toy else MICRO_BATCH)
    yield from _over_micro_steps(bench, say, eager, toy)
    if not toy:
        yield from _over_micro_steps(bench, say, bench.scaled(TOP).but(micro_batch=MICRO_BATCH), toy)
    for total in (4,) if toy else TOTALS:
        for recipe in _splits(eager, total, 1 if toy else FEWEST):
            say(f"{total} sequences as {recipe.accumulation} x {recipe.micro_batch}")
            yield attempt(
                lambda recipe=recipe: _timed_with_update(bench, *start(bench, recipe), toy),
                kind="split", total_batch=total, **_what(recipe),
            )  # fmt: skip
    others = {
        "clipped": eager.but(accumulation=4, gradient_clip=CLIP),
        "float16 with scaler": bench.scaled(EAGER.but(precision="float16_autocast")).but(
            micro_batch=eager.micro_batch, accumulation=4, gradient_clip=CLIP
        ),
    }
    for name, recipe in others.items():
        say(name)
        yield attempt(
            lambda recipe=recipe: timed_alone(bench, recipe, warmup=2, steps=2 if toy else 10),
            kind="extra", name=name, **_what(recipe),
        )  # fmt: skip
    yield from _gradient_rows(bench, say, eager)


def _over_micro_steps(bench: Workbench, say, recipe: Recipe, toy: bool) -> Iterator[dict[str, Any]]:
    """One step for all K: the number of micro-batches is no part of the model, so one graph serves them all."""
    held: dict[str, Any] = {}

    def measure(recipe: Recipe) -> dict[str, Any]:
        if not held:
            held["step"], held["batches"] = start(bench, recipe)
        held["step"].recipe = recipe
        return _timed_with_update(bench, held["step"], held["batches"], toy)

    for micro_steps in MICRO_STEPS:
        split = recipe.but(accumulation=micro_steps)
        say(f"{micro_steps} x {recipe.micro_batch} sequences, compile {recipe.compile}")
        yield attempt(lambda split=split: measure(split), kind="micro_steps", **_what(split))


def _timed_with_update(bench: Workbench, step: TrainingStep, batches: Iterator, toy: bool) -> dict[str, Any]:
    """A step's times, and those of its update alone on the gradients that the last one left behind."""
    row = timed(bench, step, batches, warmup=2, steps=2 if toy else max(6, 16 // step.recipe.accumulation))
    synchronize(bench.device)
    stopwatch = Stopwatch(bench.device)
    stopwatch.mark()
    for _ in range(3 if toy else 10):
        step.update()
        stopwatch.mark()
    return row | {"update_ms": stopwatch.step_ms()[1:]}


def _splits(recipe: Recipe, total: int, fewest: int) -> list[Recipe]:
    """The recipe with `total` sequences per update in parts of `total`, half of it, and so on down to `fewest`."""
    sizes = [total >> i for i in range(total.bit_length()) if total >> i >= fewest]
    return [recipe.but(micro_batch=size, accumulation=total // size) for size in sizes]


def _gradient_rows(bench: Workbench, say, eager: Recipe) -> Iterator[dict[str, Any]]:
    """The same sequences in one piece and in four, dropout off, in three formats: how far the gradients differ."""
    total = 4
    for precision in ("float32", "bfloat16", "float16_autocast"):
        # The same for both: TF32 would round each piece's products alike, but sum them in another order.
        recipe = bench.scaled(EAGER.but(precision=precision, matmul_precision="highest")).but(dropout=0.0)
        whole = recipe.but(micro_batch=total)
        say(f"gradients, {precision}")

        def compare(whole: Recipe = whole) -> dict[str, Any]:
            split = gradients(bench, whole.but(micro_batch=1, accumulation=total))
            return {"relative_error": relative_error(split, gradients(bench, whole))}

        yield attempt(compare, kind="gradients", total_batch=total, precision=recipe.precision)


def _what(recipe: Recipe) -> dict[str, Any]:
    return {
        "micro_batch": recipe.micro_batch, "accumulation": recipe.accumulation, "compile": recipe.compile,
        "precision": recipe.precision, "gradient_clip": recipe.gradient_clip,
    }  # fmt: skip
