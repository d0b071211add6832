"""What is kept of a forward pass for its backward pass, as the recipe field `checkpointing` says.

Applied from outside to a model that is built and loaded already; no weight gets another name. It knows the model's
parts and PyTorch's checkpointing (Chen et al. 2016), nothing of recipes' other fields but dropout and attention.

Always the non-reentrant form: it needs no input with a gradient, keeps to the graph that hooks and DDP see, stops a
recomputation once it has what it needs, and is the only one that `torch.compile` looks into. Both forms put the random
state and autocast back for the second run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from speedlab.errors import NotAvailable
from speedlab.model import GPT
from speedlab.recipe import Recipe

Contexts = Callable[[], tuple[AbstractContextManager, AbstractContextManager]]


def apply_checkpointing(recipe: Recipe, model: GPT) -> None:
    """Make `model` keep what `recipe.checkpointing` says and compute the rest again during the backward pass.

    `NotAvailable` for a recipe whose blocks do not run as wholes.
    """
    if recipe.checkpointing != "off" and recipe.residual == "fused":
        raise NotAvailable(
            f"checkpointing {recipe.checkpointing} with residual fused is not available, because no block runs by "
            "itself there: choose residual separate, or checkpointing off"
        )
    CHECKPOINTING[recipe.checkpointing](recipe, model)


def check_parallel(recipe: Recipe) -> None:
    """Refuse what several processes cannot run together; `NotAvailable` says what to change.

    The compiler cuts the graph where DistributedDataParallel's buckets end. A recomputed part is one node of that
    graph, which PyTorch long refused to cut; with the versions that do it, it has not been tried here.
    """
    if recipe.compile != "off" and recipe.checkpointing not in ("off", "offload"):
        raise NotAvailable(
            f"checkpointing {recipe.checkpointing} with compile {recipe.compile} is not available in several "
            "processes: choose compile off, or checkpointing off"
        )


def keep_everything(recipe: Recipe, model: GPT) -> None:
    """Nothing is recomputed."""


def checkpoint_every(recipe: Recipe, model: GPT, *, nth: int) -> None:
    """Of each `nth` block keep the input alone; the blocks between keep everything. nth=1: all blocks."""
    for block in model.blocks[::nth]:
        block.forward = recomputed(block.forward, recipe)


def checkpoint_groups(recipe: Recipe, model: GPT, *, size: int) -> None:
    """Of each run of `size` neighbouring blocks keep the first one's input; such a run is recomputed as a whole."""
    blocks = list(model.blocks)
    groups = [recomputed(partial(run_in_order, blocks[i : i + size]), recipe) for i in range(0, len(blocks), size)]
    model.run_blocks = partial(run_in_order, groups)


def checkpoint_feed_forward(recipe: Recipe, model: GPT) -> None:
    """Recompute the feed-forward parts, the widest activations and no attention."""
    for block in model.blocks:
        block.feed_forward.forward = recomputed(block.feed_forward.forward, recipe)


def checkpoint_selectively(recipe: Recipe, model: GPT) -> None:
    """In every block keep what is dear to compute, the outputs of matmuls and of attention, and recompute the rest."""
    contexts = partial(create_selective_checkpoint_contexts, SELECTIVE_POLICIES[recipe.attention in PLAIN_ATTENTION])
    for block in model.blocks:
        block.forward = recomputed(block.forward, recipe, contexts)


def offload_blocks(recipe: Recipe, model: GPT) -> None:
    """Keep everything of the blocks, but in the host's memory: each tensor crosses the bus twice.

    PyTorch's own form: it copies whatever an operation saves, weights too and once for each operation, and the host
    waits for every copy out. The logits stay. Under `torch.compile` the blocks become a graph of their own.
    """
    model.run_blocks = partial(_offloaded, model.run_blocks, model)


# The one place where the recipe field is read.
CHECKPOINTING: dict[str, Callable[[Recipe, GPT], None]] = {
    "off": keep_everything,
    "every_block": partial(checkpoint_every, nth=1),
    "every_second_block": partial(checkpoint_every, nth=2),
    "feed_forward": checkpoint_feed_forward,
    "selective": checkpoint_selectively,
    "offload": offload_blocks,
}


def recomputed(function: Callable[..., Tensor], recipe: Recipe, contexts: Contexts | None = None) -> Callable:
    """`function` with only its inputs kept. contexts: what else to keep, from a policy.

    The random state is stored and put back only where a draw depends on it.
    """
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": recipe.dropout > 0}
    if contexts is not None:
        options["context_fn"] = contexts
    return partial(checkpoint, function, **options)


def run_in_order(functions: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    for function in functions:
        x = function(x)
    return x


# Matmuls with weights. Not `bmm`: in attention written out, its outputs are the context x context scores.
MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
FUSED_ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)
# A kept attention kernel draws no random numbers in the second run, which would shift the draws of every dropout after
# it: other masks, wrong gradients, no error. So what draws is kept as well, or nothing that draws is kept.
DROPOUT = (torch.ops.aten.native_dropout.default,)
PLAIN_ATTENTION = ("plain", "sdpa_math")


def keep_matmuls(context: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in MATMULS else CheckpointPolicy.PREFER_RECOMPUTE


def keep_matmuls_and_attention(context: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    kept = operation in MATMULS or operation in FUSED_ATTENTION or operation in DROPOUT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE_POLICIES = {True: keep_matmuls, False: keep_matmuls_and_attention}  # by whether attention is written out


def _offloaded(run: Callable[[Tensor], Tensor], model: GPT, x_BTC: Tensor) -> Tensor:
    with save_on_cpu(pin_memory=x_BTC.is_cuda):
        return run(x_BTC)
