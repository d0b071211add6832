"""How long a step should take by counting: FLOPs over the measured matmul rate, bytes over the measured bandwidth.

Made before a rung runs, from its recipe and the session's ceilings alone. It is a model: parts are added as if
nothing overlapped, matmuls are given the rate of a large square one, and launches are taken to be hidden.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from speedlab.recipe import Recipe
from speedlab.work import attention_flops_per_token, compute_dtype, matmul_parameters

# Passes over a tensor through device memory in forward + backward, each read and each write counted once, as the
# operations of the module are written (PyTorch runs them one by one) or as one fused kernel needs them.
PASSES = {
    ("handwritten", "layer_norm"): 10 + 24,
    ("native", "layer_norm"): 2 + 5,
    ("handwritten", "gelu"): 18 + 30,
    ("native", "gelu"): 2 + 3,
    "compiled layer_norm": 1 + 3,
    "compiled gelu": 1 + 3,
    "residual": 3 + 3,
    "bias gradients": 6,  # of the projections around one block, in units of its width
    "scores": 9 + 11,
    "compiled scores": 4 + 6,
    "logits": 4 + 5,
}
DROPOUT_PASSES = 2.25 + 2.25  # values in and out, and one byte of mask
COMPILED_DROPOUT_PASSES = 0.5  # fused with what stands beside it; the mask remains
# AdamW reads weight, gradient and two moments and writes three of them; one launch per arithmetic operation instead
# of one in all goes through memory about three times as often.
OPTIMIZER_PASSES = {"fused": 7, "default": 21, "foreach": 21, "for_loop": 21}


def predict(recipe: Recipe, ceilings: dict[str, Any], *, utc: str | None = None) -> dict[str, Any] | None:
    """The `predicted` object of a record: {step_ms, bound_by, parts_ms, utc}; None without a rate for the format.

    step_ms is for one optimizer step on one GPU; `bound_by` names the largest part.
    """
    rate = ceilings["matmul_flops_per_s"].get(compute_dtype(recipe))
    if rate is None:
        return None
    bandwidth = ceilings["copy_bytes_per_s"]
    tokens = recipe.micro_batch * recipe.context_length * recipe.accumulation
    fused_attention = recipe.attention != "plain"
    parts_ms = {
        "matmuls": 1e3 * tokens * 6.0 * matmul_parameters(recipe) / rate,
        "attention matmuls": 1e3 * tokens * attention_flops_per_token(recipe, causal=fused_attention) / rate,
        "attention scores": 1e3 * tokens * _score_bytes_per_token(recipe) / bandwidth,
        "norms, GELU, residuals": 1e3 * tokens * _layer_bytes_per_token(recipe) / bandwidth,
        "logits and loss": 1e3 * tokens * PASSES["logits"] * recipe.padded_vocab_size * _item(recipe) / bandwidth,
        "optimizer": 1e3 * _optimizer_bytes(recipe) / bandwidth,
    }
    return {
        "step_ms": sum(parts_ms.values()),
        "bound_by": max(parts_ms, key=lambda part: parts_ms[part]),
        "parts_ms": parts_ms,
        "utc": utc or datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _item(recipe: Recipe) -> int:
    """Bytes of one activation."""
    return 4 if recipe.precision == "float32" else 2


def _score_bytes_per_token(recipe: Recipe) -> float:
    """Traffic of the context x context scores; none when a fused kernel keeps them on the chip."""
    if recipe.attention not in ("plain", "sdpa_math"):
        return 0.0
    compiled = recipe.compile != "off"
    passes = PASSES["compiled scores"] if compiled else PASSES["scores"]
    if recipe.dropout:
        passes += COMPILED_DROPOUT_PASSES if compiled else DROPOUT_PASSES
    return passes * recipe.num_layers * recipe.num_heads * recipe.context_length * _item(recipe)


def _layer_bytes_per_token(recipe: Recipe) -> float:
    compiled = recipe.compile != "off"

    def passes(part: str) -> int:
        return PASSES[f"compiled {part}"] if compiled else PASSES[(recipe.layers, part)]

    dropout = (COMPILED_DROPOUT_PASSES if compiled else DROPOUT_PASSES) if recipe.dropout else 0.0
    # A compiled LayerNorm takes the residual addition before it into the same kernel.
    residual = 0 if compiled else PASSES["residual"]
    per_block = 2 * passes("layer_norm") + 4 * passes("gelu") + 2 * (residual + dropout) + PASSES["bias gradients"]
    return (recipe.num_layers * per_block + passes("layer_norm")) * recipe.embedding_width * _item(recipe)


def _optimizer_bytes(recipe: Recipe) -> float:
    tables = recipe.padded_vocab_size + recipe.context_length
    if recipe.output_head == "tied":
        tables -= recipe.padded_vocab_size
    weights = matmul_parameters(recipe) + tables * recipe.embedding_width
    passes = OPTIMIZER_PASSES[recipe.optimizer]
    if recipe.precision == "bfloat16_master":  # float32 masters and moments; 16-bit gradients in, weights out
        return 4.0 * weights * passes + 2.0 * weights * (1 + 1) + 4.0 * weights
    return float(passes) * weights * (2 if recipe.precision == "bfloat16" else 4)
