"""What one step of a recipe has to do, by formula: its matmuls, its kernel launches, the traffic of its optimizer.

It also names the rates that a session measures for these shapes, so that whoever measures and whoever predicts agree.
Nothing here is measured and nothing imports torch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from speedlab.measuring.traffic import (
    LOSS,
    ON_SCORES,
    Passes,
    activation_bytes,
    element_wise,
    merged,
    tokens_of,
    unpadding,
    writes_scores,
)  # fmt: skip
from speedlab.recipe import Recipe
from speedlab.work import attention_flops_per_token, compute_dtype, matmul_parameters

MATMUL_PASSES = ("forward", "input gradient", "weight gradient")


class Matmul(NamedTuple):
    """`calls` times (tokens, inputs) @ (inputs, outputs) and its two gradients, per micro-batch."""

    part: str
    calls: int
    tokens: int
    inputs: int
    outputs: int

    @property
    def flops(self) -> float:
        """Of one pass of one call."""
        return 2.0 * self.tokens * self.inputs * self.outputs


def matmuls(recipe: Recipe) -> list[Matmul]:
    """The dense layers; the matmuls inside attention are counted by `work.attention_flops_per_token`."""
    tokens, width, layers = tokens_of(recipe), recipe.embedding_width, recipe.num_layers
    projections = [(1, width, 3 * width), (1, width, width)] if merged(recipe) else [(4, width, width)]
    blocks = [*projections, (1, width, 4 * width), (1, 4 * width, width)]
    return [
        *(Matmul("matmuls of the blocks", layers * calls, tokens, *shape) for calls, *shape in blocks),
        Matmul("matmuls of the head", 1, tokens, width, recipe.padded_vocab_size),
    ]


def aligned_head(recipe: Recipe) -> Matmul | None:
    """The head as the compiler may run it: columns padded to 16 bytes. None where it is not compiled or aligned."""
    head = matmuls(recipe)[-1]
    multiple = 16 // activation_bytes(recipe)
    columns = math.ceil(head.outputs / multiple) * multiple
    if recipe.compile == "off" or columns == head.outputs:
        return None
    return head._replace(outputs=columns)


# AdamW reads weight, gradient and two moments and writes three of them; one launch per arithmetic operation instead
# of one in all goes through memory three times as often.
OPTIMIZER_PASSES = {"fused": 7, "one_pass": 7, "default": 21, "foreach": 21, "for_loop": 21}
OPERATIONS_OF_ADAMW = 8
# PyTorch's multi-tensor kernels take at most 320 blocks of 65,536 elements per launch.
ELEMENTS_PER_MULTI_TENSOR_LAUNCH = 320 * 65_536


def weights_of(recipe: Recipe) -> int:
    """Weights that the optimizer moves; biases and norms, a thousandth of them, are left out."""
    tables = recipe.context_length + (recipe.padded_vocab_size if recipe.output_head == "untied" else 0)
    return matmul_parameters(recipe) + tables * recipe.embedding_width


def optimizer(recipe: Recipe) -> Passes:
    """One update, whatever the number of micro-batches."""
    weights = weights_of(recipe)
    passes = OPTIMIZER_PASSES[recipe.optimizer]
    item = 2 if recipe.precision == "bfloat16" else 4
    moved = float(passes) * weights * item
    if recipe.precision == "bfloat16_master":  # 16-bit gradients in, float32 gradients made, 16-bit weights out
        moved += 2.0 * weights * (1 + 1) + 4.0 * weights
    if recipe.optimizer == "one_pass":
        narrow = 2.0 * weights * (1 + 1)  # 16-bit gradients in and weights out, float32 all else
        moved = 6.0 * weights * 4 + narrow if recipe.precision == "bfloat16_master" else moved
        return Passes("optimizer", "streamed", item, moved, 1.0)
    operations = 1 if recipe.optimizer == "fused" else OPERATIONS_OF_ADAMW
    if recipe.optimizer == "for_loop":
        launches = float(operations * tensors_of(recipe))
    else:
        launches = float(operations * math.ceil(weights / ELEMENTS_PER_MULTI_TENSOR_LAUNCH) + 2)
    return Passes("optimizer", "streamed", item, moved, launches)


def tensors_of(recipe: Recipe) -> int:
    """Parameter tensors of the model."""
    projections = 1 if merged(recipe) else 3
    per_layer = 2 * 2 + projections * (2 if recipe.qkv_bias else 1) + 3 * 2
    return recipe.num_layers * per_layer + 2 + (2 if recipe.output_head == "tied" else 3)


def gradient_accumulation(recipe: Recipe) -> Passes | None:
    """Adding the gradients of later micro-batches to those of the first: read both, write one."""
    times = recipe.accumulation - 1
    if not times:
        return None
    item = 2 if recipe.precision in ("bfloat16", "bfloat16_master") else 4
    moved = 3.0 * times * weights_of(recipe) * item
    return Passes("gradient accumulation", "streamed", item, moved, float(times * tensors_of(recipe)))


def launches(recipe: Recipe) -> float:
    """Kernels that the host launches in one step; with CUDA graphs, those outside the replayed graphs alone."""
    attention = 6 if writes_scores(recipe) else 5  # matmuls, or kernels of a fused form: one forward, four backward
    model = float(attention * recipe.num_layers + sum(len(MATMUL_PASSES) * m.calls for m in matmuls(recipe)))
    model += sum(p.launches for p in element_wise(recipe) if p.part != LOSS)
    if recipe.compile in ("reduce-overhead", "max-autotune"):
        model = 2.0  # one replay forward, one backward
    loss = sum(p.launches for p in element_wise(recipe) if p.part == LOSS)
    accumulation = gradient_accumulation(recipe)
    once = optimizer(recipe).launches + (accumulation.launches if accumulation else 0.0)
    return recipe.accumulation * (model + loss) + once


def flops(recipe: Recipe) -> float:
    """FLOPs of the matmuls of one step on one GPU, attention counted as its kernel does it."""
    per_micro_batch = sum(len(MATMUL_PASSES) * m.calls * m.flops for m in matmuls(recipe))
    return recipe.accumulation * (per_micro_batch + recipe.num_layers * attention_flops(recipe))


def moved_bytes(recipe: Recipe) -> float:
    """Bytes that the kernels of one step read and write on one GPU, each operand of a matmul counted once per pass."""
    item = activation_bytes(recipe)
    dense = sum(
        len(MATMUL_PASSES) * m.calls * item * (m.tokens * m.inputs + m.inputs * m.outputs + m.tokens * m.outputs)
        for m in matmuls(recipe)
    )
    width = float(tokens_of(recipe) * recipe.embedding_width)
    # Written out: six matmuls of two head-wise tensors and the scores. Fused: queries, keys, values and output forward,
    # and backward those four, their gradients: twelve tensors either way.
    scores = tokens_of(recipe) * recipe.num_heads * recipe.context_length if writes_scores(recipe) else 0
    attention = recipe.num_layers * item * (12 * width + 6 * scores)
    micro_batch = dense + attention + sum(passes.bytes for passes in element_wise(recipe))
    accumulation = gradient_accumulation(recipe)
    once = optimizer(recipe).bytes + (accumulation.bytes if accumulation else 0.0)
    return recipe.accumulation * micro_batch + once


# Names of the rates that a session measures, in the tables of its ceilings.


def gemm_key(recipe: Recipe, matmul: Matmul, direction: str) -> str:
    return f"{compute_dtype(recipe)}/{matmul.tokens}x{matmul.inputs}x{matmul.outputs}/{direction}"


def attention_key(recipe: Recipe) -> str:
    """The fused forms are timed as they are, with their dropout; the written-out form stands for its six matmuls."""
    shape = f"{recipe.micro_batch}x{recipe.num_heads}x{recipe.context_length}x{recipe.head_width}"
    if writes_scores(recipe):
        return f"{compute_dtype(recipe)}/matmuls/{shape}"
    return f"{compute_dtype(recipe)}/{recipe.attention}/{shape}/dropout {recipe.dropout:g}"


def attention_flops(recipe: Recipe) -> float:
    """FLOPs of one layer and one micro-batch, forward and backward; a fused kernel skips the masked half."""
    causal = not writes_scores(recipe)
    return tokens_of(recipe) * attention_flops_per_token(recipe, causal=causal) / recipe.num_layers


def pass_key(recipe: Recipe, kind: str, item: int) -> str:
    heads = f"{recipe.num_heads}x{recipe.context_length}" if kind in ON_SCORES else f"{recipe.embedding_width}"
    return f"{kind}/{item} bytes/{recipe.micro_batch}x{recipe.context_length}x{heads}"


def passes_of(recipe: Recipe) -> list[Passes]:
    """All traffic of one micro-batch, and of the optimizer."""
    extra = unpadding(recipe) if aligned_head(recipe) else []
    return [*element_wise(recipe), *extra, optimizer(recipe)]
