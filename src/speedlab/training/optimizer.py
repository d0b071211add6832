"""AdamW in the forms that PyTorch offers, and with float32 master copies of 16-bit weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from speedlab.fused.adamw import OnePassAdamW
from speedlab.recipe import Recipe

# What torch.optim.AdamW is told. "default" leaves the choice to PyTorch: foreach on CUDA, the loop on a CPU.
IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "for_loop": {"foreach": False, "fused": False},
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def build_optimizer(
    recipe: Recipe, parameters: Iterable[nn.Parameter], masters: list[Tensor] | None = None
) -> torch.optim.AdamW | MasterWeights | OnePassAdamW:
    """AdamW over `parameters`, which must be on their device already; weight decay applies to all of them.

    masters: float32 tensors of the same shapes and order, to be updated in place of the parameters, which then
    receive their rounded values after each step.
    """
    if recipe.optimizer == "one_pass":
        return OnePassAdamW(list(parameters), masters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    if masters is not None:
        return MasterWeights(recipe, list(parameters), masters)
    return torch.optim.AdamW(
        parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **IMPLEMENTATIONS[recipe.optimizer]
    )


def clip_gradients(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> None:
    """Scale all gradients down together where their joint norm exceeds `recipe.gradient_clip` (Pascanu et al. 2013).

    The norm stays on the device: nothing waits for it. A norm that is not finite makes every gradient so; a gradient
    scaler has seen that before and skips the step.
    """
    if recipe.gradient_clip:
        nn.utils.clip_grad_norm_(parameters, recipe.gradient_clip)


class MasterWeights:
    """AdamW on float32 copies of 16-bit parameters (Micikevicius et al. 2018, section 3.1).

    The model computes with the rounded weights; updates, moments and weight decay act on the copies, so that an update
    below the weights' own resolution is kept until it counts. 14 bytes more for each weight than pure 16 bits.
    """

    def __init__(self, recipe: Recipe, parameters: list[nn.Parameter], masters: list[Tensor]) -> None:
        self.recipe = recipe
        self.parameters = parameters
        self.masters = [nn.Parameter(master) for master in masters]
        self.optimizer = build_optimizer(recipe, self.masters)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        clip_gradients(self.recipe, self.masters)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        torch._foreach_copy_(self.parameters, self.masters)

    def state_dict(self) -> dict[str, Any]:
        """Moments and master weights: what the next step depends on beside the weights of the model."""
        return {"optimizer": self.optimizer.state_dict(), "masters": [master.detach() for master in self.masters]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        for master, value in zip(self.masters, state["masters"], strict=True):
            master.copy_(value)
