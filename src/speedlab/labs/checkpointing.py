"""Ways to checkpoint: memory against time, whether the gradients stay, and memory along one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from speedlab.errors import NotAvailable
from speedlab.labs.rows import attempt
from speedlab.labs.steps import EAGER, TOP, Prepare, base_context, gradients, relative_error, start, timed
from speedlab.measuring.workbench import Workbench
from speedlab.model import GPT
from speedlab.model.gpt import Block
from speedlab.recipe import CHOICES, Recipe
from speedlab.training.checkpointing import checkpoint_groups

WAYS = CHOICES["checkpointing"]
COMPILED_WAYS = ("off", "every_block", "selective")  # each is another graph
LONG = 4  # times the base context, at a fourth of the batch
GROUP_SIZES = (2, 3, 4, 6, 12)
SEGMENTS = (12, 4, 2)
TIMELINES = ("off", "every_block", "selective")


def reentrant_blocks(model: GPT) -> None:
    """Every block by the older form, which runs a backward pass inside the backward pass."""
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=True)


def by_segments(model: GPT, segments: int) -> None:
    """PyTorch's `checkpoint_sequential`: segments of whole blocks, of which the last one keeps everything."""
    blocks = list(model.blocks)
    model.run_blocks = lambda x_BTC: checkpoint_sequential(blocks, segments, x_BTC, use_reentrant=False)


def by_wrapper(model: GPT) -> None:
    """PyTorch's `checkpoint_wrapper` around each block: the same call, with another name for each weight."""
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda part: isinstance(part, Block)
    )


def other_forms(recipe: Recipe) -> dict[str, Prepare]:
    """What stands beside the recipe's own ways: name -> function that changes a model without checkpointing."""
    layers = recipe.num_layers
    forms: dict[str, Prepare] = {
        f"groups_of_{size}": partial(checkpoint_groups, recipe, size=size) for size in GROUP_SIZES if size <= layers
    }
    forms |= {
        f"checkpoint_sequential_{segments}": partial(by_segments, segments=segments)
        for segments in SEGMENTS
        if segments <= layers
    }
    return forms | {"checkpoint_wrapper": by_wrapper, "reentrant": reentrant_blocks}


def run(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    toy = not bench.profile.publishable
    base = base_context(bench)
    # A batch large enough that the GPU, not Python, sets the pace: what is run again is then seen in the time.
    eager = bench.scaled(EAGER)
    eager = eager.but(micro_batch=2) if toy else eager
    long = eager.but(context_length=LONG * base, micro_batch=max(1, eager.micro_batch // LONG))
    plan: list[tuple[str, Recipe, Prepare | None]] = [(way, eager.but(checkpointing=way), None) for way in WAYS]
    plan += [(name, eager, prepare) for name, prepare in other_forms(eager).items()]
    plan += [(way, long.but(checkpointing=way), None) for way in WAYS]
    if not toy:
        compiled = bench.scaled(TOP).but(micro_batch=eager.micro_batch)
        plan += [(way, compiled.but(checkpointing=way), None) for way in COMPILED_WAYS]
    for way, recipe, prepare in plan:
        say(f"{way}, compile {recipe.compile}, {recipe.micro_batch} x {recipe.context_length} tokens")
        yield attempt(
            lambda recipe=recipe, prepare=prepare: _timed(bench, recipe, prepare, toy),
            kind="variant", way=way, compile=recipe.compile, micro_batch=recipe.micro_batch,
            context_length=recipe.context_length,
        )  # fmt: skip
    yield from _gradient_rows(bench, say, eager)
    for way in TIMELINES:
        say(f"memory along a step: {way}")
        recipe = eager.but(checkpointing=way)
        yield attempt(lambda recipe=recipe: timeline(bench, recipe), kind="timeline", way=way, compile="off",
                      micro_batch=recipe.micro_batch, context_length=recipe.context_length)  # fmt: skip


def _timed(bench: Workbench, recipe: Recipe, prepare: Prepare | None, toy: bool) -> dict[str, Any]:
    step, batches = start(bench, recipe, prepare)
    row = timed(bench, step, batches, warmup=2, steps=2 if toy else 12)
    # Compiled parts call no hooks; a selective policy enters each part again and takes what is dear from its store.
    counted = recipe.compile == "off" and recipe.checkpointing != "selective"
    return row | (_forward_runs(step, batches) if counted else {})


def _forward_runs(step: Any, batches: Iterator) -> dict[str, int]:
    """How many attention and feed-forward parts one step begins to run forward, recomputation included."""
    runs: Counter[str] = Counter()
    handles = [
        part.register_forward_pre_hook(lambda *_, name=name: runs.update([name]))
        for block in step.model.blocks
        for name, part in (("attention_runs", block.attention.project), ("feed_forward_runs", block.feed_forward.up))
    ]
    step(batches)
    for handle in handles:
        handle.remove()
    return dict(runs)


def _gradient_rows(bench: Workbench, say: Callable[[str], None], eager: Recipe) -> Iterator[dict[str, Any]]:
    """Each way against the plain step with dropout at work; the plain step against itself shows the noise of atomics.

    Dropout is what a wrong random state in the second run would show itself by.
    """
    recipe = eager.but(dropout=0.1, micro_batch=min(2, eager.micro_batch))
    exact = gradients(bench, recipe)
    for way in WAYS:
        say(f"gradients: {way}")
        yield attempt(
            lambda way=way: {"relative_error": relative_error(gradients(bench, recipe.but(checkpointing=way)), exact)},
            kind="gradients", way=way, dropout=recipe.dropout, precision=recipe.precision,
        )  # fmt: skip


def timeline(bench: Workbench, recipe: Recipe) -> dict[str, Any]:
    """Bytes that tensors hold along one step in its steady state: at the end of each part forward, and when its
    gradient arrives backward. `peak_bytes`: the most since the mark before."""
    if bench.device.type != "cuda":
        raise NotAvailable("a CPU's allocator does not count what tensors hold")
    step, batches = start(bench, recipe)
    step(batches)
    step(batches)
    marks: list[str] = []
    held: list[int] = []
    peaks: list[int] = []

    def mark(name: str) -> None:
        marks.append(name)
        held.append(torch.cuda.memory_allocated(bench.device))
        peaks.append(torch.cuda.max_memory_allocated(bench.device))
        torch.cuda.reset_peak_memory_stats(bench.device)

    def watch(name: str, part: torch.nn.Module) -> Any:
        def after(module: Any, inputs: Any, output: torch.Tensor) -> None:
            mark(f"forward {name}")
            output.register_hook(lambda gradient: mark(f"backward {name}"))

        return part.register_forward_hook(after)

    parts = {f"block {i + 1}": block for i, block in enumerate(step.model.blocks)} | {"head": step.model.head}
    handles = [watch(name, part) for name, part in parts.items()]
    torch.cuda.reset_peak_memory_stats(bench.device)
    mark("start")
    update = step.optimizer.step
    step.optimizer.step = lambda *arguments, **options: (mark("backward done"), update(*arguments, **options))[1]
    step(batches)
    mark("updated")
    for handle in handles:
        handle.remove()
    return {"marks": marks, "held_bytes": held, "peak_bytes": peaks}
