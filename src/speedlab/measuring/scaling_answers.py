"""What becomes of the answers of several processes: records of the series and rows of the experiments.

Each is on disk at once. It starts nothing and times nothing.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedlab.cards import device_slug
from speedlab.measuring.contract import judge
from speedlab.measuring.processes import Answer, Job, measured_from
from speedlab.measuring.variant import Measured, contract_recipe
from speedlab.measuring.workbench import Workbench
from speedlab.recipe import Recipe
from speedlab.records.experiment import Experiment, write_experiment
from speedlab.records.record import REMARK, Record
from speedlab.records.store import write_record
from speedlab.rung import Rung
from speedlab.scaling_plan import PLAIN_SERIES, SHARDING_NAME, SHARDINGS, STOPWATCH_NAME, SWEEP, SWEEP_NAME, Series


class Answers:
    """Records by (series, GPUs) and experiments by name, growing.

    parts: what was asked for. Without "series" they become no records, and only say what the sweep varies. out:
    receives records/ and experiments/.
    """

    def __init__(
        self,
        bench: Workbench,
        series: list[Series],
        worlds: tuple[int, ...],
        *,
        parts: tuple[str, ...],
        out: Path | None = None,
    ) -> None:
        self.bench, self.worlds, self.out = bench, worlds, out
        self.parts = parts
        self.series = series if "series" in parts else []
        self._swept = next((one for one in series if one.name == PLAIN_SERIES), series[0])
        name = bench.machine.gpu_name
        self.device_slug = device_slug(name, worlds[-1] if name else 1)
        self.records: dict[tuple[str, int], Record] = {}
        self.experiments: dict[str, Experiment] = {}
        self.link: list[dict[str, float]] = []

    def take(self, gpus: int, job: Job, answer: Answer) -> None:
        """Write what became of one job, at once."""
        if job.kind == "link":
            self.link = answer.value or []
        elif job.kind == "stopwatch":
            for row in answer.value or [{"key": "all"}]:
                self._add_row(STOPWATCH_NAME, {"gpus": gpus} | row | _outcome(answer))
        else:
            recipe = Recipe.from_dict(job.arguments["recipe"])
            take = self._timed if job.kind == "variant" else self._drawn
            take(gpus, recipe, answer)

    def _timed(self, gpus: int, recipe: Recipe, answer: Answer) -> None:
        for one in self.series:
            if one.recipe_on(gpus) == recipe:
                self._keep(one.name, gpus, self._record(one, gpus, recipe, answer))
        for part, name, variations in (("sweep", SWEEP_NAME, SWEEP), ("sharding", SHARDING_NAME, SHARDINGS)):
            for variation in variations if part in self.parts else ():
                if gpus == self.worlds[-1] > 1 and self._plain(gpus).but(**variation.change) == recipe:
                    what = {"key": variation.key, "title": variation.title, "change": variation.change, "gpus": gpus}
                    self._add_row(name, what | _samples(recipe, answer) | _outcome(answer))

    def _drawn(self, gpus: int, recipe: Recipe, answer: Answer) -> None:
        """Add communication and kernels to what was timed before. A failure is a note on it and loses no row."""
        for (name, number), record in self.records.items():
            if number == gpus and record.recipe == recipe.as_dict():
                if answer.status == "measured":
                    self._keep(name, gpus, replace(record, **answer.value))
                else:
                    note = f"{REMARK}no timeline: {answer.reason}"
                    self._keep(name, gpus, replace(record, notes=[*record.notes, note]))
        experiment = self.experiments.get(SWEEP_NAME)
        if experiment is None or answer.status != "measured":
            return
        plain = self._plain(gpus)
        rows = [
            row | {"communication": answer.value["communication"]}
            if row["gpus"] == gpus and plain.but(**row["change"]) == recipe
            else row
            for row in experiment.rows
        ]
        self._write(replace(experiment, rows=rows))

    def _plain(self, gpus: int) -> Recipe:
        """What the sweep varies: the plain series, or the only one that there is."""
        return self._swept.recipe_on(gpus)

    def _record(self, series: Series, gpus: int, recipe: Recipe, answer: Answer) -> Record:
        ladder = series.ladder(self.worlds)
        rung = ladder.rung(f"data_parallel_{gpus}")
        base = self.bench.base_record(ladder, rung, recipe, ())
        base |= {"device": self.device_slug, "ceilings": self.bench.ceilings}
        if answer.status != "measured":
            return Record(**base, status=answer.status, reason=answer.reason)
        measured = measured_from(answer.value)
        first = self.records.get((series.name, self.worlds[0])) if gpus != self.worlds[0] else None
        verdict, detail = _judged(rung, first, measured.losses)
        failed = verdict == "failed"
        return Record(
            **base,
            status="contract_failed" if failed else "measured",
            reason=detail["note"] if failed else None,
            contract_recipe=contract_recipe(recipe).as_dict() if measured.losses else None,
            contract_verdict=verdict,
            contract_detail=detail,
            tokens_per_step=recipe.tokens_per_step,
            peak_allocated_bytes=measured.peak.allocated_bytes,
            peak_reserved_bytes=measured.peak.reserved_bytes,
            losses=list(itertools.takewhile(math.isfinite, measured.losses)),
            notes=[*_notes(measured), *_ranks(answer.value)],
            **{name: getattr(measured, name) for name in TAKEN},
        )

    def _keep(self, name: str, gpus: int, record: Record) -> None:
        self.records[name, gpus] = record
        if self.out is not None:
            write_record(self.out / "records", record)

    def _add_row(self, name: str, row: dict[str, Any]) -> None:
        before = self.experiments.get(name)
        rows = [*(before.rows if before else ()), row]
        bench = self.bench
        self._write(
            Experiment(
                name=name,
                session=bench.id,
                device=self.device_slug,
                profile=bench.profile.name,
                settings={"gpus": list(self.worlds), "link": self.link},
                rows=rows,
                ceilings=bench.ceilings,
                machine=bench.machine_record,
                corpus=bench.corpus_record,
                utc=datetime.now(UTC).isoformat(timespec="seconds"),
                **bench.provenance,
            )
        )

    def _write(self, experiment: Experiment) -> None:
        self.experiments[experiment.name] = experiment
        if self.out is not None:
            write_experiment(self.out / "experiments", experiment)


# What a record takes over from a measurement as it is.
TAKEN = ("step_ms", "compile_s", "compile_cache", "energy_j", "energy_steps", "skipped_steps", "recompiles")


def _judged(rung: Rung, first: Record | None, losses: list[float]) -> tuple[str | None, dict[str, Any] | None]:
    if rung.contract == "reference":
        return "reference", None
    if first is None or not losses or not first.losses:  # nothing was compared, to spare a compilation
        return None, None
    return judge(rung, first.rung, first.losses, losses)


def _samples(recipe: Recipe, answer: Answer) -> dict[str, Any]:
    """A row's own numbers: raw samples of rank 0, and one number of every rank."""
    if answer.status != "measured":
        return {}
    measured = measured_from(answer.value)
    return {
        "tokens_per_step": recipe.tokens_per_step,
        "losses": [loss for loss in measured.losses if math.isfinite(loss)],
        "notes": _notes(measured),
        **{name: getattr(measured, name) for name in TAKEN},
        **{f"{name}_of_each": values for name, values in answer.value["of_each"].items()},
    }


def _notes(measured: Measured) -> list[str]:
    recompiled = [f"{measured.recompiles} recompilations inside the timed window"] if measured.recompiles else []
    return recompiled + measured.notes


def _ranks(value: dict[str, Any]) -> list[str]:
    """The medians of all ranks as a remark: the slowest GPU sets the pace of the others."""
    medians = value["of_each"]["median_step_ms"]
    if len(medians) == 1:
        return []
    listed = ", ".join(f"{ms:.2f}" for ms in medians)
    return [f"{REMARK}median step of each process: {listed} ms"]


def _outcome(answer: Answer) -> dict[str, Any]:
    return {"status": answer.status, "reason": answer.reason}
