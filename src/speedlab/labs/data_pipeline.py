"""What the way of the data costs: where it lies, who loads it, how it is carried, how texts become one shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import repeat
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader

from speedlab.data.corpus import load_corpus
from speedlab.data.online import OnlineWindows
from speedlab.data.shaping import SHAPINGS, real_tokens
from speedlab.data.stream import BatchStream
from speedlab.data.tokenizer import get_tokenizer
from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.loader_wait import loader_wait_ms
from speedlab.measuring.variant import start_fresh, start_variant, time_steps
from speedlab.measuring.workbench import Workbench
from speedlab.recipe import Recipe

Say = Callable[[str], None]
Row = dict[str, Any]

# How a loader is run: (where the tokens come from, worker processes, how batches are carried). Only so many of the
# combinations as tell the parts apart.
PIPELINES = (
    *(("memory_mapped", 0, carried) for carried in ("pageable", "pinned", "pinned_non_blocking", "double_buffered")),
    *(("memory_mapped", workers, "pinned_non_blocking") for workers in (1, 4)),
    *(("tokenised_online", workers, "pinned_non_blocking") for workers in (0, 1, 4)),
)
# Extra time of the loader, in units of the step that it feeds.
DELAYS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def pipelines(bench: Workbench, say: Say) -> Iterator[Row]:
    """One compiled step, fed in different ways. The first row feeds it one batch that lies on the device already."""
    recipe = _recipe(bench, "batch_size")
    step, batches = _started(bench, recipe, say)
    held = next(batches)
    resident_ms = time_steps(step, repeat(held), bench.device, bench.plan.steps)
    yield {"source": "on the device", "workers": 0, "carried": "not at all", "status": "measured", "reason": None,
           "step_ms": resident_ms, "tokens_per_step": recipe.tokens_per_step}  # fmt: skip
    documents = _documents(bench)
    for source, workers, carried in PIPELINES:

        def make(source: str = source, workers: int = workers, carried: str = carried) -> Row:
            feed = _feed(bench, recipe, documents, source, workers, carried)
            try:
                for _ in range(bench.plan.warmup_steps):
                    step(feed)
                step_ms = time_steps(step, feed, bench.device, bench.plan.steps)
                return {
                    "step_ms": step_ms,
                    "tokens_per_step": recipe.tokens_per_step,
                    "wait_ms": loader_wait_ms(step, feed, bench.device, 5),
                    # What the step takes beyond the one that finds its batch on the device.
                    "starved_share": max(0.0, 1.0 - median(resident_ms) / median(step_ms)),
                }
            finally:
                _close(feed)

        yield attempt(make, source=source, workers=workers, carried=carried)


def slow_loader(bench: Workbench, say: Say) -> Iterator[Row]:
    """The loader slowed on purpose, alone and with four workers: where does it become the bottleneck?

    predicted_step_ms: step + delay where one process does both one after the other (a GPU works on while the host
    loads, so there the larger of the two), the larger of step and delay over the workers where others load ahead.
    """
    recipe = _recipe(bench, "batch_size")
    step, batches = _started(bench, recipe, say)
    step_ms = median(time_steps(step, batches, bench.device, bench.plan.steps))
    for workers in (0, 4):
        for delay in DELAYS:

            def make(workers: int = workers, delay_ms: float = delay * step_ms) -> Row:
                feed = _SlowStream(bench.tokens.tokens, recipe, bench, workers, delay_ms)
                try:
                    for _ in range(bench.plan.warmup_steps + 2 * workers):  # what was loaded ahead is used up first
                        step(feed)
                    samples = time_steps(step, feed, bench.device, max(8, bench.plan.steps // 2))
                finally:
                    feed.close()
                on_cpu = bench.device.type == "cpu"
                ahead = max(step_ms, delay_ms / max(1, workers))
                return {
                    "delay_ms": delay_ms,
                    "step_ms": samples,
                    "predicted_step_ms": step_ms + delay_ms if on_cpu and not workers else ahead,
                }

            yield attempt(make, workers=workers, delay_in_steps=delay)


def shapes_of_text(bench: Workbench, say: Say) -> Iterator[Row]:
    """Paragraphs of many lengths, padded, bucketed or packed: speed in tokens that are trained on."""
    recipe = _recipe(bench, "merged_qkv").but(dropout=0.0)
    tokenizer = get_tokenizer(bench.profile.tokenizer_ranks)
    wanted = 3 * (bench.plan.steps + bench.plan.warmup_steps) * recipe.micro_batch
    examples = []
    for text in _paragraphs(bench):
        examples.append(torch.tensor([*tokenizer.encode(text), tokenizer.end_of_text]).numpy().astype("uint16"))
        if len(examples) >= 40 * wanted:
            break
    for name, shape in SHAPINGS.items():

        def make(shape: Callable = shape) -> Row:
            start_fresh(bench.device)
            step, _ = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
            batches = shape(
                examples, recipe.micro_batch, recipe.context_length, padding_id=tokenizer.end_of_text, seed=recipe.seed
            )
            given = [next(batches) for _ in range(bench.plan.warmup_steps + bench.plan.steps)]
            feed = iter([tuple(part.to(bench.device) for part in batch) for batch in given])
            for _ in range(bench.plan.warmup_steps):
                step(feed)
            timed = given[bench.plan.warmup_steps :]
            step_ms = time_steps(step, feed, bench.device, bench.plan.steps)
            positions = sum(targets.numel() for _, targets in timed)
            trained = sum(real_tokens(targets) for _, targets in timed)
            return {
                "step_ms": step_ms,
                "positions": positions,
                "trained_tokens": trained,
                "padding_share": 1.0 - trained / positions,
                "trained_tokens_per_s": 1e3 * trained / sum(step_ms),
                "different_shapes": len({targets.shape for _, targets in timed}),
            }

        yield attempt(make, shaping=name, texts=len(examples))


def _recipe(bench: Workbench, rung: str) -> Recipe:
    """The recipe of a rung; on a CPU in the format and form that are quick there, since only the loaders differ."""
    recipe = bench.scaled(NINE_STEPS.recipe_at(rung))
    return recipe.but(precision="float32", compile="off") if bench.device.type == "cpu" else recipe


def _started(bench: Workbench, recipe: Recipe, say: Say):
    say("compiling the step that all loaders feed")
    start_fresh(bench.device)
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    for _ in range(1 + bench.plan.warmup_steps):
        step(batches)
    return step, batches


def _documents(bench: Workbench) -> list[str]:
    return list(load_corpus(bench.corpus, max_bytes=bench.profile.corpus_bytes).documents)


def _paragraphs(bench: Workbench) -> Iterator[str]:
    for document in _documents(bench):
        yield from (part for part in document.split("\n\n") if part.strip())


def _feed(bench: Workbench, recipe: Recipe, documents: list[str], source: str, workers: int, carried: str):
    if source == "memory_mapped":
        return BatchStream(
            bench.tokens.tokens, micro_batch=recipe.micro_batch, context_length=recipe.context_length,
            host_memory=carried, device=bench.device, seed=recipe.seed, num_workers=workers,
        )  # fmt: skip
    windows = OnlineWindows(
        documents, ranks=bench.profile.tokenizer_ranks, micro_batch=recipe.micro_batch,
        context_length=recipe.context_length,
    )  # fmt: skip
    pin = bench.device.type == "cuda"
    return _carried(DataLoader(windows, batch_size=None, num_workers=workers, pin_memory=pin), bench.device)


def _carried(loader: DataLoader, device: torch.device) -> Iterator:
    for batch in loader:
        yield tuple(part.to(device, non_blocking=True) for part in batch)


def _close(feed: Any) -> None:
    """End the worker processes now, not when the garbage collector comes by."""
    feed.close()


class _SlowTokens:
    """An array whose rows take a while to come, as from a slow disk or after costly preparation."""

    def __init__(self, tokens: Any, delay_ms: float) -> None:
        self._tokens, self._delay_s = tokens, delay_ms / 1e3

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitems__(self, indices: list[int]) -> Any:
        time.sleep(self._delay_s)
        return self._tokens.__getitems__(indices)


class _SlowStream(BatchStream):
    """The ordinary stream with `delay_ms` of waiting before each batch, in the process that loads it."""

    def __init__(self, tokens: Any, recipe: Recipe, bench: Workbench, workers: int, delay_ms: float) -> None:
        super().__init__(
            tokens, micro_batch=recipe.micro_batch, context_length=recipe.context_length,
            host_memory="pinned_non_blocking", device=bench.device, seed=recipe.seed, num_workers=workers,
            around=lambda windows: _SlowTokens(windows, delay_ms),
        )  # fmt: skip
