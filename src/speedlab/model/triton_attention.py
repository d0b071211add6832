"""Tiled attention as three small Triton kernels: the loops of `tiled_attention`, each program keeping its tile on chip.

Importing this needs Triton. It is written to be read and tried, not to win: tile sizes are fixed, every tile is masked,
and nothing overlaps loading with computing beyond what Triton does on its own. It knows no recipe and no dropout.

Shapes: B batch, H query heads, G key/value heads, T tokens (as many queries as keys), D width of one head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from speedlab.errors import BadInput
from speedlab.model.tiled_attention import check_shapes

WIDTHS = (16, 32, 64, 128)  # widths of a head that a tile is made for; Triton multiplies powers of two from 16
LOG2_E = math.log2(math.e)  # the card has an instruction for powers of two


def triton_attention(q_BHTD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, *, causal: bool = True) -> Tensor:
    """softmax(q k^T / sqrt(D)) v -> (B, H, T, D), in the dtype of q; products in that dtype, sums in float32.

    As `tiled_attention`, but as many keys as queries, values as wide as keys, and D one of `WIDTHS`.
    """
    check_shapes(q_BHTD, k_BGTD, v_BGTD, causal=True)
    if q_BHTD.shape[-1] not in WIDTHS or v_BGTD.shape[-1] != q_BHTD.shape[-1]:
        raise BadInput(
            f"head width {q_BHTD.shape[-1]} with values of {v_BGTD.shape[-1]}: both must be the same one of {WIDTHS}"
        )
    return _TritonAttention.apply(q_BHTD, k_BGTD, v_BGTD, causal)


@triton.jit
def tile_of(pointer, first, stride, tokens, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows first .. first + ROWS of one head, (ROWS, WIDTH); rows past the last token are 0."""
    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    return tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=rows[:, None] < tokens, other=0.0)


@triton.jit
def put_tile(pointer, tile, first, stride, tokens, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Write a tile to where `tile_of` would read it."""
    rows = first + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    places = pointer + rows[:, None] * stride + columns[None, :]
    tl.store(places, tile.to(pointer.dtype.element_ty), mask=rows[:, None] < tokens)


@triton.jit
def scores_of(query, key, first_query, first_key, tokens, scale, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """Scaled q k^T of two tiles, (queries, keys), -inf where there is no key or it lies in the future."""
    queries = first_query + tl.arange(0, query.shape[0])
    keys = first_key + tl.arange(0, key.shape[0])
    visible = keys[None, :] < tokens
    if CAUSAL:
        visible = visible & (keys[None, :] <= queries[:, None])
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def forward_kernel(
    q, k, v, output, log2_sum, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    tokens, heads, group, scale,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head walks over the keys that it sees; scores are in units of log 2."""
    first_query = tl.program_id(0) * QUERIES
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    key_head = head // group
    query = tile_of(q + batch * q_batch + head * q_head, first_query, q_row, tokens, QUERIES, WIDTH)
    keys = k + batch * k_batch + key_head * k_head
    values = v + batch * v_batch + key_head * v_head
    running_max = tl.full([QUERIES], float("-inf"), tl.float32)
    running_sum = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, WIDTH], tl.float32)
    end = tl.minimum(tokens, first_query + QUERIES) if CAUSAL else tokens
    for first_key in range(0, end, KEYS):
        key = tile_of(keys, first_key, k_row, tokens, KEYS, WIDTH)
        scores = scores_of(query, key, first_query, first_key, tokens, scale, CAUSAL, PRECISION)
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        rescale = tl.exp2(running_max - new_max)
        weights = tl.exp2(scores - new_max[:, None])
        running_sum = running_sum * rescale + tl.sum(weights, 1)
        value = tile_of(values, first_key, v_row, tokens, KEYS, WIDTH)
        mixed = mixed * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        running_max = new_max
    one_head = tl.program_id(1).to(tl.int64) * tokens
    put_tile(output + one_head * WIDTH, mixed / running_sum[:, None], first_query, WIDTH, tokens, QUERIES, WIDTH)
    rows = first_query + tl.arange(0, QUERIES)
    tl.store(log2_sum + one_head + rows, running_max + tl.log2(running_sum), mask=rows < tokens)


@triton.jit
def query_gradient_kernel(
    q, k, v, d_output, log2_sum, row_dot, d_q, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    tokens, heads, group, scale,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries sums dS K over the keys that it sees; the factor 1 / sqrt(D) is left to the caller."""
    first_query = tl.program_id(0) * QUERIES
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    key_head = head // group
    one_head = tl.program_id(1).to(tl.int64) * tokens
    rows = first_query + tl.arange(0, QUERIES)
    query = tile_of(q + batch * q_batch + head * q_head, first_query, q_row, tokens, QUERIES, WIDTH)
    gradient = tile_of(d_output + one_head * WIDTH, first_query, WIDTH, tokens, QUERIES, WIDTH)
    row_log2 = tl.load(log2_sum + one_head + rows, mask=rows < tokens, other=float("inf"))
    dot = tl.load(row_dot + one_head + rows, mask=rows < tokens, other=0.0)
    total = tl.zeros([QUERIES, WIDTH], tl.float32)
    end = tl.minimum(tokens, first_query + QUERIES) if CAUSAL else tokens
    for first_key in range(0, end, KEYS):
        key = tile_of(k + batch * k_batch + key_head * k_head, first_key, k_row, tokens, KEYS, WIDTH)
        value = tile_of(v + batch * v_batch + key_head * v_head, first_key, v_row, tokens, KEYS, WIDTH)
        scores = scores_of(query, key, first_query, first_key, tokens, scale, CAUSAL, PRECISION)
        probabilities = tl.exp2(scores - row_log2[:, None])
        d_probabilities = tl.dot(gradient, tl.trans(value), input_precision=PRECISION)
        d_scores = probabilities * (d_probabilities - dot[:, None])
        total += tl.dot(d_scores.to(key.dtype), key, input_precision=PRECISION)
    put_tile(d_q + one_head * WIDTH, total, first_query, WIDTH, tokens, QUERIES, WIDTH)


@triton.jit
def key_value_gradient_kernel(
    q, k, v, d_output, log2_sum, row_dot, d_k, d_v,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, tokens, heads, group, scale,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of keys of one key head sums dS^T Q and P^T dO over the queries, of all its heads, that see it."""
    first_key = tl.program_id(0) * KEYS
    key_heads = heads // group
    batch, key_head = (tl.program_id(1) // key_heads).to(tl.int64), tl.program_id(1) % key_heads
    key = tile_of(k + batch * k_batch + key_head * k_head, first_key, k_row, tokens, KEYS, WIDTH)
    value = tile_of(v + batch * v_batch + key_head * v_head, first_key, v_row, tokens, KEYS, WIDTH)
    key_total = tl.zeros([KEYS, WIDTH], tl.float32)
    value_total = tl.zeros([KEYS, WIDTH], tl.float32)
    start = first_key // QUERIES * QUERIES if CAUSAL else 0
    for head in range(key_head * group, (key_head + 1) * group):
        one_head = (batch * heads + head) * tokens
        for first_query in range(start, tokens, QUERIES):
            rows = first_query + tl.arange(0, QUERIES)
            query = tile_of(q + batch * q_batch + head * q_head, first_query, q_row, tokens, QUERIES, WIDTH)
            gradient = tile_of(d_output + one_head * WIDTH, first_query, WIDTH, tokens, QUERIES, WIDTH)
            row_log2 = tl.load(log2_sum + one_head + rows, mask=rows < tokens, other=float("inf"))
            dot = tl.load(row_dot + one_head + rows, mask=rows < tokens, other=0.0)
            scores = scores_of(query, key, first_query, first_key, tokens, scale, CAUSAL, PRECISION)
            probabilities = tl.exp2(scores - row_log2[:, None])
            value_total += tl.dot(tl.trans(probabilities.to(gradient.dtype)), gradient, input_precision=PRECISION)
            d_probabilities = tl.dot(gradient, tl.trans(value), input_precision=PRECISION)
            d_scores = probabilities * (d_probabilities - dot[:, None])
            key_total += tl.dot(tl.trans(d_scores.to(query.dtype)), query, input_precision=PRECISION)
    one_key_head = tl.program_id(1).to(tl.int64) * tokens * WIDTH
    put_tile(d_k + one_key_head, key_total, first_key, WIDTH, tokens, KEYS, WIDTH)
    put_tile(d_v + one_key_head, value_total, first_key, WIDTH, tokens, KEYS, WIDTH)


class _TritonAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))  # any layout with whole rows
        output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        log2_sum = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        queries, keys = tiles(q)
        grid = (triton.cdiv(q.shape[2], queries), q.shape[0] * q.shape[1])
        forward_kernel[grid](q, k, v, output, log2_sum, *_sizes(q, k, v), **_constants(q, causal, queries, keys))
        ctx.save_for_backward(q, k, v, output, log2_sum)
        ctx.causal = causal
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, log2_sum = ctx.saved_tensors
        d_output = d_output.contiguous()
        row_dot = (d_output.float() * output.float()).sum(dim=-1)
        d_q, d_k, d_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        queries, keys = tiles(q)
        shared, sizes = (q, k, v, d_output, log2_sum, row_dot), _sizes(q, k, v)
        constants = _constants(q, ctx.causal, queries, keys)
        query_gradient_kernel[(triton.cdiv(q.shape[2], queries), q.shape[0] * q.shape[1])](
            *shared, d_q, *sizes, **constants
        )
        key_value_gradient_kernel[(triton.cdiv(k.shape[2], keys), k.shape[0] * k.shape[1])](
            *shared, d_k, d_v, *sizes, **constants
        )
        scale = 1 / math.sqrt(q.shape[-1])
        return d_q.mul_(scale), d_k.mul_(scale), d_v, None


def tiles(q: Tensor) -> tuple[int, int]:
    """Queries and keys of one tile: small enough for the registers of a program at this width and number format."""
    if q.dtype == torch.float32 or q.shape[-1] > 64:
        return 32, 32
    return 64, 64


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    return *strides, q.shape[2], q.shape[1], q.shape[1] // k.shape[1], LOG2_E / math.sqrt(q.shape[-1])


def _constants(q: Tensor, causal: bool, queries: int, keys: int) -> dict[str, Any]:
    # "ieee" keeps float32 products exact; 16-bit ones are exact anyway.
    return {"CAUSAL": causal, "WIDTH": q.shape[-1], "QUERIES": queries, "KEYS": keys, "PRECISION": "ieee"}
