"""What checkpointing buys on smaller cards: the largest batch, the longest context, and how full a card should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from speedlab.errors import NotAvailable
from speedlab.labs.emulated_cards import CARDS, guess_from, largest_batch, limit_bytes, limit_gib
from speedlab.labs.rows import attempt
from speedlab.labs.steps import EAGER, base_context, timed_alone, weights_at
from speedlab.measuring.batch_probe import largest_that_fits, probe_micro_batch
from speedlab.measuring.memory import emulated_card
from speedlab.measuring.workbench import Workbench
from speedlab.recipe import Recipe

WAYS = ("off", "selective", "every_block")
SMALLER = tuple(card for card, gib in CARDS.items() if gib is not None)
FILL_CARD = "16 GB"
FILLS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)  # of the largest batch
LONG_WAYS = ("off", "every_block")
DOUBLINGS = 7  # of the base context, which is the first of them; the search begins in the middle
GUESS_BATCHES = (2, 8)


def run(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    on_gpu = bench.device.type == "cuda"
    largest_plain: int | None = None
    for way in WAYS:
        recipe = bench.scaled(EAGER.but(checkpointing=way))
        peaks = _peaks(bench, recipe) if on_gpu else {}
        for card in SMALLER if on_gpu else ("whole card",):
            say(f"largest batch, {way}: {card}")
            guess = guess_from(peaks, limit_bytes(bench, card))
            row = attempt(
                lambda recipe=recipe, card=card, guess=guess: largest_batch(bench, recipe, card, guess=guess),
                kind="largest", way=way, card=card, context_length=recipe.context_length, guess=guess,
            )  # fmt: skip
            if way == "off" and card == FILL_CARD:
                largest_plain = row.get("largest")
            yield row
        for card in SMALLER if way in LONG_WAYS else ():
            say(f"longest context, {way}: {card}")
            yield attempt(
                lambda recipe=recipe, card=card: _longest(bench, recipe, card),
                kind="longest", way=way, card=card, micro_batch=1,
            )  # fmt: skip
    for batch in sorted({max(1, round(fill * largest_plain)) for fill in FILLS}) if largest_plain else ():
        say(f"{batch} of {largest_plain} sequences on {FILL_CARD}")
        recipe = bench.scaled(EAGER).but(micro_batch=batch)
        yield attempt(
            lambda recipe=recipe: _filled(bench, recipe), kind="fill", card=FILL_CARD, micro_batch=batch,
            largest=largest_plain,
        )  # fmt: skip


def _peaks(bench: Workbench, recipe: Recipe) -> dict[int, int]:
    """Peak bytes of two small batches, from which the search guesses where to begin."""
    rows = {
        size: attempt(lambda size=size: timed_alone(bench, recipe.but(micro_batch=size), warmup=1, steps=1))
        for size in GUESS_BATCHES
    }
    return {size: row["peak_allocated_bytes"] for size, row in rows.items() if row["status"] == "measured"}


def _longest(bench: Workbench, recipe: Recipe, card: str) -> dict[str, Any]:
    """The longest context that one sequence can have, in doublings of the base context."""
    if bench.device.type != "cuda":
        raise NotAvailable("a CPU has no allocator that says no to a long context")
    base = base_context(bench)

    def fits(doubling: int) -> bool:
        longer = recipe.but(context_length=base * 2 ** (doubling - 1), micro_batch=1)
        try:
            probe_micro_batch(longer, weights_at(bench, longer), bench.tokens.tokens, bench.place, at_most=1)
        except NotAvailable:  # not even one sequence
            return False
        return True

    with emulated_card(limit_gib(bench, card), bench.device):
        found = largest_that_fits(fits, at_most=DOUBLINGS, guess=DOUBLINGS // 2 + 1)
    if not found:
        raise NotAvailable(f"not even a context of {base} fits on {card}")
    return {
        "longest": base * 2 ** (found - 1),
        "bounded": found == DOUBLINGS,
        "limit_bytes": limit_bytes(bench, card),
    }


def _filled(bench: Workbench, recipe: Recipe) -> dict[str, Any]:
    with emulated_card(limit_gib(bench, FILL_CARD), bench.device):
        row = timed_alone(bench, recipe, warmup=3, steps=12)
    return row | {"limit_bytes": limit_bytes(bench, FILL_CARD)}
