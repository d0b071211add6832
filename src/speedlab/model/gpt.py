"""The GPT-2 model that every recipe builds (Radford et al. 2019). It maps token ids to logits and knows no optimizer.

Shapes: B batch, T tokens, C embedding width, V rows of the (possibly padded) vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from speedlab.errors import BadInput
from speedlab.fused.fp8_head import FP8Linear
from speedlab.model.attention import CausalSelfAttention
from speedlab.model.layers import FEED_FORWARD, layer_set
from speedlab.model.trunk import TRUNKS
from speedlab.recipe import Recipe


class Block(nn.Module):
    """Attention and feed-forward, each behind a LayerNorm and added to the residual stream: (B, T, C) -> (B, T, C)."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        layer_norm = layer_set(recipe).layer_norm
        self.attention_norm = layer_norm(recipe.embedding_width)
        self.attention = CausalSelfAttention(recipe)
        self.feed_forward_norm = layer_norm(recipe.embedding_width)
        self.feed_forward = FEED_FORWARD[recipe.feed_forward](recipe)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.dropout(self.attention(self.attention_norm(x_BTC)))
        return x_BTC + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTC)))


# How the final hidden states become logits.
HEADS = {"same": nn.Linear, "fp8_forward": FP8Linear}


class GPT(nn.Module):
    """Token ids (B, T) to logits (B, T, V). Weights are left to `load_weights`, so that variants can share them.

    Logits of the padded ids, V > recipe.vocab_size, mean nothing: mask them before sampling.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        if recipe.residual == "fused" and recipe.dropout:
            raise BadInput(f"residual fused leaves no room for dropout {recipe.dropout}: use residual separate")
        rows, width = recipe.padded_vocab_size, recipe.embedding_width
        self.context_length = recipe.context_length
        self.token_table = nn.Embedding(rows, width)
        self.position_table = nn.Embedding(recipe.context_length, width)
        self.dropout = nn.Dropout(recipe.dropout)
        self.blocks = nn.ModuleList(Block(recipe) for _ in range(recipe.num_layers))
        self.final_norm = layer_set(recipe).layer_norm(width)
        self.head = HEADS[recipe.head_matmul](width, rows, bias=False)
        if recipe.output_head == "tied":
            self.head.weight = self.token_table.weight
        self.trunk = TRUNKS[recipe.residual]

    def forward(self, tokens_BT: Tensor) -> Tensor:
        num_tokens = tokens_BT.shape[1]
        if num_tokens > self.context_length:
            raise BadInput(f"sequence of {num_tokens} tokens: this model's context holds {self.context_length}")
        positions_T = torch.arange(num_tokens, device=tokens_BT.device)
        x_BTC = self.dropout(self.token_table(tokens_BT) + self.position_table(positions_T))
        return self.head(self.trunk(self, x_BTC))

    def run_blocks(self, x_BTC: Tensor) -> Tensor:
        """All blocks in order: (B, T, C) -> (B, T, C). Checkpointing replaces it or the blocks' own `forward`."""
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return x_BTC

    def num_parameters(self) -> int:
        """Distinct weights; a tied head counts once."""
        return sum(p.numel() for p in self.parameters())
