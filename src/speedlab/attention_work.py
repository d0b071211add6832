"""What attention has to compute, move and keep, by formula. It imports no torch and knows no measurement.

Shapes: B batch, H query heads, G key/value heads, T tokens, D width of one head.
"""

from __future__ import annotations

import math


def attention_traffic(
    *, batch: int, context: int, heads: int, head_width: int, bytes_per_value: int, query_tile: int = 128
) -> dict[str, dict[str, float]]:
    """Bytes that the forward pass of one causal attention layer moves between memory and chip, by formula.

    `plain`: query times key writes the scores, softmax reads them and writes the probabilities, and the product with
    the values reads those: four passes over a context x context matrix per head (mask, scaling and dropout as
    kernels of their own would add more). `tiled`: the queries, the output and one float32 log-sum-exp per row pass
    once; keys and values are read again for every tile of `query_tile` query rows, up to the diagonal. That is an
    upper bound for tiled: most of the repeated reads are answered by the cache on the chip.
    """
    tokens = batch * context * heads
    vectors = tokens * head_width * bytes_per_value  # one of queries, keys, values, output
    matrix = tokens * context * bytes_per_value
    tiles = math.ceil(context / query_tile)
    passes = (tiles + 1) / 2  # tile i reads i of the tiles' keys
    return {
        "plain": {"queries, keys, values, output": 4 * vectors, "scores": 2 * matrix, "probabilities": 2 * matrix},
        "tiled": {
            "queries and output": 2 * vectors,
            "keys and values, once": 2 * vectors,
            "keys and values, again": 2 * vectors * (passes - 1),
            "log-sum-exp": tokens * 4,
        },
    }


def causal_tiles(context: int, tile: int) -> dict[str, int]:
    """How many square tiles of the score matrix a causal kernel computes whole, masks inside, and skips."""
    rows = math.ceil(context / tile)
    return {"whole": rows * (rows - 1) // 2, "masked": rows, "skipped": rows * (rows - 1) // 2}


def attention_flops(*, batch: int, context: int, heads: int, head_width: int, causal: bool, backward: bool) -> float:
    """FLOPs of one layer's attention: 2 products of T x T x D forward, twice that backward, half of it if causal.

    What a tiled kernel computes again in its backward pass (one more product) does not count: it is no result.
    """
    products = 2 + (4 if backward else 0)
    return 2.0 * products * batch * heads * context**2 * head_width * (0.5 if causal else 1.0)


def key_value_bytes(*, batch: int, context: int, key_value_heads: int, head_width: int, bytes_per_value: int) -> int:
    """Bytes of the keys and values of one layer, which generation keeps and which grouped heads make fewer."""
    return 2 * batch * context * key_value_heads * head_width * bytes_per_value
