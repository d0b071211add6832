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
from speedlab.training.distributed import Place, launch, process_group


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


def answer_job(job_path: Path, answer_path: Path, place: Place) -> None:
    """Measure what the launcher asked for on this rank; rank 0 alone writes the answer."""
    from speedlab.measuring.workbench import load_tokens
    from speedlab.model import draw_weights
    from speedlab.profile import get_profile

    job = json.loads(job_path.read_text())
    recipe = Recipe.from_dict(job["recipe"])
    tokens = load_tokens(job["corpus"], get_profile(job["profile"])).tokens
    measured = measure_variant(recipe, draw_weights(recipe), tokens, Plan(**job["plan"]), place, long_energy=True)
    if place.rank == 0:
        write_text_atomic(answer_path, json.dumps(asdict(measured)))


def main(job_path: str, answer_path: str) -> None:
    """What torchrun starts on each rank."""
    with process_group() as place:
        answer_job(Path(job_path), Path(answer_path), place)


if __name__ == "__main__":
    main(*sys.argv[1:])
