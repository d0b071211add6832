"""What autograd keeps of a forward pass until the backward pass has used it, in bytes, by formula. Torch-free.

Every term names the operation that keeps it: read beside `model/`. Shapes: B sequences, T tokens, C width, H heads,
V rows of the head. "Stream" is the residual stream with its LayerNorms, "compute" what the matmuls read: one format,
except under autocast, where the stream stays float32 and the matmuls read 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from speedlab.recipe import Recipe

FLOAT32, SIXTEEN_BITS, INT64, BOOL = 4, 2, 8, 1


@dataclass(frozen=True)
class Sizes:
    """The numbers that all terms are made of. `stream` and `compute` are bytes of one element."""

    rows: int  # B x T
    width: int  # elements of one full-width tensor, B x T x C
    square: int  # elements of the scores of one layer, B x H x T x T
    autocast: bool
    compiled: bool
    stream: int
    compute: int


def sizes_of(recipe: Recipe) -> Sizes:
    rows = recipe.micro_batch * recipe.context_length
    autocast = recipe.precision.endswith("_autocast")
    stream = FLOAT32 if autocast or recipe.precision == "float32" else SIXTEEN_BITS
    return Sizes(
        rows=rows,
        width=rows * recipe.embedding_width,
        square=rows * recipe.num_heads * recipe.context_length,
        autocast=autocast,
        compiled=recipe.compile != "off",
        stream=stream,
        compute=SIXTEEN_BITS if autocast else stream,
    )


def kept_by_block(recipe: Recipe) -> dict[str, int]:
    """Bytes that one block keeps when nothing is recomputed, by part."""
    size = sizes_of(recipe)
    first_inputs = 3 if recipe.qkv_projection == "separate" else 1
    parts = {
        "layer norms": layer_norm(recipe, inputs=first_inputs) + layer_norm(recipe),
        "q, k, v": 3 * size.width * size.compute,
        "attention": attention(recipe),
        "feed-forward": feed_forward(recipe),
        # Dropout keeps its mask, one byte an element, behind attention and behind feed-forward.
        "dropout masks": 2 * size.width * BOOL if recipe.dropout else 0,
    }
    if recipe.attention == "sdpa_math":  # it computes on float32 copies of 16-bit q, k, v
        parts["q, k, v"] = 3 * size.width * FLOAT32
    return parts


def layer_norm(recipe: Recipe, *, inputs: int = 1) -> int:
    """One LayerNorm and the input of the matmuls behind it. inputs: how many linear layers read it."""
    size = sizes_of(recipe)
    # `linear` keeps its input for the gradient of its weight; three layers share one, unless autocast casts it anew
    # for each of them. A compiled graph casts once.
    read = (inputs if size.autocast and not size.compiled else 1) * size.width * size.compute
    if size.compiled:  # x, or x normalized, and two numbers for each row; the rest is computed again
        return read + size.width * size.stream + 2 * size.rows * size.stream
    if recipe.layers == "native":  # native_layer_norm: x, mean and 1/std in float32
        return read + size.width * size.stream + 2 * size.rows * FLOAT32
    # var keeps x, div keeps x - mean and the std, mul keeps the quotient; under autocast the sum is cast once more.
    return read + 3 * size.width * size.stream + size.rows * size.stream


def attention(recipe: Recipe) -> int:
    """What stands between q, k, v and the output projection, whose input is counted here."""
    size = sizes_of(recipe)
    output = size.width * size.compute
    if recipe.attention in ("plain", "sdpa_math"):
        return output + scores(recipe)
    # FlashAttention and its kin keep q, k, v, the output, and the log of each row's sum in float32 (Dao et al. 2022).
    return output + size.rows * recipe.num_heads * FLOAT32


def scores(recipe: Recipe) -> int:
    """The context x context tensors of one layer that attention written out keeps."""
    size = sizes_of(recipe)
    upcast = recipe.attention == "sdpa_math" or (size.autocast and not size.compiled)
    read = FLOAT32 if recipe.attention == "sdpa_math" else size.compute
    total = size.square * (FLOAT32 if upcast else size.compute)  # softmax keeps its result; autocast has it in float32
    if recipe.dropout:
        total += size.square * BOOL  # its mask
    if recipe.dropout or size.autocast:
        total += size.square * read  # the matmul with v keeps what it reads: dropped out, or cast down
    if recipe.attention == "plain":
        total += recipe.context_length**2 * BOOL  # masked_fill keeps the mask, one for each layer
    return total


def feed_forward(recipe: Recipe) -> int:
    """From the first matmul's output to the second one's input, four widths each; the first one's input is counted
    with the LayerNorm."""
    size = sizes_of(recipe)
    inner = 4 * size.width
    if recipe.layers == "native" or size.compiled:  # GELU keeps its input, the second matmul its own
        return 2 * inner * size.compute
    # pow keeps x and tanh its result, both float32 under autocast; the last mul keeps 0.5 x and 1 + tanh; then the
    # second matmul its input.
    return inner * (3 * size.stream + 2 * size.compute)


def kept_outside_blocks(recipe: Recipe) -> dict[str, int]:
    """Bytes kept by the embeddings, the last LayerNorm and the casts of weights. The loss counts with the logits."""
    size = sizes_of(recipe)
    # Look-ups keep the ids they looked up. A compiled graph keeps the two look-ups instead of their sum, which the
    # first LayerNorm keeps otherwise.
    ids = (size.rows + recipe.context_length) * INT64
    positions = recipe.context_length * recipe.embedding_width * size.stream if size.compiled else 0
    return {
        "embeddings": ids + positions + (size.width * BOOL if recipe.dropout else 0),
        "last layer norm": layer_norm(recipe),
        # Autocast casts each float32 matrix to 16 bits; the matmul keeps the copy for the gradient of its input. A
        # checkpointed block keeps none: its copies go when the forward pass ends, and are made again.
        "cast weights": cast_weights(recipe),
    }


def cast_weights(recipe: Recipe) -> int:
    if not sizes_of(recipe).autocast:
        return 0
    kept = recipe.num_layers * cast_in_block(recipe)
    if recipe.checkpointing in ("every_block", "selective", "offload"):
        kept = 0
    elif recipe.checkpointing == "every_second_block":
        kept = recipe.num_layers // 2 * cast_in_block(recipe)
    elif recipe.checkpointing == "feed_forward":  # 8 of the 12 width x width of a block
        kept //= 3
    return kept + SIXTEEN_BITS * recipe.padded_vocab_size * recipe.embedding_width


def cast_in_block(recipe: Recipe) -> int:
    """Bytes of the 16-bit copies of one block's matrices under autocast."""
    return 12 * recipe.embedding_width**2 * SIXTEEN_BITS if sizes_of(recipe).autocast else 0


def padded_head(recipe: Recipe) -> int:
    """The copy of the head that `torch.compile` makes where the number of ids is no multiple of 16 bytes.

    Its pass pad_mm widens such matmuls to an aligned shape (torch/_inductor/fx_passes/pad_mm.py) when a trial on the
    card is faster; that the copy of the weight lives until the backward pass is our reading of the records.
    """
    size = sizes_of(recipe)
    multiple = 16 // size.compute
    if not size.compiled or recipe.padded_vocab_size % multiple == 0:
        return 0
    rows = -(-recipe.padded_vocab_size // multiple) * multiple
    return rows * recipe.embedding_width * size.compute


def kept_activations(recipe: Recipe) -> dict[str, int]:
    """Bytes that the whole model keeps at the end of its forward pass, by part; checkpointing taken into account."""
    kind, layers = recipe.checkpointing, recipe.num_layers
    whole, stream_input = kept_by_block(recipe), sizes_of(recipe).width * sizes_of(recipe).stream
    lean = (layers + 1) // 2 if kind == "every_second_block" else 0 if kind == "off" else layers
    parts = {name: (layers - lean) * amount for name, amount in whole.items()}
    kept = {"block inputs": 0 if kind == "off" else lean * stream_input}
    if kind == "offload":
        kept = {"block inputs": 0}  # all of it lies in the host's memory
    elif kind == "feed_forward":  # all but what lies inside the feed-forward part, whose input is kept
        parts = {name: layers * amount for name, amount in whole.items() if name != "feed-forward"}
        kept = {"block inputs": 0}
    elif kind == "selective":
        kept["matmul and attention outputs"] = lean * _selected(recipe)
    outside = kept_outside_blocks(recipe)
    return {name: amount for name, amount in {**parts, **kept, **outside}.items() if amount}


def recomputed_in_block(recipe: Recipe) -> int:
    """Bytes that come back when the last block, the first to go backward, is run again."""
    kind, whole = recipe.checkpointing, kept_by_block(recipe)
    if kind in ("off", "offload"):  # offloaded tensors come back one at a time
        return 0
    if kind == "feed_forward":
        return whole["feed-forward"] + cast_in_block(recipe) * 2 // 3
    if kind == "every_second_block" and recipe.num_layers % 2 == 0:
        return 0  # the last block kept everything
    return sum(whole.values()) + cast_in_block(recipe) - (_selected(recipe) if kind == "selective" else 0)


def _selected(recipe: Recipe) -> int:
    """Outputs of the matmuls with weights (q, k, v, out, up, down: nine widths), of attention kernel and dropout."""
    size = sizes_of(recipe)
    matmuls = 9 * size.width * size.compute
    if recipe.attention in ("plain", "sdpa_math"):
        return matmuls
    dropout = 2 * size.width * (size.compute + BOOL) if recipe.dropout else 0
    return matmuls + attention(recipe) + dropout
