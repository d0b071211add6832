"""Measure in several processes, the launcher's side: hand out jobs, take answers as they come, lose no other row.

It imports what the ranks run only by name. One launch holds many jobs, because starting one takes ten seconds.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from speedlab.errors import SpeedLabError
from speedlab.measuring.memory import PeakMemory
from speedlab.measuring.variant import Measured, Plan
from speedlab.recipe import Recipe
from speedlab.training.launching import launch

RANK_MODULE = "speedlab.measuring.rank"
# A cold compile of the full model and a window of thirty steps take about half a minute.
JOB_LIMIT_S = 120.0
START_LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One thing for all processes of a group to do: a `kind` of `rank.KINDS` with its arguments, plain values."""

    key: str
    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)
    reserve_s: float = 0.0  # time before the deadline that is kept for jobs that come later


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a job: `status` is one of a record's; `value` is there when it is "measured"."""

    key: str
    status: str
    reason: str | None = None
    value: Any = None


def run_jobs(
    jobs: Sequence[Job],
    *,
    world_size: int,
    corpus: str,
    profile: str,
    deadline_unix_s: float | None = None,
    job_limit_s: float = JOB_LIMIT_S,
    take: Callable[[Job, Answer], None] = lambda job, answer: None,
) -> list[Answer]:
    """Do all jobs, in order, in as few launches as it takes. `take` is called with each job and its answer, at once.

    A job that fails on every rank is an answer with its reason, and the launch goes on. One that ends or hangs the
    processes costs a launch: its answer says so, and the jobs after it start anew. After
    `deadline_unix_s` none begins.
    """
    answers: list[Answer] = []

    def note(**values: Any) -> None:
        job = jobs[len(answers)]
        answers.append(Answer(key=job.key, **values))
        take(job, answers[-1])

    while len(answers) < len(jobs):
        rest = jobs[len(answers) :]
        with _job_folder(rest, corpus, profile, deadline_unix_s) as folder:
            done = 0

            def look(folder: Path = folder) -> float | None:
                nonlocal done
                before = done
                while (path := folder / f"{done}.json").is_file():
                    note(**json.loads(path.read_text()))
                    done += 1
                return job_limit_s if done > before else None

            try:
                launch(
                    RANK_MODULE, [str(folder)], world_size=world_size, timeout_s=START_LIMIT_S + job_limit_s, look=look
                )
            except SpeedLabError as error:
                if error.exit_code != 1:  # refused before anything started
                    raise
                look()
                if done < len(rest):
                    note(status="error", reason=" ".join(str(error).split())[:400])
            else:
                if done < len(rest):
                    raise SpeedLabError(f"{world_size} processes ended well and left {rest[done].key} undone")
    return answers


def measure_in_processes(
    recipe: Recipe, plan: Plan, *, corpus: str, profile: str, timeout_s: float = 1_800.0
) -> Measured:
    """`measure_variant` in `recipe.data_parallel` processes. Times and memory are rank 0's, losses the mean of all.

    An error of a rank is raised here with its message.
    """
    job = Job(key="variant", kind="variant", arguments=variant_arguments(recipe, plan, kernels=True, long_energy=True))
    with _job_folder([job], corpus, profile, None) as folder:
        launch(RANK_MODULE, [str(folder)], world_size=recipe.data_parallel, timeout_s=timeout_s)
        return measured_from(json.loads((folder / "0.json").read_text())["value"])


def variant_arguments(recipe: Recipe, plan: Plan, **options: bool) -> dict[str, Any]:
    """Arguments of a job of kind "variant". options: those of `measure_variant`, kernels and long_energy."""
    return {"recipe": recipe.as_dict(), "plan": asdict(plan), "kernels": False, **options}


def measured_from(value: dict[str, Any]) -> Measured:
    """What `rank` wrote of a variant, as it was measured."""
    measured = value["measured"]
    return Measured(**(measured | {"peak": PeakMemory(*measured["peak"])}))


@contextmanager
def _job_folder(jobs: Sequence[Job], corpus: str, profile: str, deadline_unix_s: float | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="speedlab-processes-") as name:
        work = {"corpus": corpus, "profile": profile, "deadline_unix_s": deadline_unix_s}
        (Path(name) / "jobs.json").write_text(json.dumps(work | {"jobs": [asdict(job) for job in jobs]}))
        yield Path(name)
