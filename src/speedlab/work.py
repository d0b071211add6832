"""How much arithmetic a training step needs, by formula. Torch-free; it knows recipes and cards, not measurements."""

from __future__ import annotations

from speedlab.cards import find_card
from speedlab.recipe import Recipe


def matmul_parameters(recipe: Recipe) -> int:
    """Weights that take part in a matrix multiplication, padded head rows included.

    The token and position tables are look-ups and do no arithmetic; biases and norms are not matmuls. A tied head
    is still one matmul.
    """
    width = recipe.embedding_width
    per_layer = 4 * width**2 + 8 * width**2  # q, k, v, output projection; feed-forward up and down
    return recipe.num_layers * per_layer + recipe.padded_vocab_size * width


def attention_flops_per_token(recipe: Recipe, *, causal: bool) -> float:
    """FLOPs per token of the two attention matmuls, forward and backward, over all layers.

    12·L·H·Q·T (PaLM, appendix B): 2 matmuls x 2 FLOPs x 3 passes x L layers x width x T keys. A causal kernel needs
    half the keys on average.
    """
    full = 12.0 * recipe.num_layers * recipe.embedding_width * recipe.context_length
    return full / 2 if causal else full


def nominal_flops_per_token(recipe: Recipe) -> float:
    """6·N + 12·L·H·Q·T: the convention of PaLM and nanoGPT, attention counted in full. Used for every MFU here."""
    return 6.0 * matmul_parameters(recipe) + attention_flops_per_token(recipe, causal=False)


def causal_flops_per_token(recipe: Recipe) -> float:
    """The same with attention counted half, as llm.c does; reads about 7 % lower at GPT-2's size."""
    return 6.0 * matmul_parameters(recipe) + attention_flops_per_token(recipe, causal=True)


def compute_dtype(recipe: Recipe) -> str:
    """The number format that the matmuls of a recipe run in: float32, tf32, bfloat16 or float16."""
    if recipe.precision == "float32":
        return "tf32" if recipe.matmul_precision == "high" else "float32"
    return recipe.precision.partition("_")[0]


def datasheet_flops_per_s(gpu: str | None, dtype: str) -> float | None:
    """Dense peak of one card for one number format, None for a CPU, an unknown card or a format without units."""
    card = find_card(gpu) if gpu else None
    return card.flops_per_s.get(dtype) if card else None


def model_flops_utilization(recipe: Recipe, *, tokens_per_s: float, gpu: str | None) -> float | None:
    """Nominal FLOP/s per GPU over the data sheet's dense peak for the format that ran; None where there is no peak."""
    peak = datasheet_flops_per_s(gpu, compute_dtype(recipe))
    if peak is None:
        return None
    return nominal_flops_per_token(recipe) * tokens_per_s / recipe.data_parallel / peak
