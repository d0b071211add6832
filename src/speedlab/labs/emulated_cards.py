"""Smaller cards as the labs emulate them, and what fits on each. Nothing here knows how a card is limited."""

from __future__ import annotations

from typing import Any

from speedlab.errors import NotAvailable
from speedlab.labs.steps import weights_at
from speedlab.measuring.batch_probe import Try, probe_micro_batch
from speedlab.measuring.memory import card_bytes, emulated_card
from speedlab.measuring.workbench import Workbench
from speedlab.memory_fit import DARING
from speedlab.recipe import Recipe

# What the allocator can have on such a card, in GiB: the driver and its libraries keep about half a GiB, and a T4 of
# "16 GB" reports 15.0 GiB in the first place, an A100 of "40 GB" 39.6.
CARDS: dict[str, float | None] = {"16 GB": 14.5, "40 GB": 39.0, "whole card": None}
AT_MOST = 1024
TOY_AT_MOST = 4


def largest_batch(bench: Workbench, recipe: Recipe, card: str, *, guess: int | None = None) -> dict[str, Any]:
    """The largest micro-batch of `recipe` on a card of `CARDS`, with every try. On a CPU only the toy bound ends it."""
    at_most = AT_MOST if bench.device.type == "cuda" else TOY_AT_MOST
    with emulated_card(limit_gib(bench, card), bench.device):
        probe = probe_micro_batch(
            recipe, weights_at(bench, recipe), bench.tokens.tokens, bench.place, at_most=at_most, guess=guess
        )
    return {
        "largest": probe.largest,
        "bounded": probe.bounded,
        "limit_bytes": probe.limit_bytes,
        "emulated": probe.emulated,
        "peak_reserved_bytes": probe.best.peak_reserved_bytes,
        "peak_allocated_bytes": probe.best.peak_allocated_bytes,
        "tries": [_short(tried) for tried in probe.tries],
    }


def limit_gib(bench: Workbench, card: str) -> float | None:
    """The limit to set for a card of `CARDS`; `NotAvailable` where the real card has no more than that."""
    gib = CARDS[card]
    there = card_bytes(bench.device)
    if gib is not None and there is not None and gib * 2**30 > there:
        raise NotAvailable(f"a card of {card} cannot be emulated on one with {there / 2**30:.1f} GiB")
    return gib


def guess_from(peaks: dict[int, int], limit_bytes: int | None) -> int | None:
    """The batch that fills the limit by a straight line through the peaks of the smallest and the largest batch."""
    if limit_bytes is None or len(peaks) < 2:
        return None
    small, large = min(peaks), max(peaks)
    per_sequence = (peaks[large] - peaks[small]) / (large - small)
    fixed = peaks[small] - per_sequence * small
    return max(1, int((DARING * limit_bytes - fixed) / per_sequence)) if per_sequence > 0 else None


def limit_bytes(bench: Workbench, card: str) -> int | None:
    """Bytes of a card of `CARDS`: its own, or those of the card that is here; None on a CPU."""
    gib = CARDS[card]
    there = card_bytes(bench.device)
    if there is None:
        return None
    return there if gib is None else min(there, int(gib * 2**30))


def _short(tried: Try) -> dict[str, Any]:
    return {"micro_batch": tried.micro_batch, "fits": tried.fits, "seconds": round(tried.seconds, 3)}
