"""Three levers alone and together: FlashAttention, checkpointing, the way of the data, on a model that is too large.

On the whole card at a context where even the plain form fits, for their speeds; then on smaller cards, which are
emulated, at a context where it does not. What each needs is predicted before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from speedlab.cards import CARDS, Card
from speedlab.data.corpus import load_corpus
from speedlab.errors import NotAvailable
from speedlab.labs.data_feeds import mapped, tokenised_online
from speedlab.labs.rows import attempt
from speedlab.labs.steps import start
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.memory import card_bytes, emulated_card, free_everything, read_peak, reset_peak
from speedlab.measuring.starvation import starvation
from speedlab.measuring.variant import time_steps
from speedlab.measuring.workbench import Workbench
from speedlab.memory_fit import CONTEXT_BYTES, fits, needed_bytes
from speedlab.memory_path import decide
from speedlab.memory_plan import plan_memory
from speedlab.recipe import Recipe

Row = dict[str, Any]

# GPT-2 medium, about 350 M weights, with attention written out. No dropout, so that losses can be compared.
PLAIN = NINE_STEPS.recipe_at("merged_qkv").but(
    num_layers=24, embedding_width=1024, num_heads=16, output_head="tied", dropout=0.0,
    precision="bfloat16_autocast", attention="plain",
)  # fmt: skip
FLASH, CHECKPOINTED = {"attention": "sdpa"}, {"checkpointing": "every_block"}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Changes of the recipe, and whether tokens come from the mapped file or are made from text on the way."""

    change: dict[str, Any]
    pipeline: bool = False


VARIANTS: dict[str, Variant] = {
    "baseline": Variant(change={}),
    "FlashAttention": Variant(change=FLASH),
    "checkpointing": Variant(change=CHECKPOINTED),
    "pipeline": Variant(change={}, pipeline=True),
    "FlashAttention, checkpointing": Variant(change=FLASH | CHECKPOINTED),
    "all three": Variant(change=FLASH | CHECKPOINTED, pipeline=True),
    "all three, selective": Variant(change=FLASH | {"checkpointing": "selective"}, pipeline=True),
}
# One whole pass of which the plain form fits a card of 141 GB.
WHOLE = {"context_length": 4096, "micro_batch": 2}
# What is wanted on smaller cards: two sequences an update, at once or one after the other.
WANTED = {"context_length": 8192, "micro_batch": 2}
SPLIT = {"context_length": 8192, "micro_batch": 1, "accumulation": 2}
BUDGETS: tuple[tuple[int, dict[str, int], tuple[str, ...]], ...] = (
    (24, WANTED, ("baseline", "FlashAttention", "checkpointing", "all three")),
    (24, SPLIT, ("baseline", "FlashAttention", "checkpointing", "all three")),
    (16, SPLIT, ("FlashAttention", "all three, selective", "all three")),
)
LOSS_STEPS, WARMUP_STEPS, STEPS, WATCHED_STEPS = 3, 1, 8, 3
TOY_STEPS = 2
SLOT = "nvidia-l4"  # whose number formats the smaller cards have


def together(bench: Workbench, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows by `what`: path (the decision, predicted only), whole, budget.

    Each of the last two: predicted_peak_bytes, predicted_needed_bytes, predicted_fits; where it ran step_ms,
    tokens_per_step, losses (whole only), peak_allocated_bytes, peak_reserved_bytes, starved_share.
    """
    documents = list(load_corpus(bench.corpus, max_bytes=bench.profile.corpus_bytes).documents)
    for gib in dict.fromkeys(gib for gib, _, _ in BUDGETS):
        for number, choice in enumerate(decide(PLAIN.but(**WANTED), budget_card(gib, bench))):
            yield {"what": "path", "status": "measured", "reason": None, "budget_gib": gib, "number": number,
                   **choice.as_dict()}  # fmt: skip
    for name, variant in VARIANTS.items():
        say(f"whole card: {name}")
        yield _row(bench, documents, name, variant, WHOLE, None)
    for gib, shape, names in BUDGETS:
        for name in names:
            say(f"{gib} GB, emulated: {name}")
            yield _row(bench, documents, name, VARIANTS[name], shape, gib)


def budget_card(gib: float, bench: Workbench) -> Card:
    """A card of so much memory with the libraries' workspaces of the one that is here."""
    card = next(card for card in CARDS if card.slug == SLOT)
    return replace(card, title=f"{gib:g} GB", memory_gib=float(gib), capability=bench.machine.capability or (9, 0))


def _row(
    bench: Workbench, documents: list[str], name: str, variant: Variant, shape: dict[str, int], gib: int | None
) -> Row:
    asked = PLAIN.but(**shape, **variant.change)
    recipe = bench.scaled(asked)
    if gib is None:
        what: Row = {"what": "whole", "predicted_fits": None}
    else:
        what = {"what": "budget", "budget_gib": gib, "emulated": True,
                "predicted_fits": fits(asked, budget_card(gib, bench))}  # fmt: skip
    plan = plan_memory(recipe, capability=bench.machine.capability or (9, 0))
    try:
        return attempt(
            lambda: _timed(bench, documents, recipe, variant, gib),
            **what, variant=name, context_length=recipe.context_length, micro_batch=recipe.micro_batch,
            accumulation=recipe.accumulation, pipeline=variant.pipeline,
            predicted_peak_bytes=plan.peak_allocated_bytes,
            predicted_needed_bytes=needed_bytes(recipe, budget_card(gib or 0, bench)),
        )  # fmt: skip
    finally:
        if bench.device.type == "cuda":
            free_everything(bench.device)  # also what a step that did not fit has left behind


def _timed(bench: Workbench, documents: list[str], recipe: Recipe, variant: Variant, gib: int | None) -> Row:
    on_gpu = bench.device.type == "cuda"
    with _limited(bench, gib):
        step, first = start(bench, recipe)
        losses = [step(first) for _ in range(LOSS_STEPS)]  # of the same batches, whatever the variant
        with _feed(bench, documents, recipe, variant) as batches:
            # The text comes from the same corpus; only who makes ids of it differs.
            for _ in range(WARMUP_STEPS):
                step(batches)
            reset_peak(bench.device)
            step_ms = time_steps(step, batches, bench.device, STEPS if on_gpu else TOY_STEPS)
            peak = read_peak(bench.device)
            watched = starvation(step, batches, bench.device, WATCHED_STEPS if on_gpu else TOY_STEPS)
    return {
        "step_ms": step_ms,
        "tokens_per_step": recipe.tokens_per_step,
        "losses": torch.stack(losses).tolist(),
        "peak_allocated_bytes": peak.allocated_bytes,
        "peak_reserved_bytes": peak.reserved_bytes,
        "starved_share": watched.share,
    }


def _limited(bench: Workbench, gib: int | None) -> AbstractContextManager:
    """The allocator of a card of `gib`: its memory less what the driver and the libraries keep of it."""
    there = card_bytes(bench.device)
    if gib is not None and there is not None and gib * 2**30 > there:
        raise NotAvailable(f"a card of {gib} GB cannot be emulated on one with {there / 2**30:.1f} GiB")
    return emulated_card(None if gib is None else gib - CONTEXT_BYTES / 2**30, bench.device)


def _feed(bench: Workbench, documents: list[str], recipe: Recipe, variant: Variant) -> AbstractContextManager:
    if variant.pipeline:
        return mapped(bench.tokens.tokens, recipe, bench.device, carried="double_buffered", workers=1)
    return tokenised_online(documents, bench.profile.tokenizer_ranks, recipe, bench.device, pin=False)
