"""Memory traffic of one micro-batch outside its matmuls, counted from the code of the layers: what is read and written.

Counts of PyTorch's operations, one by one as the module is written, or as one fused kernel needs them. Nothing here
is measured and nothing imports torch; the tests hold the counts against the operations that PyTorch dispatches.
"""

from __future__ import annotations

from typing import NamedTuple

from speedlab.recipe import Recipe

# Kinds of kernels that reach different shares of the bandwidth. "streamed" ones work on arrays far larger than any
# cache, as a long copy does; each of the others is timed with one operation that stands for it (`sweep`).
KINDS = ("streamed", "vectorized", "indexed", "column sum", "dropout", "masked fill", "softmax")
ON_SCORES = ("masked fill", "softmax")


class Passes(NamedTuple):
    """Memory traffic of one kind of kernel, per micro-batch: `bytes` read and written by `launches` kernels.

    kind: which kernels on the machine are as fast, see `KINDS`. item: bytes of one element.
    """

    part: str
    kind: str
    item: int
    bytes: float
    launches: float


def tokens_of(recipe: Recipe) -> int:
    """Tokens of one micro-batch."""
    return recipe.micro_batch * recipe.context_length


def activation_bytes(recipe: Recipe) -> int:
    """Bytes of one element of what goes into and comes out of a matmul."""
    return 4 if recipe.precision == "float32" else 2


def stream_bytes(recipe: Recipe) -> int:
    """Bytes of one element of the residual stream and the norms; autocast leaves them in float32."""
    return 4 if recipe.precision.endswith("autocast") else activation_bytes(recipe)


def writes_scores(recipe: Recipe) -> bool:
    """Whether the attention weights of a layer go through memory."""
    return recipe.attention in ("plain", "sdpa_math")


def element_wise(recipe: Recipe) -> list[Passes]:
    """Everything of one micro-batch that is no matmul and no fused attention."""
    block = compiled_block(recipe) if recipe.compile != "off" else eager_block(recipe)
    layers = float(recipe.num_layers)
    everything = [p._replace(bytes=layers * p.bytes, launches=layers * p.launches) for p in block]
    return [p for p in (*everything, *_ends(recipe)) if p.launches]


NORMS = "norms, GELU, residuals"
SCORES = "attention scores"
LOSS = "logits and loss"

# Reads and writes of one tensor of the layer's width, and kernels, by kind; forward and backward together.
# LayerNorm by hand, forward: mean and variance read (2), then four operations with a number for each row or column
# (8). Backward: operations on whole tensors and their sums over the width (19), operations that combine a tensor with
# a row or column (13), and two sums over all tokens for weight and bias. Five kernels work on one number per token.
HANDWRITTEN_NORM = {"vectorized": (2 + 19, 2 + 9 + 5), "indexed": (8 + 13, 4 + 7), "column sum": (2, 2)}
# PyTorch's: read and write; the gradient reads two and writes one; weight and bias sum over all tokens of two tensors.
NATIVE_NORM = {"vectorized": (2 + 3, 2), "column sum": (2, 1)}
HANDWRITTEN_GELU = {"vectorized": (18 + 28, 8 + 11)}
NATIVE_GELU = {"vectorized": (2 + 3, 2)}
NORM = {"handwritten": HANDWRITTEN_NORM, "native": NATIVE_NORM}
GELU = {"handwritten": HANDWRITTEN_GELU, "native": NATIVE_GELU}


def eager_block(recipe: Recipe) -> list[Passes]:
    """One layer, forward and backward, as PyTorch runs its operations one by one."""
    stream, inner = stream_bytes(recipe), activation_bytes(recipe)
    width = float(tokens_of(recipe) * recipe.embedding_width)
    passes: list[Passes] = []

    def add(part: str, kind: str, item: int, elements: float, launches: float) -> None:
        passes.append(Passes(part, kind, item, elements * item, launches))

    for kind, (count, launches) in NORM[recipe.layers].items():
        add(NORMS, kind, stream, 2 * count * width, 2 * launches)
    for kind, (count, launches) in GELU[recipe.layers].items():
        add(NORMS, kind, inner, 4 * count * width, launches)
    # Two residual additions, and in the backward pass the sum of the two gradients that meet there.
    add(NORMS, "vectorized", stream, 2 * (3 + 3) * width, 2 * 2)
    if recipe.dropout:
        passes += _dropout(NORMS, inner, 2 * width, 2)
    biases, sums = bias_gradients(recipe)
    add(NORMS, "column sum", inner, biases * width, sums)
    # The three gradients of q, k and v are joined (merged), or the three of their input are added up.
    add(NORMS, "vectorized", inner, 6 * width, 1 if merged(recipe) else 2)
    if writes_scores(recipe):
        # Four head-wise copies forward and four backward, then the kernels over the context x context scores.
        add(NORMS, "indexed", inner, 8 * 2 * width, 8)
        scores = float(recipe.micro_batch * recipe.num_heads * recipe.context_length**2)
        add(SCORES, "masked fill", inner, (2 + 2) * scores, 2)
        add(SCORES, "softmax", inner, (2 + 3) * scores, 2)
        # The division by sqrt(D) and its gradient, and the copy that the gradient of the mask begins with.
        add(SCORES, "streamed", inner, (2 + 2 + 2) * scores, 3 + 2)
        if recipe.dropout:
            passes += _dropout(SCORES, inner, scores, 1)
    if recipe.precision.endswith("autocast"):
        passes += _autocast_casts(recipe, width)
    return passes


def bias_gradients(recipe: Recipe) -> tuple[int, int]:
    """What is read once more for sums over all tokens, in tensors of the width, and how many kernels do it.

    Output projection, feed-forward up and down, q/k/v; a fused kernel sums what it writes anyway.
    """
    stream, inner = recipe.residual == "separate", recipe.feed_forward != "fused"
    projection = recipe.qkv_bias and not (recipe.qkv_backward == "fused" and merged(recipe))
    sums = 2 * stream + inner + projection * (1 if merged(recipe) else 3)
    return 2 * stream + 4 * inner + 3 * projection, sums


def merged(recipe: Recipe) -> bool:
    return recipe.qkv_projection == "merged"


def _dropout(part: str, item: int, elements: float, calls: int) -> list[Passes]:
    """Values in and out and a mask of one byte each, forward with random numbers, backward with the mask."""
    return [
        Passes(part, "dropout", item, elements * (2 * item + 1), calls),
        Passes(part, "streamed" if part == SCORES else "vectorized", item, elements * (2 * item + 1), calls),
    ]


def _autocast_casts(recipe: Recipe, width: float) -> list[Passes]:
    """Between 4 and 2 bytes: the inputs of the four kinds of matmul in a layer, their gradients, and the weights."""
    inputs = 2 if merged(recipe) else 4  # of q/k/v and up; the other two matmuls follow a 16-bit operation
    weights = 12.0 * recipe.embedding_width**2
    matrices = 4 if merged(recipe) else 6
    return [
        Passes("casts of autocast", "vectorized", 4, 2 * (inputs + 2) * 6 * width, 2 * (inputs + 2)),
        Passes("casts of autocast", "streamed", 4, 2 * 6 * weights, 2 * matrices),
    ]


def compiled_block(recipe: Recipe) -> list[Passes]:
    """One layer, forward and backward, with everything between two matmuls in one kernel; that is what is hoped for.

    The norm takes the residual addition and the dropout before it along: forward it reads stream and addend and
    writes stream and output; backward it reads two gradients and its input and writes one (two with dropout).
    """
    stream, inner = stream_bytes(recipe), activation_bytes(recipe)
    width = float(tokens_of(recipe) * recipe.embedding_width)
    mask = 1.0 if recipe.dropout else 0.0  # bytes for each element, written forward and read backward
    norms = 2 * width * (4 * stream + mask)
    norm_gradients = 2 * width * ((4 + (recipe.dropout > 0)) * stream + mask)
    gelu = 4 * width * (2 + 3) * inner
    biases = bias_gradients(recipe)[0] * width * inner
    joining = 6.0 * width * inner if merged(recipe) else 2 * width * inner
    # Kernels: the norms 1 + 5 each (their weights are summed in stages), GELU 2, biases 5, the rest 1. With dropout the
    # forward norm draws random numbers.
    passes = [
        Passes(NORMS, "dropout" if recipe.dropout else "vectorized", inner, norms, 2),
        Passes(NORMS, "vectorized", inner, norm_gradients + gelu + biases + joining, 2 * 5 + 2 + 5 + 1),
    ]
    if writes_scores(recipe):
        scores = float(recipe.micro_batch * recipe.num_heads * recipe.context_length**2)
        extra = inner + 2.0 if recipe.dropout else 0.0  # the weights after dropout, and the mask twice
        passes.append(Passes(SCORES, "streamed", inner, scores * ((2 + 3) * inner + extra), 2))
    if recipe.precision.endswith("autocast"):
        weights = 12.0 * recipe.embedding_width**2
        passes.append(Passes("casts of autocast", "streamed", 4, 2 * 6 * weights, 8))
    return passes


# Passes over the logits in their own format. Compiled with the model: two readings forward, a third one backward that
# writes the gradient. In place: two readings and one writing.
LOSS_PASSES = {"compiled": 4, "liger": 3, "in_place": 3}


def _ends(recipe: Recipe) -> list[Passes]:
    """Before the first layer and after the last: look-ups, the last norm, logits and loss."""
    stream, inner = stream_bytes(recipe), activation_bytes(recipe)
    tokens, compiled = tokens_of(recipe), recipe.compile != "off"
    width = float(tokens * recipe.embedding_width)
    table = float(recipe.padded_vocab_size * recipe.embedding_width)
    passes = [
        # Two look-ups and their sum; backward a table of zeros and a sorted addition into it.
        Passes(NORMS, "vectorized", stream, (7 * width + table + 3 * width) * stream, 4 + (6 if compiled else 22)),
    ]
    norm = {"vectorized": (1 + 3, 2)} if compiled else NORM[recipe.layers]
    passes += [Passes(NORMS, kind, stream, n * width * stream, launches) for kind, (n, launches) in norm.items()]
    # log_softmax reads three times and writes once, its gradient reads three times and writes once, and the gradient
    # of the loss starts from zeros: the eager kernels of every recipe whose loss is outside the compiled graph.
    # Five more kernels work on single numbers.
    logits = float(tokens * recipe.padded_vocab_size)
    if one_kernel := LOSS_PASSES.get(recipe.loss if compiled or recipe.loss != "compiled" else "plain"):
        passes.append(Passes(LOSS, "streamed", inner, one_kernel * logits * inner, 3))
        return passes
    item = 4 if recipe.precision.endswith("autocast") else inner
    passes.append(Passes(LOSS, "streamed", item, (4 + 4 + 1) * logits * item, 5 + 5))
    if recipe.precision.endswith("autocast"):
        passes.append(Passes("casts of autocast", "streamed", 4, 2 * 6 * (logits + table), 4))
    return passes


def unpadding(recipe: Recipe) -> list[Passes]:
    """What padding the columns of the head inside a compiled graph costs: cut the logits, widen their gradient."""
    item = activation_bytes(recipe)
    logits = float(tokens_of(recipe) * recipe.padded_vocab_size)
    return [
        Passes(LOSS, "indexed", item, 2 * logits * item, 1),
        Passes(LOSS, "streamed", item, 2 * logits * item, 1),
    ]
