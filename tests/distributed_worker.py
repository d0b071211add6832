"""What each rank runs in test_distributed.py, by torchrun: measurements, steps in every way to share, an error.

One launch for all of it, because starting two interpreters with torch takes longer than everything they do.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from model_helper import CPU, TINY, lively_weights, random_batches
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import DTensor

from speedlab.data.stream import BatchStream
from speedlab.measuring import rank
from speedlab.training.distributed import process_group
from speedlab.training.step import TrainingStep

ACCUMULATION, STEPS, EPOCHS = 4, 2, 2
RECIPE = TINY.but(micro_batch=2, accumulation=ACCUMULATION)
# Ways to share the work: what they must give is in test_distributed.py.
WAYS = {
    "ddp": {},
    "buckets": {"gradient_bucket_mb": 1, "bucket_view": True, "static_graph": True},
    "inside": {"compile_order": "before_ddp"},
    "fused": {"feed_forward": "fused", "residual": "fused", "loss": "in_place", "optimizer": "one_pass"},
    "bfloat16": {"gradient_exchange": "bfloat16"},
    "fsdp2": {"sharding": "fsdp2"},
    "off": {"gradient_exchange": "off"},
    "independent": {"sharding": "independent"},
}
# 50 windows of 4 + 1 tokens and some more: neither a batch nor the number of ranks divides them.
TOKENS = np.arange(50 * 5 + 3, dtype=np.int64)


def all_batches(world_size: int):
    """Micro-batches of all ranks: those of a step lie side by side, rank after rank."""
    return random_batches(RECIPE, STEPS * ACCUMULATION * world_size)


def own_batches(number: int, place):
    """The micro-batches of one step of this rank."""
    start = (number * place.world_size + place.rank) * ACCUMULATION
    return iter(all_batches(place.world_size)[start : start + ACCUMULATION])


def whole(values: torch.Tensor) -> list:
    return (values.full_tensor() if isinstance(values, DTensor) else values).float().tolist()


def trained(way: str, place) -> dict:
    """Losses of some steps, gradients of the first, and the weights after the last."""
    recipe = RECIPE.but(data_parallel=place.world_size, **WAYS[way])
    step = TrainingStep(recipe, lively_weights(recipe), CPU, parallelize=place.parallelize)
    sent: list[int] = []
    if way == "ddp":

        def hook(state, bucket):
            sent.append(bucket.buffer().numel())
            return allreduce_hook(state, bucket)

        step.parallel.ddp.register_comm_hook(None, hook)
    losses, gradients, exchanged = [], {}, []
    for number in range(STEPS):
        losses.append(step(own_batches(number, place)))
        exchanged.append(sum(sent))
        sent.clear()
        gradients = gradients or {name: whole(p.grad) for name, p in step.model.named_parameters()}
    pieces = [p.to_local() if isinstance(p, DTensor) else p for p in step.model.parameters()]
    return {
        "losses": place.mean(torch.stack(losses)).tolist(),
        "gradients": gradients,
        "exchanged": exchanged,
        "weights": {name: whole(p.detach()) for name, p in step.model.named_parameters()},
        "held": sum(piece.numel() for piece in pieces),
        "parameters": sum(p.numel() for p in step.model.parameters()),
    }


def epochs(place) -> list[list[int]]:
    """First token of each window that this rank saw, for each epoch."""
    stream = BatchStream(
        TOKENS, micro_batch=3, context_length=4, host_memory="pageable", device=CPU, seed=9,
        rank=place.rank, world_size=place.world_size,
    )  # fmt: skip
    return [
        [int(first) for inputs, _ in islice(stream, stream.batches_per_epoch) for first in inputs[:, 0]]
        for _ in range(EPOCHS)
    ]


def main(folder: str, ways: str, jobs: str = "") -> None:
    torch.set_num_threads(1)
    (Path(folder) / f"process-{os.environ['RANK']}.txt").write_text(str(os.getpid()))
    with process_group() as place:
        if jobs:
            rank.do_jobs(Path(jobs), place)
        answer = {
            "rank": place.rank,
            "world_size": place.world_size,
            "threads": os.environ["OMP_NUM_THREADS"],
            "backend": os.environ["MPLBACKEND"],
            "multicast": os.environ["NCCL_NVLS_ENABLE"],
            "each": place.each(10.0 + place.rank),
            "epochs": epochs(place),
            "trained": {way: trained(way, place) for way in ways.split(",")},
        }
        (Path(folder) / f"answer-{place.rank}.json").write_text(json.dumps(answer))
        torch.distributed.barrier()
        if place.rank == 1:
            raise ValueError("rank 1 fails on purpose")
        torch.distributed.barrier()  # the others wait here until torchrun ends them


if __name__ == "__main__":
    main(*sys.argv[1:])
