"""One canonical form of the weights, drawn once and loaded into every variant, so that variants start equal.

Seeding alone does not give equal starts: a padded vocabulary or a joined projection shifts every later draw. The
canonical form is float32, q/k/v apart, exactly `vocab_size` rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from speedlab.model.gpt import GPT
from speedlab.recipe import Recipe

STANDARD_DEVIATION = 0.02  # GPT-2's; the two projections into the residual stream are scaled by 1/sqrt(2 L)


def draw_weights(recipe: Recipe) -> dict[str, Tensor]:
    """The canonical weights for the model shape of `recipe`, float32 on the CPU, from `recipe.seed`.

    A tied head has no entry of its own. Biases are zero, norms one.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    model = _on_meta(recipe.but(qkv_projection="separate", vocabulary="exact", layers="native", attention="sdpa"))
    residual_scale = 1.0 / math.sqrt(2 * recipe.num_layers)
    weights = {}
    for name, parameter in model.named_parameters():  # a tied head is reported once, as the token table
        if name.endswith("bias"):
            value = torch.zeros(parameter.shape)
        elif "norm" in name:
            value = torch.ones(parameter.shape)
        else:
            value = torch.empty(parameter.shape).normal_(0.0, STANDARD_DEVIATION, generator=generator)
            if name.endswith(("attention.out.weight", "feed_forward.down.weight")):
                value *= residual_scale
        weights[name] = value
    return weights


@torch.no_grad()
def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy canonical weights into a model of any variant. Padded rows become zero; joined q/k/v are concatenated."""
    for name, parameter in model.named_parameters():
        if ".project.qkv." in name:
            parts = [weights[name.replace(".qkv.", f".{part}.")] for part in ("query", "key", "value")]
            value = torch.cat(parts)
        else:
            value = weights[name]
        if value.shape[0] < parameter.shape[0]:
            parameter[value.shape[0] :].zero_()
        parameter[: value.shape[0]].copy_(value)


@torch.no_grad()
def canonical_weights(model: nn.Module, recipe: Recipe) -> dict[str, Tensor]:
    """The inverse of `load_weights`: the weights of any variant in canonical form, float32 copies on the CPU."""
    weights = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach().float().cpu().clone()
        if name.startswith(("token_table.", "head.")):
            weights[name] = value[: recipe.vocab_size].clone()
        elif ".project.qkv." in name:
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                weights[name.replace(".qkv.", f".{part}.")] = piece.clone()
        else:
            weights[name] = value
    return weights


def _on_meta(recipe: Recipe) -> GPT:
    """The model's shapes without its memory."""
    with torch.device("meta"):
        return GPT(recipe)
