"""Sizes and rates by formula: weights, attention matrices, number formats. Torch-free; it knows no records."""

from __future__ import annotations

from speedlab.memory_plan import parameter_tensors, total_parameters
from speedlab.number_formats import FORMATS, round_to
from speedlab.recipe import Recipe
from speedlab.work import attention_flops_per_token, nominal_flops_per_token

__all__ = [
    "BYTES", "GB", "SEVEN_B", "activation_bytes", "attention_share", "lost_above", "matrix_bytes",
    "parameter_tensors", "to_bfloat16", "total_parameters",
]  # fmt: skip

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "bool": 1}
GB = 1e9

# A model of the size that people call 7B, in the shape of this book's models.
SEVEN_B = Recipe(num_layers=32, embedding_width=4096, num_heads=32, context_length=4096, vocab_size=32_000)


def attention_share(recipe: Recipe) -> float:
    """Share of the nominal FLOPs that the two attention matmuls have."""
    return attention_flops_per_token(recipe, causal=False) / nominal_flops_per_token(recipe)


def matrix_bytes(context_length: int, number_format: str) -> int:
    """Bytes of one context x context matrix: a mask, or the scores of one head of one sequence."""
    return context_length**2 * BYTES[number_format]


def activation_bytes(recipe: Recipe, number_format: str) -> int:
    """Bytes of one full-width activation, (B, T, C)."""
    return recipe.micro_batch * recipe.context_length * recipe.embedding_width * BYTES[number_format]


def to_bfloat16(value: float) -> float:
    """The nearest bfloat16, ties to even; finite values only."""
    return round_to(value, FORMATS["bfloat16"])


def lost_above(update: float) -> float:
    """The smallest power of two such that a bfloat16 weight from there on does not move when `update` is added."""
    weight = 2.0**-30
    while to_bfloat16(weight + update) != weight:
        weight *= 2
    return weight
