"""One process among several, one GPU each: PyTorch's own engine (torchrun, NCCL or gloo). `launching` starts them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from speedlab.recipe import Recipe
from speedlab.training.parallel import SHARDINGS, Parallel


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this process stands: `rank` of `world_size`, and the device that is its own."""

    rank: int = 0
    world_size: int = 1
    device: torch.device

    def parallelize(
        self, recipe: Recipe, model: nn.Module, compile_model: Callable[[nn.Module], nn.Module]
    ) -> Parallel:
        """The model of this process as one of several, in the way that the recipe says."""
        return SHARDINGS[recipe.sharding](recipe, model, compile_model, self.device)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean of `values` over all processes, the same on each."""
        if self.world_size == 1:
            return values
        total = values.to(self.device)  # NCCL reduces tensors of the GPU only
        dist.all_reduce(total)
        return total / self.world_size

    def each(self, value: float) -> list[float]:
        """One number of every process, in order of rank, the same list on each."""
        row = torch.zeros(self.world_size, dtype=torch.float64)
        row[self.rank] = value
        return (self.mean(row) * self.world_size).tolist()


@contextmanager
def process_group() -> Iterator[Place]:
    """Join the group that torchrun describes in the environment, leave it at the end.

    The device comes from LOCAL_RANK: the global rank names no device on a second machine.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    try:
        yield Place(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()
