"""Causal self-attention: the plain form with two ways to make its mask, PyTorch's fused form, two q/k/v projections.

Shapes: B batch, T tokens, C embedding width, H heads, D width of one head (C = H x D), S keys (S = T here).
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from speedlab.fused.qkv import project_qkv
from speedlab.recipe import Recipe


class StoredMask(nn.Module):
    """The mask as a buffer of T x T numbers in every layer, 4 MiB each in float32 at a context of 1,024."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        ones_TS = torch.ones(recipe.context_length, recipe.context_length)
        self.register_buffer("future_TS", torch.triu(ones_TS, diagonal=1), persistent=False)

    def forward(self, num_tokens: int, device: torch.device) -> Tensor:
        return self.future_TS.bool()[:num_tokens, :num_tokens]


class MaskOnTheFly(nn.Module):
    """The mask made anew in each forward pass; nothing is kept in the module."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()

    def forward(self, num_tokens: int, device: torch.device) -> Tensor:
        ones_TS = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device)
        return torch.triu(ones_TS, diagonal=1)


MASKS = {"stored": StoredMask, "on_the_fly": MaskOnTheFly}


def causal_mask(recipe: Recipe) -> nn.Module:
    """Module that gives the boolean mask (T, S), true where a key lies in the future of its query."""
    return MASKS[recipe.causal_mask](recipe)


class PlainAttention(nn.Module):
    """softmax(q k^T / sqrt(D)) v written out; the scores (B, H, T, S) are stored in memory (Vaswani et al. 2017)."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.mask = causal_mask(recipe)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
        num_tokens, head_width = q_BHTD.shape[-2:]
        scores_BHTS = q_BHTD @ k_BHSD.transpose(-2, -1)
        scores_BHTS.masked_fill_(self.mask(num_tokens, q_BHTD.device), -math.inf)
        weights_BHTS = torch.softmax(scores_BHTS / math.sqrt(head_width), dim=-1)
        return self.dropout(weights_BHTS) @ v_BHSD


class FusedAttention(nn.Module):
    """The same function by `scaled_dot_product_attention`; with a FlashAttention kernel the scores stay on the chip.

    backend: the one to insist on (an error where it cannot run), or None for PyTorch's own choice.
    """

    def __init__(self, recipe: Recipe, backend: SDPBackend | None = None) -> None:
        super().__init__()
        self.dropout = recipe.dropout
        self.backend = backend

    def forward(self, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        with sdpa_kernel(self.backend) if self.backend is not None else nullcontext():
            return F.scaled_dot_product_attention(q_BHTD, k_BHSD, v_BHSD, dropout_p=dropout, is_causal=True)


ATTENTION = {
    "plain": PlainAttention,
    "sdpa": FusedAttention,
    "sdpa_math": partial(FusedAttention, backend=SDPBackend.MATH),
    "sdpa_efficient": partial(FusedAttention, backend=SDPBackend.EFFICIENT_ATTENTION),
    "sdpa_flash": partial(FusedAttention, backend=SDPBackend.FLASH_ATTENTION),
    "sdpa_cudnn": partial(FusedAttention, backend=SDPBackend.CUDNN_ATTENTION),
}


class SeparateProjections(nn.Module):
    """Query, key and value by three matmuls: (B, T, C) -> three of (B, H, T, D)."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        width = recipe.embedding_width
        self.num_heads = recipe.num_heads
        self.query = nn.Linear(width, width, bias=recipe.qkv_bias)
        self.key = nn.Linear(width, width, bias=recipe.qkv_bias)
        self.value = nn.Linear(width, width, bias=recipe.qkv_bias)

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_BTC, k_BTC, v_BTC = self.query(x_BTC), self.key(x_BTC), self.value(x_BTC)
        return (
            split_heads(q_BTC, self.num_heads),
            split_heads(k_BTC, self.num_heads),
            split_heads(v_BTC, self.num_heads),
        )


class MergedProjection(nn.Module):
    """Query, key and value by one matmul three times as wide, then cut apart."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        width = recipe.embedding_width
        self.num_heads = recipe.num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=recipe.qkv_bias)

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_BTC, k_BTC, v_BTC = self.qkv(x_BTC).chunk(3, dim=-1)
        return (
            split_heads(q_BTC, self.num_heads),
            split_heads(k_BTC, self.num_heads),
            split_heads(v_BTC, self.num_heads),
        )


PROJECTIONS = {"separate": SeparateProjections, "merged": MergedProjection}


class FusedBackwardProjection(MergedProjection):
    """The same with the joining of the three gradients and their bias gradient in one pass."""

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_BTC, k_BTC, v_BTC = project_qkv(x_BTC, self.qkv.weight, self.qkv.bias)
        return (
            split_heads(q_BTC, self.num_heads),
            split_heads(k_BTC, self.num_heads),
            split_heads(v_BTC, self.num_heads),
        )


def projection(recipe: Recipe) -> nn.Module:
    """What `qkv_projection` says; `qkv_backward` has a say where there are gradients to join and a bias to sum for."""
    if recipe.qkv_backward == "fused" and recipe.qkv_projection == "merged" and recipe.qkv_bias:
        return FusedBackwardProjection(recipe)
    return PROJECTIONS[recipe.qkv_projection](recipe)


def split_heads(x_BTC: Tensor, num_heads: int) -> Tensor:
    """(B, T, C) -> (B, H, T, D), a view."""
    batch, num_tokens, width = x_BTC.shape
    return x_BTC.view(batch, num_tokens, num_heads, width // num_heads).transpose(1, 2)


class CausalSelfAttention(nn.Module):
    """Projections, attention, output projection: (B, T, C) -> (B, T, C)."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.project = projection(recipe)
        self.attend = ATTENTION[recipe.attention](recipe)
        self.out = nn.Linear(recipe.embedding_width, recipe.embedding_width)

    def mixed(self, x_BTC: Tensor) -> Tensor:
        """What goes into the output projection: (B, T, C) -> (B, T, C)."""
        q_BHTD, k_BHTD, v_BHTD = self.project(x_BTC)
        mixed_BHTD = self.attend(q_BHTD, k_BHTD, v_BHTD)
        return mixed_BHTD.transpose(1, 2).flatten(2)  # (B, H, T, D) -> (B, T, C)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.out(self.mixed(x_BTC))
