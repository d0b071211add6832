"""Number formats: what the weights are stored in, what the matmuls run in, and the global switch that goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from speedlab.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Precision:
    """weights: dtype of parameters and gradients. autocast: dtype of matmuls if it is another one.

    scaled: multiply the loss so that small float16 gradients do not vanish. masters: the optimizer keeps float32
    copies of the weights and updates those, so that an update too small for the weights' own format is not lost
    (both Micikevicius et al. 2018).
    """

    weights: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scaled: bool = False
    masters: bool = False


PRECISIONS: dict[str, Precision] = {
    "float32": Precision(),
    "bfloat16": Precision(weights=torch.bfloat16),
    "bfloat16_master": Precision(weights=torch.bfloat16, masters=True),
    "bfloat16_autocast": Precision(autocast=torch.bfloat16),
    "float16_autocast": Precision(autocast=torch.float16, scaled=True),
}


def precision_of(recipe: Recipe) -> Precision:
    return PRECISIONS[recipe.precision]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager:
    """The context in which the forward pass runs."""
    if precision.autocast is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision.autocast)


@contextmanager
def matmul_precision(recipe: Recipe) -> Iterator[None]:
    """Set PyTorch's process-wide float32 matmul precision, and put it back: two recipes can share a process."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(recipe.matmul_precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
