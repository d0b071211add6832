"""AdamW in the forms that PyTorch offers: a loop over parameters, grouped launches, or one fused kernel."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from speedlab.recipe import Recipe

# What torch.optim.AdamW is told. "default" leaves the choice to PyTorch: foreach on CUDA, the loop on a CPU.
IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "for_loop": {"foreach": False, "fused": False},
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def build_optimizer(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """AdamW over `parameters`, which must be on their device already; weight decay applies to all of them."""
    return torch.optim.AdamW(
        parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **IMPLEMENTATIONS[recipe.optimizer]
    )
