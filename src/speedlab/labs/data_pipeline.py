"""What the way of the data costs: where it lies, who loads it, how it is carried, and how slow a loader may be.

One step is compiled and fed in all these ways, since the compiler takes longer than everything else here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import repeat
from statistics import median
from typing import Any

from speedlab.data.corpus import load_corpus
from speedlab.labs.data_feeds import mapped, tokenised_online
from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.loader_wait import loader_wait_ms
from speedlab.measuring.starvation import starvation
from speedlab.measuring.stopwatch import synchronize
from speedlab.measuring.variant import start_fresh, start_variant, time_steps
from speedlab.measuring.workbench import Workbench
from speedlab.recipe import Recipe

Row = dict[str, Any]

# The shortest step of ladder nine-steps: what loading costs shows most beside it.
RUNG = "padded_vocab"
# Processes that load, where there are as many cores: PyTorch warns of more.
MANY_WORKERS = 4
MAPPED, ONLINE, BEST = "memory_mapped", "tokenised_online", "pinned_non_blocking"
# How a batch is carried, with each number of workers; the rest of the combinations would tell nothing new.
CARRIED_ALONE = ("pageable", "pinned", BEST, "double_buffered")
CARRIED_BY_MANY = ("pageable", "pinned", "double_buffered")
# Extra time of the loader in units of the step that it feeds and of the processes that load.
DELAYS, TOY_DELAYS = (0.0, 0.5, 1.0, 1.5, 2.0), (0.0, 1.0, 2.0)
# Batches that a process holds ready, against a loader that is slow once in a while: each so many-th batch takes so
# many steps, which is half a step a batch on the average.
PREFETCHES = (1, 2, 8)
HICCUP_EVERY, HICCUP_STEPS = 12, 6.0
LOADS = 5  # of a loader that nothing hides, for `load_ms`
# Whole rounds of hiccups, and of all workers. A step is short: so many of them level out what else a host does.
MOST_STEPS, TOY_STEPS, WATCHED_STEPS = 72, 24, 12


def data_pipeline(bench: Workbench, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows by `what`: resident (one batch that lies on the device already), pipeline, slow, prefetch.

    Each: step_ms, wait_ms and work_ms (see `Starvation`), starved_share, load_ms; slow and prefetch also
    predicted_step_ms.
    """
    recipe, steps = _recipe(bench), _steps(bench)
    many = max(1, min(MANY_WORKERS, bench.machine.cores))
    say("compiling the step that all loaders feed")
    start_fresh(bench.device)
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    for _ in range(1 + bench.plan.warmup_steps):
        step(batches)
    held = next(batches)
    step_ms = time_steps(step, repeat(held), bench.device, steps)
    host_ms = _host_ms(step, repeat(held), bench)
    yield {
        "what": "resident", "source": "on the device", "workers": 0, "carried": "not at all", "status": "measured",
        "reason": None, "step_ms": step_ms, "host_ms": host_ms, "tokens_per_step": recipe.tokens_per_step,
    }  # fmt: skip
    documents = list(load_corpus(bench.corpus, max_bytes=bench.profile.corpus_bytes).documents)

    def fed(feed: Callable[[], AbstractContextManager], *, drain: int = 0) -> Row:
        with feed() as batches:
            return _fed(bench, step, batches, drain) | {"tokens_per_step": recipe.tokens_per_step}

    for source, workers, carried in _pipelines(many):
        say(f"{source}, {workers} workers, {carried}")

        def feed(source: str = source, workers: int = workers, carried: str = carried) -> AbstractContextManager:
            if source == MAPPED:
                return mapped(bench.tokens.tokens, recipe, bench.device, carried=carried, workers=workers)
            return tokenised_online(documents, bench.profile.tokenizer_ranks, recipe, bench.device, workers=workers)

        yield attempt(lambda feed=feed: fed(feed), what="pipeline", source=source, workers=workers, carried=carried)

    resident_ms = median(step_ms)
    for workers in (0, many):
        for delay in TOY_DELAYS if bench.device.type == "cpu" else DELAYS:
            delay_ms = delay * resident_ms * max(1, workers)
            say(f"a loader that takes {delay_ms:.1f} ms longer, {workers} workers")

            def feed(workers: int = workers, delay_ms: float = delay_ms) -> AbstractContextManager:
                return mapped(bench.tokens.tokens, recipe, bench.device, workers=workers, delay_ms=delay_ms)

            drain = drained_after(2 * workers, delay)
            yield attempt(
                lambda feed=feed, drain=drain: fed(feed, drain=drain),
                what="slow", workers=workers,
                delay_in_steps=delay * max(1, workers), delay_ms=delay_ms,
                predicted_step_ms=predicted_step_ms(resident_ms, host_ms, delay_ms, workers),
            )  # fmt: skip
    for prefetch in PREFETCHES:
        say(f"a loader with hiccups, {prefetch} batches ahead")

        def feed(prefetch: int = prefetch) -> AbstractContextManager:
            return mapped(
                bench.tokens.tokens, recipe, bench.device, workers=1, prefetch=prefetch, every=HICCUP_EVERY,
                delay_ms=HICCUP_STEPS * resident_ms,
            )  # fmt: skip

        yield attempt(
            lambda feed=feed, prefetch=prefetch: fed(feed, drain=prefetch), what="prefetch", workers=1,
            prefetch=prefetch, hiccup_every=HICCUP_EVERY, hiccup_steps=HICCUP_STEPS,
            predicted_step_ms=predicted_with_hiccups_ms(resident_ms, prefetch),
        )  # fmt: skip


def predicted_step_ms(step_ms: float, host_ms: float, delay_ms: float, workers: int) -> float:
    """The mean step with a loader that takes `delay_ms` a batch.

    step_ms: of the device. host_ms: of that, what the host needs to queue it (on a CPU, all of it). Without workers
    the host first loads and then queues, while the device may still work on the step before; workers load at once.
    """
    return max(step_ms, delay_ms / workers if workers else delay_ms + host_ms)


def drained_after(ahead: int, slowness: float) -> int:
    """Steps until the batches that were loaded ahead are used up by steps that take one for each `1 / slowness` that
    comes. A loader that keeps up (`slowness` of 1 or less) never runs out: then the batches ahead are passed once."""
    return ahead if slowness <= 1 else math.ceil(ahead * slowness / (slowness - 1))


def predicted_with_hiccups_ms(step_ms: float, prefetch: int) -> float:
    """The mean step over a loader whose every `HICCUP_EVERY`-th batch takes `HICCUP_STEPS` steps: the device waits for
    what is left of the hiccup once the batches ahead are used up. A host that runs ahead of a GPU has steps queued
    there as well, so this is the most that a GPU should take."""
    return step_ms * (1 + max(0.0, HICCUP_STEPS - prefetch) / HICCUP_EVERY)


def _pipelines(many: int) -> Iterator[tuple[str, int, str]]:
    """(where the tokens come from, worker processes, how batches are carried)"""
    yield from ((MAPPED, 0, carried) for carried in CARRIED_ALONE)
    yield from ((MAPPED, many, carried) for carried in CARRIED_BY_MANY)
    yield from ((MAPPED, workers, BEST) for workers in sorted({1, many}))
    yield from ((ONLINE, workers, BEST) for workers in sorted({0, 1, many}))


def _fed(bench: Workbench, step: Callable, batches: Iterator, drain: int) -> Row:
    """drain: batches that were loaded ahead before anybody asked, and would flatter a slow loader."""
    for _ in range(bench.plan.warmup_steps + drain):
        step(batches)
    steps = _steps(bench)
    step_ms = time_steps(step, batches, bench.device, steps)
    watched = starvation(step, batches, bench.device, min(WATCHED_STEPS, steps))
    return {
        "step_ms": step_ms,
        "wait_ms": watched.wait_ms,
        "work_ms": watched.work_ms,
        "starved_share": watched.share,
        "load_ms": loader_wait_ms(step, batches, bench.device, LOADS),
    }


def _steps(bench: Workbench) -> int:
    """How many steps are timed for each row: on a GPU as many as level out a busy host, if no more are asked for."""
    return max(MOST_STEPS, bench.plan.steps) if bench.profile.publishable else min(TOY_STEPS, bench.plan.steps)


def _host_ms(step: Callable, batches: Iterator, bench: Workbench) -> float:
    """What the host needs to queue one step on an idle device; on a CPU, the whole step."""
    times_ms = []
    for _ in range(LOADS):
        synchronize(bench.device)
        start = time.perf_counter()
        step(batches)
        times_ms.append(1e3 * (time.perf_counter() - start))
    return median(times_ms)


def _recipe(bench: Workbench) -> Recipe:
    """On a CPU in the format and form that are quick there, since only the loaders differ."""
    recipe = bench.scaled(NINE_STEPS.recipe_at(RUNG))
    return recipe.but(precision="float32", compile="off") if bench.device.type == "cpu" else recipe
