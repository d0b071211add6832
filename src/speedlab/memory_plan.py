"""How many bytes a training step needs on one GPU, by formula, before it runs: what they hold, and when they peak.

One set of formulas for the planner, the figures of the ladder and the folklore page. It predicts what tensors hold
(`peak_allocated_bytes` of a record), not what the allocator takes from the card. Torch-free; it reads no record.
"""

from __future__ import annotations

from dataclasses import dataclass

from speedlab.memory_activations import (
    BOOL,
    FLOAT32,
    INT64,
    SIXTEEN_BITS,
    kept_activations,
    kept_by_block,
    layer_norm,
    padded_head,
    recomputed_in_block,
    sizes_of,
)
from speedlab.recipe import Recipe
from speedlab.work import matmul_parameters

COMPONENTS = ("weights", "gradients", "optimizer", "buffers", "activations", "logits", "workspace")

# cuBLAS gets a workspace for each thread and stream that calls it: here the thread of the forward pass and autograd's.
# PyTorch's sizes (aten/src/ATen/cuda/CUDABlas.cpp): 32 MiB from compute capability 9.0, ":4096:2:16:8" in KiB below.
WORKSPACE_THREADS = 2
LARGE_WORKSPACE, SMALL_WORKSPACE = 32 * 2**20, (2 * 4096 + 8 * 16) * 2**10
SMALLEST_BLOCK = 512  # of PyTorch's allocator

# Recipe fields that the formulas read or that hold no memory on the device worth counting. A recipe that differs from
# the default in another field is beyond them: `not_modelled` says so.
MODELLED = (
    "num_layers", "embedding_width", "num_heads", "context_length", "vocab_size", "dropout", "qkv_bias", "output_head",
    "causal_mask", "matmul_precision", "optimizer", "host_memory", "precision", "layers", "attention",
    "qkv_projection", "compile", "vocabulary", "micro_batch", "data_parallel", "accumulation", "checkpointing",
    "gradient_clip", "learning_rate", "weight_decay", "seed",
)  # fmt: skip
# A replayed CUDA graph allocates nothing: what it keeps lies in a pool and is made a tensor by its
# address, which the count of allocated bytes does not see (our reading of torch/_inductor/cudagraph_trees.py). The plan
# holds there too, but `peak_allocated_bytes` may lie below it; `peak_reserved_bytes` does not.
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
KNOWN_OPTIMIZERS = ("for_loop", "default", "foreach", "fused")
KNOWN_CHECKPOINTING = ("off", "every_block", "every_second_block", "feed_forward", "selective", "offload")


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Predicted bytes of one GPU. moments: for each moment of a step that may be the peak, bytes by component.

    whole: each component at its largest, whether at the peak or not. activations: what is kept, by part.
    """

    moments: dict[str, dict[str, int]]
    whole: dict[str, int]
    activations: dict[str, int]

    @property
    def peak_at(self) -> str:
        """The moment with the most bytes: loss, backward, end of backward, or optimizer."""
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by component at the peak; they add up to `peak_allocated_bytes`."""
        return self.moments[self.peak_at]

    @property
    def peak_allocated_bytes(self) -> int:
        return sum(self.parts.values())

    def as_dict(self) -> dict:
        return {
            "peak_allocated_bytes": self.peak_allocated_bytes, "peak_at": self.peak_at, "parts": self.parts,
            "whole": self.whole, "activations": self.activations, "moments": self.moments,
        }  # fmt: skip


def plan_memory(recipe: Recipe, *, capability: tuple[int, int] = (9, 0)) -> MemoryPlan:
    """The plan of one GPU of this recipe from its second step on. capability: of the card, for cuBLAS's workspace."""
    weight = weight_bytes(recipe)
    parameters = total_parameters(recipe)
    gradients = parameters * weight
    # DistributedDataParallel copies gradients into buckets of the same size, which stay from step to step.
    buckets = gradients if recipe.data_parallel > 1 else 0
    workspace = WORKSPACE_THREADS * (LARGE_WORKSPACE if capability >= (9, 0) else SMALL_WORKSPACE)
    standing = {
        "weights": gradients,
        "optimizer": optimizer_bytes(recipe),
        # Each layer's stored mask has the format of the weights, because `model.to(dtype)` casts buffers too.
        "buffers": recipe.num_layers * recipe.context_length**2 * weight if _stores_mask(recipe) else 0,
    }
    kept = kept_activations(recipe)
    if copy := padded_head(recipe):
        kept["aligned copy of the head"] = copy
    activations = sum(kept.values())
    logits = loss_bytes(recipe)
    # With accumulation the gradients of earlier micro-batches are there during the forward pass.
    before = (gradients if recipe.accumulation > 1 else 0) + buckets
    table = recipe.padded_vocab_size * recipe.embedding_width * weight

    def moment(gradients: int, activations: int = 0, logits: int = 0, extra: int = 0) -> dict[str, int]:
        held = {
            "gradients": gradients, "activations": activations, "logits": logits, "workspace": workspace + extra,
        } | standing  # fmt: skip
        return {name: held[name] for name in COMPONENTS}

    moments = {
        "loss": moment(before, activations, logits),
        "backward": moment(
            before + table, activations - layer_norm(recipe) + recomputed_in_block(recipe), 0, _block_backward(recipe)
        ),
        # A tied table gets a second gradient, from the look-up, which is then added to the head's.
        "end of backward": moment(
            gradients + buckets, extra=(table if recipe.output_head == "tied" else 0) + 2 * _stream(recipe)
        ),
        "optimizer": moment(gradients + buckets, extra=update_bytes(recipe)),
    }
    whole = {name: max(held[name] for held in moments.values()) for name in COMPONENTS}
    return MemoryPlan(moments=moments, whole=whole, activations=kept)


def total_parameters(recipe: Recipe) -> int:
    """All distinct weights: tables, matmuls, biases, norms."""
    width, rows = recipe.embedding_width, recipe.padded_vocab_size
    tables = (rows if recipe.output_head == "untied" else 0) * width + recipe.context_length * width
    biases = width + 4 * width + width + (3 * width if recipe.qkv_bias else 0)  # out, up, down
    norms = 2 * width
    return matmul_parameters(recipe) + tables + recipe.num_layers * (biases + 2 * norms) + norms


def parameter_tensors(recipe: Recipe) -> int:
    """How many tensors an optimizer loops over."""
    projections = 1 if recipe.qkv_projection == "merged" else 3
    per_layer = projections * (2 if recipe.qkv_bias else 1) + 3 * 2 + 2 * 2  # q, k, v; out, up, down; two norms
    return recipe.num_layers * per_layer + 2 + 2 + (1 if recipe.output_head == "untied" else 0)


def weight_bytes(recipe: Recipe) -> int:
    """Bytes of one weight and of one gradient. Autocast casts copies and leaves both in float32."""
    return SIXTEEN_BITS if recipe.precision in ("bfloat16", "bfloat16_master") else FLOAT32


def optimizer_bytes(recipe: Recipe) -> int:
    """What stands between steps: two moments in the format of what they update, and masters where there are any."""
    masters = recipe.precision == "bfloat16_master"
    updated = FLOAT32 if masters else weight_bytes(recipe)
    total = total_parameters(recipe) * (2 * updated + (FLOAT32 if masters else 0))
    if recipe.optimizer == "fused":  # it keeps the number of steps of each tensor on the device
        total += parameter_tensors(recipe) * SMALLEST_BLOCK
    return total


def update_bytes(recipe: Recipe) -> int:
    """What the optimizer's step takes besides weights, gradients and its state (torch/optim/adam.py)."""
    masters = recipe.precision == "bfloat16_master"
    updated = FLOAT32 if masters else weight_bytes(recipe)
    parameters = total_parameters(recipe)
    total = parameters * FLOAT32 if masters else 0  # float32 copies of the gradients, for the masters
    if recipe.optimizer in ("default", "foreach"):  # _foreach_sqrt makes the roots of all second moments at once
        total += parameters * updated
    if recipe.optimizer == "for_loop":  # the root of one second moment, and the same divided
        total += 2 * recipe.padded_vocab_size * recipe.embedding_width * updated
    return total


def loss_bytes(recipe: Recipe) -> int:
    """Logits and loss at their largest, in the backward pass of log_softmax.

    Three tensors of B x T x V: the log-probabilities that the forward pass kept, their gradient from nll_loss, and the
    gradient of the logits that is being made. The logits themselves are gone by then. nll_loss also keeps the ids.
    Autocast on CUDA leaves log_softmax in 16 bits, because cross_entropy asks for the format of its input, and casts
    what nll_loss reads: then the three are the log-probabilities, their float32 copy, and its gradient.
    """
    size = sizes_of(recipe)
    formats = (size.compute, FLOAT32, FLOAT32) if size.autocast else (size.stream,) * 3
    return size.rows * recipe.padded_vocab_size * sum(formats) + size.rows * INT64


def not_modelled(recipe: Recipe) -> tuple[str, ...]:
    """Fields of this recipe with values that the formulas know nothing of."""
    values, plain = recipe.as_dict(), Recipe().as_dict()
    unknown = [name for name in values if name not in MODELLED and values[name] != plain[name]]
    if recipe.optimizer not in KNOWN_OPTIMIZERS:
        unknown.append("optimizer")
    if recipe.checkpointing not in KNOWN_CHECKPOINTING:
        unknown.append("checkpointing")
    return tuple(unknown)


def is_counted(recipe: Recipe) -> bool:
    """Whether the allocator's count of allocated bytes sees all that this recipe holds."""
    return recipe.compile not in CUDA_GRAPHS


def _stores_mask(recipe: Recipe) -> bool:
    return recipe.attention == "plain" and recipe.causal_mask == "stored"


def _stream(recipe: Recipe) -> int:
    """Bytes of one full-width tensor of the residual stream, or of its gradient."""
    return sizes_of(recipe).width * sizes_of(recipe).stream


def _block_backward(recipe: Recipe) -> int:
    """What the backward pass of the last block adds at most to what is kept then, less what it has let go of."""
    size, kept = sizes_of(recipe), kept_by_block(recipe)
    # Behind GELU: the gradient of its output (kept output gone) and of its input; written out, two more on the way.
    inner = 4 * size.width * size.compute * (1 if recipe.layers == "native" or size.compiled else 3)
    squares = 0
    if recipe.attention in ("plain", "sdpa_math"):
        # Softmax backward: the gradient it gets, its product with the result, which CUDA's kernel makes first
        # (aten/src/ATen/native/cuda/SoftMax.cu), and the gradient it gives. What the matmul had kept is gone by then.
        if size.autocast and not size.compiled:  # all three in float32, less the probabilities that were cast down
            squares = (3 * FLOAT32 - SIXTEEN_BITS) * size.square
        elif size.compiled:  # a generated kernel needs no product of its own
            squares = size.square * size.compute * (1 if recipe.dropout else 2)
        else:  # with dropout its mask is gone as well, and the dropped-out copy
            squares = size.square * (2 * size.compute - BOOL if recipe.dropout else 3 * size.compute)
        squares -= kept["feed-forward"] + layer_norm(recipe)  # the feed-forward part has gone backward already
    return 2 * _stream(recipe) + max(inner, squares)
