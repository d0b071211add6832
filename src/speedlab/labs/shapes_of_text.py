"""What padding costs: texts of many lengths made into batches in four ways, timed in tokens that are trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from speedlab.data.corpus import load_corpus
from speedlab.data.shaping import SHAPINGS, Examples, real_tokens
from speedlab.data.tokenizer import get_tokenizer
from speedlab.errors import NotAvailable
from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.variant import start_fresh, start_variant, time_steps
from speedlab.measuring.workbench import Workbench
from speedlab.recipe import Recipe

# Not compiled: each length would be a graph of its own.
RUNG = "merged_qkv"
MOST_TEXTS = 40  # for each sequence that is timed: packed batches take so many short texts


def shapes_of_text(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """A row for each of `SHAPINGS`: step_ms, positions, trained_tokens, padding_share, trained_tokens_per_s,
    different_shapes, first_pass_ms.

    The batches are stepped through twice. A length that is new costs once, which is no matter of the padding: it shows
    in first_pass_ms, and all other numbers are of the second pass.
    """
    recipe = bench.scaled(NINE_STEPS.recipe_at(RUNG)).but(dropout=0.0)
    if bench.device.type == "cpu":
        recipe = recipe.but(precision="float32")
    examples = paragraphs_as_ids(bench, MOST_TEXTS * (bench.plan.steps + bench.plan.warmup_steps) * recipe.micro_batch)
    for name, shape in SHAPINGS.items():
        say(f"shaping {name}")
        yield attempt(
            lambda shape=shape: _timed(bench, recipe, shape, examples), what="shaping", shaping=name,
            texts=len(examples), context_length=recipe.context_length,
        )  # fmt: skip


def paragraphs_as_ids(bench: Workbench, most: int) -> list[np.ndarray]:
    """Up to `most` paragraphs of the corpus, each as uint16 ids with end-of-text behind it."""
    tokenizer = get_tokenizer(bench.profile.tokenizer_ranks)
    documents = load_corpus(bench.corpus, max_bytes=bench.profile.corpus_bytes).documents
    texts = (part for document in documents for part in document.split("\n\n") if part.strip())
    return [np.array([*tokenizer.encode(text), tokenizer.end_of_text], dtype=np.uint16) for text in islice(texts, most)]


def _timed(bench: Workbench, recipe: Recipe, shape: Callable, examples: Examples) -> dict[str, Any]:
    padding_id = get_tokenizer(bench.profile.tokenizer_ranks).end_of_text
    warmup, steps = bench.plan.warmup_steps, bench.plan.steps
    batches = shape(examples, recipe.micro_batch, recipe.context_length, padding_id=padding_id, seed=recipe.seed)
    given = list(islice(batches, warmup + steps))
    if len(given) < warmup + steps:
        raise NotAvailable(f"the corpus makes {len(given)} batches, {warmup + steps} are timed: give a longer corpus")
    start_fresh(bench.device)
    step, _ = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    there = [tuple(part.to(bench.device) for part in batch) for batch in given]
    feed = iter(there)
    for _ in range(warmup):
        step(feed)
    first_pass_ms = time_steps(step, feed, bench.device, steps)
    step_ms = time_steps(step, iter(there[warmup:]), bench.device, steps)
    positions = sum(targets.numel() for _, targets in given[warmup:])
    trained = sum(real_tokens(targets) for _, targets in given[warmup:])
    return {
        "step_ms": step_ms,
        "first_pass_ms": first_pass_ms,
        "positions": positions,
        "trained_tokens": trained,
        "padding_share": 1.0 - trained / positions,
        "trained_tokens_per_s": 1e3 * trained / sum(step_ms),
        "different_shapes": len({tuple(targets.shape) for _, targets in given[warmup:]}),
    }
