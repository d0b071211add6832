"""One model in several processes: replicated with averaged gradients (DDP), or split among them (FSDP2).

It knows models and recipes; how processes start and find each other is in `distributed` and `launching`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from speedlab.errors import BadInput
from speedlab.recipe import Recipe

Compile = Callable[[nn.Module], nn.Module]

# DDP sends its first bucket early, after 1 MiB, but only when it is not told a size: PyTorch's own size is left to it.
DEFAULT_BUCKET_MB = 25
# FSDP2 sums overflow checks and master copies only where they are made for its pieces; ours are for whole tensors.
SHARDED_PRECISIONS = ("float32", "bfloat16", "bfloat16_autocast")


class Parallel(Protocol):
    """forward: what a step calls instead of the model."""

    forward: nn.Module

    def micro_step(self, last: bool) -> AbstractContextManager:
        """Holds one forward and backward pass; only in the `last` of a step are gradients exchanged."""


class Replicated:
    """The whole model on every process; gradients are averaged bucket by bucket during the backward pass.

    DistributedDataParallel (Li et al. 2020). Buffers would be sent round in each step too, but the only one of these
    models is the stored mask of plain attention.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, compile_model: Compile, device: torch.device) -> None:
        def wrap(module: nn.Module) -> DistributedDataParallel:
            bucket_mb = recipe.gradient_bucket_mb
            return DistributedDataParallel(
                module,
                device_ids=[device] if device.type == "cuda" else None,
                process_group=_group(recipe.communication_blocks, device.type),
                bucket_cap_mb=None if bucket_mb == DEFAULT_BUCKET_MB else bucket_mb,
                gradient_as_bucket_view=recipe.bucket_view,
                static_graph=recipe.static_graph,
            )

        if recipe.compile_order == "after_ddp":
            self.ddp = wrap(model)
            self.forward = compile_model(self.ddp)
        else:
            self.forward = self.ddp = wrap(compile_model(model))
        hook = EXCHANGES[recipe.gradient_exchange]
        if hook is not None:
            self.ddp.register_comm_hook(self.ddp.process_group, hook)
        self._cuts_graph = recipe.optimize_ddp or recipe.compile == "off"
        # A static graph is learned in the first step, and an internal assertion of DDP fails if that one is not
        # exchanged. Exchanging every micro-step gives the same mean, so the first step does.
        self._learning = recipe.static_graph

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        # The compiler reads its setting whenever it meets a new graph, and the setting is the whole process's.
        setting = nullcontext() if self._cuts_graph else torch._dynamo.config.patch(optimize_ddp=False)
        with setting, nullcontext() if last or self._learning else self.ddp.no_sync():
            yield
        self._learning = self._learning and not last


class Sharded:
    """Weights, gradients and optimizer state split over the processes, block by block (FSDP2, `fully_shard`).

    Each block gathers its weights before it computes and lets go of them after it, so a process holds 1/n of the
    state and two blocks' weights. Blocks are compiled one by one, because gathering happens between them.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, compile_model: Compile, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if recipe.precision not in SHARDED_PRECISIONS:
            raise BadInput(
                f"sharding 'fsdp2' does not work with precision {recipe.precision!r}: "
                f"choose {', '.join(SHARDED_PRECISIONS)}, or sharding 'replicated'"
            )
        if recipe.loss == "compiled" and recipe.compile != "off":
            raise BadInput(
                "sharding 'fsdp2' compiles block by block and loss 'compiled' the whole model: choose another loss"
            )
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for index, block in enumerate(model.blocks):
            model.blocks[index] = compile_model(block)
            fully_shard(model.blocks[index], mesh=mesh)
        self.forward = fully_shard(model, mesh=mesh)

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        self.forward.set_requires_gradient_sync(last)
        yield


class Independent:
    """Nothing is exchanged: each process trains for itself, beside the others. What that costs is no communication."""

    def __init__(self, recipe: Recipe, model: nn.Module, compile_model: Compile, device: torch.device) -> None:
        self.forward = compile_model(model)

    def micro_step(self, last: bool) -> AbstractContextManager:
        return nullcontext()


SHARDINGS: dict[str, Callable[..., Parallel]] = {
    "replicated": Replicated,
    "fsdp2": Sharded,
    "independent": Independent,
}


def _keep(group, bucket):  # unannotated: DDP refuses annotations that are not evaluated
    """Send nothing: each process keeps its own gradients, and all the rest of DDP runs."""
    values = bucket.buffer()
    done = torch.futures.Future(devices=[values.device] if values.is_cuda else None)
    done.set_result(values)
    return done


def _send_bfloat16(group, bucket):
    """Half the bytes. By another name than PyTorch's, which DDP lets nobody use with gloo, where it works too."""
    return bf16_compress_hook(group, bucket)


# What the recipe field gradient_exchange means; None is DDP's own way.
EXCHANGES = {"weights_dtype": None, "bfloat16": _send_bfloat16, "off": _keep}


@functools.cache
def _group(communication_blocks: int, device_type: str) -> dist.ProcessGroup | None:
    """The group of all processes; with a limit on NCCL's thread blocks, another one of the same processes."""
    if communication_blocks == 0 or device_type != "cuda":
        return None
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = communication_blocks
    return dist.new_group(pg_options=options)
