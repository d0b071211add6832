"""One session with 1, 2, 4 ... GPUs of one machine: series of records, sweeps of the exchange, the stopwatch on trial.

One launch for each number of GPUs, many jobs in it. The plan is in `scaling_plan`, what the ranks do in `rank`, what
becomes of their answers in `scaling_answers`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from speedlab.device import capabilities
from speedlab.measuring.events import Event, Report, say_nothing
from speedlab.measuring.processes import Answer, Job, run_jobs, variant_arguments
from speedlab.measuring.scaling_answers import Answers
from speedlab.measuring.variant import contract_recipe
from speedlab.measuring.workbench import Workbench
from speedlab.profile import get_profile
from speedlab.recipe import Recipe
from speedlab.records.experiment import Experiment
from speedlab.records.record import Record
from speedlab.records.store import check_session, check_writable
from speedlab.scaling_plan import (
    FIXED,
    PARTS,
    PLAIN_SERIES,
    PUBLISHED_SERIES,
    SERIES,
    SHARDINGS,
    SWEEP,
    TIMELINES,
    Series,
    Variation,
    check_parts,
    check_worlds,
)
from speedlab.training.launching import check_world_size

# What the timelines at the end of a session take; no other row may use this time up.
TIMELINES_S = 60.0
# A processor has no natural limit; more processes than this only wait for each other.
MOST_ON_A_CPU = 4


def run_scaling(
    worlds: Sequence[int],
    *,
    profile: str = "auto",
    corpus: str = "standard-library",
    parts: Sequence[str] = PARTS,
    recipe: Recipe | None = None,
    budget_s: float = 540.0,
    out: Path | None = None,
    report: Report = say_nothing,
) -> tuple[list[Record], list[Experiment]]:
    """Measure on each number of GPUs in `worlds`. Returns the records and the experiments.

    recipe: measure this one alone, as series "scaling-own", instead of the planned series. budget_s: no row begins
    later than this many seconds from now. out: folder that receives records/ and experiments/; None writes nothing.
    `NotAvailable` in one line where there are fewer GPUs than `worlds` asks for.
    """
    machine = capabilities()
    on_gpu = machine.device_type == "cuda"
    check_parts(tuple(parts))
    check_world_size(max(worlds, default=1), gpus=machine.gpus if on_gpu else None)
    check_worlds(tuple(worlds), at_most=machine.gpus if on_gpu else MOST_ON_A_CPU)
    bench = Workbench(get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes), machine, corpus=corpus)
    series = SERIES if recipe is None else (Series(name="scaling-own", title="One recipe", recipe=recipe),)
    session = ScalingSession(bench, tuple(worlds), series, tuple(parts), out=out, report=report)
    answers = session.run(time.time() + budget_s)
    return list(answers.records.values()), list(answers.experiments.values())


class ScalingSession:
    """Turns the plan into jobs for each number of GPUs, has them done, and hands on what comes back."""

    def __init__(
        self,
        bench: Workbench,
        worlds: tuple[int, ...],
        series: Sequence[Series],
        parts: tuple[str, ...],
        *,
        out: Path | None = None,
        report: Report = say_nothing,
    ) -> None:
        self.bench, self.worlds, self.parts, self.out, self.report = bench, worlds, parts, out, report
        self.series = [replace(one, recipe=self._here(one.recipe)) for one in series]
        self.answers = Answers(bench, self.series, worlds, parts=parts, out=out)

    def run(self, deadline_unix_s: float) -> Answers:
        """Everything that the plan holds, until the deadline. A row that fails is a row with its reason."""
        from speedlab.measuring.ceiling import measure_ceilings

        if self.out is not None:
            check_writable(self.out)
            for one in self.answers.series:
                check_session(self.out / "records", self.answers.device_slug, one.name, self.bench.id)
        self.bench.ceilings = self.bench.ceilings or measure_ceilings(self.bench.machine)
        for gpus in self.worlds:
            jobs = list(self.jobs(gpus))
            self._say(f"{gpus} process{'es' if gpus > 1 else ''}, {len(jobs)} jobs")

            def take(job: Job, answer: Answer, gpus: int = gpus) -> None:
                self._say(f"{gpus} x {job.key}: {answer.reason or answer.status}")
                self.answers.take(gpus, job, answer)

            run_jobs(
                jobs, world_size=gpus, corpus=self.bench.corpus, profile=self.bench.profile.name,
                deadline_unix_s=deadline_unix_s, take=take,
            )  # fmt: skip
        return self.answers

    def jobs(self, gpus: int) -> Iterator[Job]:
        """The jobs of one launch, the important ones first, except that what needs the profiler comes last.

        Profiling seems to slow later launches of its process, so nothing is timed after it. A recipe that several
        rows share is measured once.
        """
        if gpus > 1:
            yield Job(key="link", kind="link")
        reserve_s = TIMELINES_S if "timelines" in self.parts and self.bench.profile.publishable else 0.0
        done: dict[Recipe, str] = {}
        if "series" in self.parts:
            yield from self._timed([(one.name, one.recipe_on(gpus)) for one in self.series], done, reserve_s)
        if "stopwatch" in self.parts:
            recipe = self._named(PUBLISHED_SERIES).recipe_on(gpus)
            arguments = {"recipe": recipe.as_dict(), "steps": self.bench.plan.steps}
            yield Job(key="stopwatch", kind="stopwatch", arguments=arguments, reserve_s=reserve_s)
        variations = [(variation.key, self._varied(variation, gpus)) for variation in self._variations(gpus)]
        yield from self._timed(variations, done, reserve_s)
        if "timelines" in self.parts:
            for key, recipe in self._drawn(gpus).items():
                yield Job(key=f"timeline of {key}", kind="timeline", arguments={"recipe": recipe.as_dict()})

    def _timed(self, rows: list[tuple[str, Recipe]], done: dict[Recipe, str], reserve_s: float) -> Iterator[Job]:
        for key, recipe in rows:
            if recipe not in done:
                done[recipe] = key
                yield Job(key=key, kind="variant", arguments=self._variant(recipe), reserve_s=reserve_s)

    def _here(self, recipe: Recipe) -> Recipe:
        """The recipe at this profile's scale; a toy leaves out what a CPU takes minutes for: compilation, 16 bits."""
        scaled = self.bench.scaled(recipe.but(data_parallel=1))
        return scaled if self.bench.profile.publishable else scaled.but(compile="off", precision="float32")

    def _variant(self, recipe: Recipe) -> dict[str, Any]:
        # With dropout, comparing losses is another compilation of a quarter of a minute.
        plan = self.bench.plan if recipe == contract_recipe(recipe) else replace(self.bench.plan, contract_steps=0)
        return variant_arguments(recipe, plan)

    def _variations(self, gpus: int) -> list[Variation]:
        """Sweeps run on the largest number of GPUs only."""
        if gpus == 1 or gpus != self.worlds[-1]:
            return []
        return [*(SHARDINGS if "sharding" in self.parts else ()), *(SWEEP if "sweep" in self.parts else ())]

    def _drawn(self, gpus: int) -> dict[str, Recipe]:
        """What is drawn on a line of time, each recipe once."""
        if gpus == 1:
            return {}
        rows = [(one.name, one.recipe_on(gpus)) for one in self.series if one.batch == FIXED]
        rows = rows if "series" in self.parts else []
        rows += [(v.key, self._varied(v, gpus)) for v in self._variations(gpus) if v.key in TIMELINES]
        first_keys: dict[Recipe, str] = {}
        for key, recipe in rows:
            first_keys.setdefault(recipe, key)
        return {key: recipe for recipe, key in first_keys.items()}

    def _named(self, name: str) -> Series:
        """A series by name, or the only one that there is."""
        return next((one for one in self.series if one.name == name), self.series[0])

    def _varied(self, variation: Variation, gpus: int) -> Recipe:
        return self._named(PLAIN_SERIES).recipe_on(gpus).but(**variation.change)

    def _say(self, text: str) -> None:
        self.report(Event(kind="note", text=text))
