"""What each agent of test_several_machines.py starts: steps until one is killed; the next time a few, and an answer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from model_helper import CPU, TINY, lively_weights, random_batches

from speedlab.training.distributed import process_group
from speedlab.training.step import TrainingStep

STEPS = 3


def main(folder: str, agent: str) -> None:
    torch.set_num_threads(1)
    again = (Path(folder) / "killed").exists()
    with process_group() as place:
        recipe = TINY.but(micro_batch=2, data_parallel=place.world_size)
        step = TrainingStep(recipe, lively_weights(recipe), CPU, parallelize=place.parallelize)
        own = random_batches(recipe, STEPS * place.world_size)[place.rank :: place.world_size]
        losses = [step(iter([batch])) for batch in own]
        print(f"stepping {os.getpid()}", flush=True)
        while not again:  # until this process or the other one is killed
            step(iter(own[:1]))
        answer = {
            "agent": agent,
            "world_size": place.world_size,
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "losses": place.mean(torch.stack(losses)).tolist(),
        }
        if place.rank == 0:
            (Path(folder) / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
