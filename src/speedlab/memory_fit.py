"""Does a plan fit a card, which micro-batch is the largest that does, and which switches save how much. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from speedlab.cards import Card
from speedlab.device import MAX_AUTOTUNE_MULTIPROCESSORS, Capabilities, Substitution, adapt
from speedlab.memory_plan import is_counted, not_modelled, plan_memory
from speedlab.recipe import Recipe

# What a card's memory is needed for besides tensors: CUDA's context with the code of all kernels, and blocks of the
# allocator that no tensor fills. The shares are no smaller than that of any committed record of the ladders of one GPU (a
# test says so). Elsewhere more was reserved on cards that were nearly empty, which tells nothing about a full one: when
# room gets short, the allocator gives unused blocks back. Blocks of a CUDA graph's pool serve that graph alone, so that
# more of them stay unfilled.
CONTEXT_BYTES = 2**30
ALLOCATOR_SHARE = 0.18
GRAPHS_SHARE = 0.28
LARGEST_MICRO_BATCH = 1 << 16
# The share of what the allocator may take that tensors can fill: with no room left it gives unused blocks back.
DARING = 0.97

# What to change when a recipe does not fit, the cheapest first: same arithmetic, then rounding, then time.
SWITCHES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"attention": "sdpa"}, "same function, and faster; float32 has no FlashAttention kernel, but a tiled one"),
    ({"layers": "native"}, "same function, and faster"),
    ({"causal_mask": "on_the_fly"}, "same function"),
    ({"optimizer": "fused"}, "same function, and faster"),
    ({"precision": "bfloat16_autocast"}, "matmuls round to 16 bits"),
    ({"precision": "float16_autocast"}, "matmuls round to 16 bits, and a gradient scaler"),
    ({"precision": "bfloat16_master"}, "16 bits everywhere but in the optimizer"),
    ({"precision": "bfloat16"}, "small updates of the weights are rounded away"),
    ({"checkpointing": "every_block"}, "each block's forward pass runs twice"),
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One switch on top of the ones before it."""

    change: dict[str, Any]
    cost: str
    saved_bytes: int
    peak_allocated_bytes: int
    fits: bool


def on_card(recipe: Recipe, card: Card) -> tuple[Recipe, tuple[Substitution, ...]]:
    """The recipe as this card would run it, and what had to change: float16 where it has no bfloat16 units, say."""
    machine = Capabilities(
        device_type="cuda", capability=card.capability, gpu_name=card.title, gpus=recipe.data_parallel,
        multiprocessors=MAX_AUTOTUNE_MULTIPROCESSORS,  # whether it autotunes makes no difference to memory
    )  # fmt: skip
    return adapt(recipe, machine)


def needed_bytes(recipe: Recipe, card: Card) -> int:
    """Bytes of the card that the recipe is predicted to need, reserve included."""
    return round(_peak(recipe, card) * (1 + allocator_share(recipe))) + CONTEXT_BYTES


def allocator_share(recipe: Recipe) -> float:
    """What the allocator takes beyond the peak of the tensors, as a share of it."""
    return ALLOCATOR_SHARE if is_counted(recipe) else GRAPHS_SHARE


def fits(recipe: Recipe, card: Card) -> bool:
    return needed_bytes(recipe, card) <= card.memory_gib * 2**30


def largest_micro_batch(recipe: Recipe, card: Card) -> int:
    """The largest micro-batch that fits with a reserve, 0 if none does."""
    return _largest(lambda size: fits(recipe.but(micro_batch=size), card))


def planned_micro_batch(recipe: Recipe, limit_bytes: int | None, capability: tuple[int, int] | None) -> int:
    """Where a search by trying should begin: the largest micro-batch whose planned peak the allocator could just hold.

    It dares more than `largest_micro_batch`, because a try that fails costs no more than one that fits. 0 without a
    guess: no limit (a CPU), a recipe that the formulas do not know, or not even one sequence.
    """
    if limit_bytes is None or not_modelled(recipe):
        return 0

    def holds(size: int) -> bool:
        plan = plan_memory(recipe.but(micro_batch=size), capability=capability or (9, 0))
        return plan.peak_allocated_bytes <= DARING * limit_bytes

    return _largest(holds)


def _largest(fits: Callable[[int], bool]) -> int:
    """By bisection, because more sequences never need less."""
    low, high = 0, 1
    while high <= LARGEST_MICRO_BATCH and fits(high):
        low, high = high, 2 * high
    high = min(high, LARGEST_MICRO_BATCH + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def switches(recipe: Recipe, card: Card) -> list[Step]:
    """Switches that would save memory, each on top of the ones before, up to the first with which it fits.

    At the end, if it still does not fit: the micro-batch halved until it does, with accumulation for the same batch.
    """
    steps: list[Step] = []
    for change, cost in SWITCHES:
        field, value = next(iter(change.items()))
        if getattr(recipe, field) == value or not _has_units(card, value):
            continue
        after = recipe.but(**change)
        saved = _peak(recipe, card) - _peak(after, card)
        if saved <= 0:
            continue
        recipe = after
        steps.append(_step(change, cost, saved, recipe, card))
        if steps[-1].fits:
            return steps
    if (most := largest_micro_batch(recipe, card)) and not fits(recipe, card):
        before, batch = _peak(recipe, card), recipe.micro_batch
        while batch > most:
            batch //= 2
        change = {"micro_batch": batch, "accumulation": -(-recipe.accumulation * recipe.micro_batch // batch)}
        recipe = recipe.but(**change)
        cost = "about as many tokens per update, in more and smaller passes"
        steps.append(_step(change, cost, before - _peak(recipe, card), recipe, card))
    return steps


def _has_units(card: Card, value: Any) -> bool:
    """False for a number format that the card would emulate; float16 takes its place there, and only there."""
    if value == "float16_autocast":
        return "bfloat16" not in card.flops_per_s
    return not str(value).startswith("bfloat16") or "bfloat16" in card.flops_per_s


def _step(change: dict[str, Any], cost: str, saved: int, recipe: Recipe, card: Card) -> Step:
    peak = _peak(recipe, card)
    return Step(change=change, cost=cost, saved_bytes=saved, peak_allocated_bytes=peak, fits=fits(recipe, card))


def _peak(recipe: Recipe, card: Card) -> int:
    return plan_memory(recipe, capability=card.capability).peak_allocated_bytes
