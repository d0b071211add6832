"""Seconds to a loss: recipes trained on real text for the same time, judged on text that none of them saw.

Tokens per second say nothing about updates per token; this does. It trains and reads its own rows, and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS

if TYPE_CHECKING:
    from speedlab.measuring.workbench import Workbench
    from speedlab.recipe import Recipe

# Key of a rung and the factor of its learning rate. For four times the batch the rules of thumb are four (linear:
# Goyal et al. 2017) and two (square root: Krizhevsky 2014).
RECIPES = (("merged_qkv", 1.0), ("padded_vocab", 1.0), ("batch_size", 1.0), ("batch_size", 2.0), ("batch_size", 4.0))
BUDGET_S, TOY_BUDGET_S = 10.0, 0.4  # training alone; compiling, evaluating and the first steps are outside
POINTS = 20
VALIDATION_WINDOWS, AT_ONCE = 32, 8
LEVEL = 0.25  # losses to be reached are multiples of this many nats


def loss_against_time(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row for each recipe with its curve: tokens, updates, seconds, train_loss and validation_loss at each point.

    seconds: time spent training up to the point. train_loss: mean since the point before, in nats, with the recipe's
    dropout; validation_loss: over the ids that exist, dropout off, on windows from the end of the corpus.
    """
    for key, factor in RECIPES:
        recipe, _ = bench.recipe(NINE_STEPS, key)
        if not bench.profile.publishable:
            recipe = recipe.but(compile="off")
        recipe = recipe.but(learning_rate=factor * recipe.learning_rate)
        say(f"{key}, learning rate {recipe.learning_rate:g}")
        yield attempt(
            lambda recipe=recipe: _train(bench, recipe),
            rung=key,
            rate_factor=factor,
            learning_rate=recipe.learning_rate,
            micro_batch=recipe.micro_batch,
            tokens_per_step=recipe.tokens_per_step,
        )


def _train(bench: Workbench, recipe: Recipe) -> dict[str, Any]:
    import torch

    from speedlab.data.stream import BatchStream
    from speedlab.measuring.repeats import restart
    from speedlab.measuring.stopwatch import seconds_of
    from speedlab.measuring.variant import collector_at_rest, start_fresh, start_variant

    start_fresh(bench.device)
    budget_s = BUDGET_S if bench.profile.publishable else TOY_BUDGET_S
    training, validation = split(bench.tokens.tokens, recipe.context_length)
    weights = bench.weights_for(recipe)
    step, warm = start_variant(recipe, weights, training, bench.place)
    for _ in range(1 + bench.plan.warmup_steps):
        step(warm)
    step_s = seconds_of(lambda: [step(warm) for _ in range(3)], bench.device) / 3
    restart(step, weights)
    torch.manual_seed(recipe.seed)
    batches = BatchStream(
        training, micro_batch=recipe.micro_batch, context_length=recipe.context_length,
        host_memory=recipe.host_memory, device=bench.device, seed=recipe.seed,
    )  # fmt: skip
    batches.start()
    steps = max(1, round(budget_s / POINTS / step_s))  # between two points
    curve: dict[str, list[float]] = {
        "updates": [0], "tokens": [0], "seconds": [0.0], "train_loss": [],
        "validation_loss": [validation_loss(step, validation)],
    }  # fmt: skip
    while curve["seconds"][-1] < budget_s:
        losses: list[Any] = []
        with collector_at_rest():
            seconds = seconds_of(lambda into=losses: into.extend(step(batches) for _ in range(steps)), bench.device)
        found = {"train_loss": torch.stack(losses).float().mean().item()}
        found["validation_loss"] = validation_loss(step, validation)
        if not all(map(math.isfinite, found.values())):
            return curve | {"diverged_after_s": curve["seconds"][-1] + seconds}
        curve["seconds"].append(curve["seconds"][-1] + seconds)
        curve["updates"].append(curve["updates"][-1] + steps)
        curve["tokens"].append(curve["tokens"][-1] + steps * recipe.tokens_per_step)
        for name, value in found.items():
            curve[name].append(value)
    return curve


def split(tokens: Any, context_length: int) -> tuple[Any, Any]:
    """(tokens to train on, validation windows (N, T + 1)): the windows are the end of the corpus, at most a tenth."""
    windows = max(1, min(VALIDATION_WINDOWS, len(tokens) // (10 * (context_length + 1))))
    held = windows * (context_length + 1)
    return tokens[:-held], tokens[-held:].reshape(windows, context_length + 1)


def validation_loss(step: Any, windows: Any) -> float:
    """Mean loss in nats over all positions. The plain module is asked, so that nothing is compiled for it."""
    import torch

    from speedlab.training.precision import autocast, matmul_precision
    from speedlab.training.step import loss_over_true_ids

    ids = torch.from_numpy(windows.astype("int64")).to(step.device)
    step.model.eval()
    losses = []
    with torch.no_grad(), matmul_precision(step.recipe):
        for some in ids.split(AT_ONCE):
            with autocast(step.precision, step.device):
                logits = step.model(some[:, :-1])
            losses.append(loss_over_true_ids(logits, some[:, 1:], step.recipe.vocab_size) * len(some))
    step.model.train()
    return (torch.stack(losses).sum() / len(ids)).item()


def seconds_to(row: dict[str, Any], loss: float) -> float | None:
    """Seconds of training until the validation loss first falls to `loss`, on straight lines between points."""
    points = list(zip(row["seconds"], row["validation_loss"], strict=True))
    if points[0][1] <= loss:
        return points[0][0]
    for (start, before), (end, after) in pairwise(points):
        if after <= loss:
            return start + (end - start) * (before - loss) / (before - after)
    return None


def levels(rows: Sequence[dict[str, Any]], count: int = 3) -> list[float]:
    """Losses to ask for, falling: the lowest multiple of 0.25 nats that all reached, that the best reached, between."""
    best = [min(row["validation_loss"]) for row in rows if row["status"] == "measured"]
    if not best:
        return []
    high, low = (math.ceil(loss / LEVEL) * LEVEL for loss in (max(best), min(best)))
    between = high - LEVEL * round((high - low) / LEVEL / 2)
    return sorted({high, between, low}, reverse=True)[:count]


def tokens_per_s(row: dict[str, Any]) -> float:
    return row["tokens"][-1] / row["seconds"][-1]


def final_loss(row: dict[str, Any]) -> float:
    """Mean of the last two points of the validation loss, in nats."""
    return fmean(row["validation_loss"][-2:])
