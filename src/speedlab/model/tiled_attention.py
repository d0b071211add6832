"""FlashAttention's algorithm in plain PyTorch, to be read: attention tile by tile, exact, the score matrix never whole.

Forward: online softmax (Milakov and Gimelshein 2018; Rabe and Staats 2021). Backward: scores computed again from one
number per row (Dao et al. 2022, algorithm 4; loop order as in Dao 2023). It is slow here, where each operation on a
tile is a kernel of its own; `triton_attention` is the same in a few kernels. It knows no recipe and no dropout.

Shapes: B batch, H query heads, G key/value heads (H is a multiple of G), T queries, S keys, D width of one head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from speedlab.errors import BadInput


class TileState(NamedTuple):
    """What a tile of queries knows after one more tile of keys. The last two sizes of a shape are given."""

    first_key: int
    scores: Tensor  # (queries, keys), -inf where a key lies in the future
    running_max: Tensor  # (queries, 1): largest score so far
    rescale: Tensor  # (queries, 1): e^(old maximum - new maximum), what the sums so far were multiplied by
    weights: Tensor  # (queries, keys): e^(score - running_max)
    running_sum: Tensor  # (queries, 1): sum of e^(score - running_max) so far
    output: Tensor  # (queries, D): sum of weight times value so far, not yet divided by running_sum


def tiled_attention(
    q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, *, causal: bool = True, query_tile: int = 64, key_tile: int = 64
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v -> (B, H, T, D), in the dtype of q; sums are kept in float32 or better.

    H a multiple of G: each key/value head serves H / G neighbouring query heads (G = 1: multi-query attention).
    causal: query t sees keys up to t, and there are as many keys as queries. Any tile sizes give the same function.
    `BadInput` for shapes that do not fit together.
    """
    check_shapes(q_BHTD, k_BGSD, v_BGSD, causal=causal)
    if query_tile < 1 or key_tile < 1:
        raise BadInput(f"tiles of {query_tile} queries and {key_tile} keys: each needs at least 1")
    return _TiledAttention.apply(q_BHTD, k_BGSD, v_BGSD, causal, query_tile, key_tile)


def visit_key_tiles(
    query: Tensor, keys: Tensor, values: Tensor, *, first_query: int = 0, causal: bool, key_tile: int
) -> Iterator[TileState]:
    """The states that one tile of queries (.., queries, D) goes through, one for each tile of keys that it sees.

    first_query: index of the first query of the tile. The last state holds the result: output / running_sum.
    """
    scale = 1 / math.sqrt(query.shape[-1])
    running_max = torch.full_like(query[..., :1], -math.inf)
    running_sum = torch.zeros_like(running_max)
    output = torch.zeros((*query.shape[:-1], values.shape[-1]), dtype=query.dtype, device=query.device)
    for first_key in range(0, keys_in_sight(query, keys, first_query, causal), key_tile):
        scores = masked_scores(query, keys[..., first_key : first_key + key_tile, :], first_query, first_key, causal)
        scores = scores * scale
        new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))
        rescale = torch.exp(running_max - new_max)  # 0 for the first tile
        weights = torch.exp(scores - new_max)
        running_sum = running_sum * rescale + weights.sum(dim=-1, keepdim=True)
        output = output * rescale + weights @ values[..., first_key : first_key + key_tile, :]
        running_max = new_max
        yield TileState(first_key, scores, running_max, rescale, weights, running_sum, output)


def keys_in_sight(query: Tensor, keys: Tensor, first_query: int, causal: bool) -> int:
    """How many keys any query of the tile sees. Tiles behind them lie in the future as a whole and are skipped."""
    return min(keys.shape[-2], first_query + query.shape[-2]) if causal else keys.shape[-2]


def masked_scores(query: Tensor, key: Tensor, first_query: int, first_key: int, causal: bool) -> Tensor:
    """q k^T of two tiles, -inf where the key lies in the future; only tiles on the diagonal need the mask."""
    scores = query @ key.transpose(-2, -1)
    if not causal or first_key + key.shape[-2] - 1 <= first_query:
        return scores
    queries = first_query + torch.arange(query.shape[-2], device=query.device)[:, None]
    keys = first_key + torch.arange(key.shape[-2], device=query.device)
    return scores.masked_fill(keys > queries, -math.inf)


class _TiledAttention(torch.autograd.Function):
    """Heads are grouped, (B, G, H / G, T, D) against (B, G, 1, S, D), so that matmuls broadcast over each group."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, query_tile: int, key_tile: int) -> Tensor:
        query, keys, values = _grouped(q, k, v)
        output = torch.empty((*query.shape[:-1], values.shape[-1]), dtype=query.dtype, device=query.device)
        log_sum = torch.empty_like(query[..., :1])
        for first in range(0, q.shape[-2], query_tile):
            rows = slice(first, first + query_tile)
            for state in visit_key_tiles(
                query[..., rows, :], keys, values, first_query=first, causal=causal, key_tile=key_tile
            ):
                last = state
            output[..., rows, :] = last.output / last.running_sum
            log_sum[..., rows, :] = last.running_max + torch.log(last.running_sum)
        ctx.save_for_backward(q, k, v, output, log_sum)
        ctx.causal, ctx.query_tile, ctx.key_tile = causal, query_tile, key_tile
        return output.flatten(1, 2).to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        """With P the probabilities and dO the gradient of the output: dV = P^T dO, dP = dO V^T,
        dS = P (dP - rowsum(dO O)), dQ = dS K, dK = dS^T Q, each summed over the tiles."""
        q, k, v, output, log_sum = ctx.saved_tensors
        query, keys, values = _grouped(q, k, v)
        gradient = output_gradient.to(output.dtype).reshape(output.shape)
        scale = 1 / math.sqrt(q.shape[-1])
        row_dot = (gradient * output).sum(dim=-1, keepdim=True)  # equals sum over keys of P dP, without P
        d_query, d_keys, d_values = torch.zeros_like(query), torch.zeros_like(keys), torch.zeros_like(values)
        for first in range(0, q.shape[-2], ctx.query_tile):
            rows = slice(first, first + ctx.query_tile)
            tile = query[..., rows, :]
            for first_key in range(0, keys_in_sight(tile, keys, first, ctx.causal), ctx.key_tile):
                columns = slice(first_key, first_key + ctx.key_tile)
                scores = masked_scores(tile, keys[..., columns, :], first, first_key, ctx.causal)
                probabilities = torch.exp(scores * scale - log_sum[..., rows, :])
                d_probabilities = gradient[..., rows, :] @ values[..., columns, :].transpose(-2, -1)
                d_scores = probabilities * (d_probabilities - row_dot[..., rows, :]) * scale
                d_query[..., rows, :] += d_scores @ keys[..., columns, :]
                # One key/value head serves several query heads: its gradient is their sum.
                d_keys[..., columns, :] += (d_scores.transpose(-2, -1) @ tile).sum(dim=2, keepdim=True)
                d_values[..., columns, :] += (probabilities.transpose(-2, -1) @ gradient[..., rows, :]).sum(
                    dim=2, keepdim=True
                )
        return (
            d_query.flatten(1, 2).to(q.dtype), d_keys.flatten(1, 2).to(k.dtype), d_values.flatten(1, 2).to(v.dtype),
            None, None, None,
        )  # fmt: skip


def _grouped(q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query heads beside the key/value head that serves them, all in the format of the sums."""
    sums = torch.promote_types(q_BHTD.dtype, torch.float32)
    query = q_BHTD.to(sums).unflatten(1, (k_BGSD.shape[1], -1))
    return query, k_BGSD.to(sums).unsqueeze(2), v_BGSD.to(sums).unsqueeze(2)


def check_shapes(q_BHTD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, *, causal: bool) -> None:
    """Raise `BadInput` unless the three fit together."""
    shapes = f"q {tuple(q_BHTD.shape)}, k {tuple(k_BGSD.shape)}, v {tuple(v_BGSD.shape)}"
    if not (q_BHTD.dim() == k_BGSD.dim() == v_BGSD.dim() == 4) or 0 in (*q_BHTD.shape, *k_BGSD.shape, *v_BGSD.shape):
        raise BadInput(f"{shapes}: each needs four sizes (batch, heads, tokens, head width), none of them 0")
    (batch, heads, queries, width), (_, groups, keys, _) = q_BHTD.shape, k_BGSD.shape
    if k_BGSD.shape[0] != batch or k_BGSD.shape[3] != width or v_BGSD.shape[:3] != k_BGSD.shape[:3]:
        raise BadInput(f"{shapes}: batch and width must be those of q, and v needs a row for each row of k")
    if heads % groups:
        raise BadInput(f"{shapes}: {heads} query heads cannot share {groups} key/value heads evenly")
    if causal and queries != keys:
        raise BadInput(f"{shapes}: causal attention needs as many keys as queries")
    if not q_BHTD.is_floating_point() or not (q_BHTD.dtype == k_BGSD.dtype == v_BGSD.dtype):
        raise BadInput(f"q {q_BHTD.dtype}, k {k_BGSD.dtype}, v {v_BGSD.dtype}: one floating-point format for all three")
