"""Measure a recipe in several processes: the launcher's side, and `python -m` what each process runs."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from speedlab.measuring.memory import PeakMemory
from speedlab.measuring.variant import Measured, Plan, measure_variant
from speedlab.recipe import Recipe
from speedlab.records.store import write_text_atomic
from speedlab.training.distributed import launch, process_group


def measure_in_processes(
    recipe: Recipe, plan: Plan, *, corpus: str, profile: str, timeout_s: float = 1_800.0
) -> Measured:
    """`measure_variant` in `recipe.data_parallel` processes. Times and memory are rank 0's, losses the mean of all."""
    with tempfile.TemporaryDirectory(prefix="speedlab-processes-") as folder:
        job, answer = Path(folder) / "job.json", Path(folder) / "measured.json"
        job.write_text(
            json.dumps({"recipe": recipe.as_dict(), "plan": asdict(plan), "corpus": corpus, "profile": profile})
        )
        launch(__name__, [str(job), str(answer)], world_size=recipe.data_parallel, timeout_s=timeout_s)
        values = json.loads(answer.read_text())
    return Measured(**(values | {"peak": PeakMemory(*values["peak"])}))


def main(job_path: str, answer_path: str) -> None:
    """What torchrun starts on each rank; rank 0 alone writes."""
    from speedlab.measuring.workbench import load_tokens
    from speedlab.model import draw_weights
    from speedlab.profile import get_profile

    job = json.loads(Path(job_path).read_text())
    recipe = Recipe.from_dict(job["recipe"])
    tokens = load_tokens(job["corpus"], get_profile(job["profile"])).tokens
    with process_group() as place:
        measured = measure_variant(recipe, draw_weights(recipe), tokens, Plan(**job["plan"]), place)
        if place.rank == 0:
            write_text_atomic(Path(answer_path), json.dumps(asdict(measured)))


if __name__ == "__main__":
    main(*sys.argv[1:])
