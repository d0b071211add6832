"""What each rank runs in test_distributed.py, by torchrun: a measurement, steps under DDP, an error on purpose.

One launch for all of it, because starting two interpreters with torch takes longer than everything they do.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from model_helper import CPU, TINY, lively_weights, random_batches
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from speedlab.measuring import processes
from speedlab.model import canonical_weights
from speedlab.training.distributed import process_group
from speedlab.training.step import TrainingStep

ACCUMULATION, STEPS, WORLD_SIZE = 4, 2, 2
RECIPE = TINY.but(micro_batch=2, accumulation=ACCUMULATION, data_parallel=WORLD_SIZE)


def all_batches():
    """Micro-batches of all ranks: those of a step lie side by side, rank after rank."""
    return random_batches(RECIPE, STEPS * ACCUMULATION * WORLD_SIZE)


def main(folder: str, job_path: str, answer_path: str) -> None:
    (Path(folder) / f"process-{os.environ['RANK']}.txt").write_text(str(os.getpid()))
    with process_group() as place:
        processes.answer_job(Path(job_path), Path(answer_path), place)
        step = TrainingStep(RECIPE, lively_weights(RECIPE), CPU, parallelize=place.parallelize)
        exchanged = []

        def hook(state, bucket):
            exchanged.append(bucket.buffer().numel())
            return allreduce_hook(state, bucket)

        step.parallel.register_comm_hook(None, hook)
        batches = all_batches()
        losses, exchanges = [], []
        for number in range(STEPS):
            start = (number * WORLD_SIZE + place.rank) * ACCUMULATION
            losses.append(step(iter(batches[start : start + ACCUMULATION])))
            exchanges.append(sum(exchanged))
            exchanged.clear()
        answer = {
            "rank": place.rank,
            "world_size": place.world_size,
            "threads": os.environ["OMP_NUM_THREADS"],
            "backend": os.environ["MPLBACKEND"],
            "exchanged": exchanges,
            "losses": place.mean(torch.stack(losses)).tolist(),
            "gradients": {name: p.grad.tolist() for name, p in step.model.named_parameters()},
            "weights": {name: value.tolist() for name, value in canonical_weights(step.model, RECIPE).items()},
        }
        (Path(folder) / f"answer-{place.rank}.json").write_text(json.dumps(answer))
        torch.distributed.barrier()
        if place.rank == 1:
            raise ValueError("rank 1 fails on purpose")
        torch.distributed.barrier()  # rank 0 waits here until torchrun ends it


if __name__ == "__main__":
    main(*sys.argv[1:])
