"""In which order to pull the levers when a recipe does not fit a card: the decision path of lab "together". Torch-free.

`memory_fit.switches` lists every switch; this asks a reader's questions one after the other and stops at a yes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from speedlab.cards import Card
from speedlab.errors import BadInput
from speedlab.memory_fit import fits, largest_micro_batch, needed_bytes
from speedlab.memory_plan import plan_memory
from speedlab.recipe import Recipe

# Tokens of one pass that keep a large card busy at this width; below, smaller passes cost speed (lab batch_probe).
ENOUGH_TOKENS = 4096
FUSED = "sdpa"
# Ways to keep less, the cheaper first.
WAYS = ("selective", "every_block")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One question of the path: what was changed to get here, what it costs, and whether it fits now.

    change: fields of the recipe, empty where nothing had to be done. needed_bytes: of the card, reserve included.
    """

    question: str
    change: dict[str, Any]
    cost: str
    recipe: Recipe
    peak_allocated_bytes: int
    needed_bytes: int
    fits: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain values, the recipe left out."""
        return {
            "question": self.question, "change": self.change, "cost": self.cost, "needed_bytes": self.needed_bytes,
            "peak_allocated_bytes": self.peak_allocated_bytes, "fits": self.fits,
        }  # fmt: skip


def decide(recipe: Recipe, card: Card) -> list[Choice]:
    """The choices from the recipe as it is to one that fits `card`, or to the last thing that could be tried.

    FlashAttention is taken whether it is needed or not, since it is faster too. The number of tokens of an update
    stays, or grows by rounding up where a micro-batch is split.
    """
    path = [_choice("Does it fit as it is?", {}, "nothing", recipe, card)]
    if recipe.attention in ("plain", "sdpa_math"):
        change = {"attention": FUSED}
        recipe = recipe.but(**change)
        path.append(_choice("Is attention fused?", change, "nothing: it is faster as well", recipe, card))
    enough = max(1, ENOUGH_TOKENS // recipe.context_length)
    whole = recipe
    for way in ("off", *WAYS):
        if way != "off":
            recipe = whole.but(checkpointing=way)
            cost = "cheap operations again" if way == "selective" else "each block's forward pass again"
            question = f"Is keeping less enough ({way.replace('_', ' ')})?"
            path.append(_choice(question, {"checkpointing": way}, cost, recipe, card))
        if path[-1].fits:
            return path
        if split := _split(recipe, card, at_least=enough):
            cost = "little: each pass still fills the card"
            return [*path, _choice("Do smaller passes fill the card?", split, cost, recipe.but(**split), card)]
    if split := _split(recipe, card, at_least=1):
        cost = "speed: such passes do not fill the card"
        path.append(_choice("Do smaller passes fit at all?", split, cost, recipe.but(**split), card))
    return path


def workers_needed(load_ms: float, step_ms: float) -> int:
    """Processes that have to load ahead so that a step never waits; 0 where the host can load behind the device.

    load_ms: what one batch takes. Half a step is left to the host, which has to queue the work of each step too.
    """
    if load_ms < 0 or step_ms <= 0:
        raise BadInput(f"load_ms is {load_ms!r}, step_ms is {step_ms!r}: give milliseconds, a step longer than 0")
    return 0 if load_ms <= step_ms / 2 else max(1, math.ceil(load_ms / step_ms))


def _split(recipe: Recipe, card: Card, *, at_least: int) -> dict[str, int] | None:
    """A smaller micro-batch that fits, accumulated to the same tokens; None if it would be below `at_least`."""
    size = min(recipe.micro_batch, largest_micro_batch(recipe, card))
    # With accumulation the gradients of earlier passes stand during the next one, so less may fit.
    while size >= at_least and size > 0:
        passes = -(-recipe.micro_batch * recipe.accumulation // size)
        change = {"micro_batch": size, "accumulation": passes}
        if size < recipe.micro_batch and fits(recipe.but(**change), card):
            return change
        size -= 1
    return None


def _choice(question: str, change: dict[str, Any], cost: str, recipe: Recipe, card: Card) -> Choice:
    return Choice(
        question=question, change=change, cost=cost, recipe=recipe, fits=fits(recipe, card),
        peak_allocated_bytes=plan_memory(recipe, capability=card.capability).peak_allocated_bytes,
        needed_bytes=needed_bytes(recipe, card),
    )  # fmt: skip
