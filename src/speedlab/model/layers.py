"""LayerNorm, GELU and the feed-forward part: hand-written and PyTorch's own, side by side.

Shapes: B batch, T tokens of the context, C embedding width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from speedlab.fused.gelu import bias_gelu
from speedlab.recipe import Recipe


class HandwrittenLayerNorm(nn.Module):
    """Layer normalization in eight small operations, each with a round trip through memory (Ba et al. 2016)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x_BTC: Tensor) -> Tensor:
        mean_BT1 = x_BTC.mean(dim=-1, keepdim=True)
        variance_BT1 = x_BTC.var(dim=-1, keepdim=True, unbiased=False)
        normalized_BTC = (x_BTC - mean_BT1) / torch.sqrt(variance_BT1 + self.eps)
        return self.weight * normalized_BTC + self.bias


class HandwrittenGELU(nn.Module):
    """GELU in its tanh form, as GPT-2 has it, in eight small operations (Hendrycks and Gimpel 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class NativeGELU(nn.GELU):
    """The same function in one kernel."""

    def __init__(self) -> None:
        super().__init__(approximate="tanh")


class LayerSet(NamedTuple):
    """The classes that one value of the recipe field `layers` stands for."""

    layer_norm: type[nn.Module]
    gelu: type[nn.Module]


LAYERS = {
    "handwritten": LayerSet(HandwrittenLayerNorm, HandwrittenGELU),
    "native": LayerSet(nn.LayerNorm, NativeGELU),
}


def layer_set(recipe: Recipe) -> LayerSet:
    return LAYERS[recipe.layers]


class FeedForward(nn.Module):
    """Two matmuls with a GELU between them, four times as wide inside: (B, T, C) -> (B, T, C)."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        width = recipe.embedding_width
        self.up = nn.Linear(width, 4 * width)
        self.gelu = layer_set(recipe).gelu()
        self.down = nn.Linear(4 * width, width)

    def inner(self, x_BTC: Tensor) -> Tensor:
        """What goes into the second matmul: (B, T, C) -> (B, T, 4C)."""
        return self.gelu(self.up(x_BTC))

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.down(self.inner(x_BTC))


class SigmoidFeedForward(FeedForward):
    """The same function: (1 + tanh u) / 2 is sigmoid(2u), which a compiler turns into fewer instructions."""

    def inner(self, x_BTC: Tensor) -> Tensor:
        stored = self.up(x_BTC)
        z = stored.float()
        return (z * torch.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (z + 0.044715 * z * z * z))).to(stored.dtype)


class FusedFeedForward(FeedForward):
    """The same with bias and GELU in one kernel; backward, gradient and bias gradient in another."""

    def inner(self, x_BTC: Tensor) -> Tensor:
        return bias_gelu(F.linear(x_BTC, self.up.weight), self.up.bias)


FEED_FORWARD = {"separate": FeedForward, "sigmoid": SigmoidFeedForward, "fused": FusedFeedForward}
