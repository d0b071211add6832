"""Loss curves of a change that alters the training: before and after over the same text, and the gap between them."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from torch import Tensor

from speedlab.measuring.variant import contract_recipe, skipped_notes, start_fresh, start_variant, stepped_losses
from speedlab.recipe import Recipe
from speedlab.records.record import Record
from speedlab.training.distributed import Place

# Points that a record keeps of a curve; each is the mean of the steps that it stands for.
POINTS = 100
# The end of a curve, over which two of them are compared.
TAIL = 0.1


def training_curve(
    recipe: Recipe, weights: dict[str, Tensor], tokens: Any, place: Place, *, tokens_seen: int
) -> dict[str, Any]:
    """Train on `tokens_seen` tokens (at least one step) from `weights`, dropout off, and return the curve.

    {"tokens": tokens seen at each point, "losses": mean loss in nats of the steps up to it}, at most 100 points, and
    with a gradient scaler "skipped_steps", how many it left without an update. Two recipes with the same seed read the
    same windows of the corpus in the same order, whatever their batch.
    """
    start_fresh(place.device)
    step, batches = start_variant(contract_recipe(recipe), weights, tokens, place)
    count = max(1, round(tokens_seen / recipe.tokens_per_step))
    # In float32 over the ids that exist: the loss that a bfloat16 step reports moves in 64ths of a nat.
    losses = stepped_losses(step, batches, count, place)
    size = -(-count // POINTS)  # steps for one point, rounded up
    ends = [min(count, start + size) for start in range(0, count, size)]
    skipped = {} if step.skipped is None else {"skipped_steps": step.skipped}
    return {
        **skipped,
        "tokens": [end * recipe.tokens_per_step for end in ends],
        "losses": [fmean(losses[start:end]) for start, end in zip([0, *ends], ends, strict=False)],
    }


def with_skipped(record: Record) -> Record:
    """The record with the steps of its own curve that had no update, counted and flagged; as it is without a scaler."""
    count = (record.contract_detail or {}).get("curve", {}).get("skipped_steps")
    if count is None:
        return record
    skipped = (record.skipped_steps or {}) | {"curve": count}
    return replace(record, skipped_steps=skipped, notes=[*record.notes, *skipped_notes({"curve": count})])


def gap(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Mean loss of `after` minus that of `before` over the last tenth of the tokens that both have seen, in nats."""
    seen = min(before["tokens"][-1], after["tokens"][-1])

    def tail(curve: dict[str, Any]) -> float:
        points = list(zip(curve["tokens"], curve["losses"], strict=True))
        inside = [loss for at, loss in points if (1 - TAIL) * seen < at <= seen]
        return fmean(inside or [min(points, key=lambda point: abs(point[0] - seen))[1]])

    return tail(after) - tail(before)
