"""One measuring session: the rungs of a ladder, checked and timed one after another on one machine, as records."""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from speedlab.derived_ladders import reordered
from speedlab.device import Capabilities, capabilities
from speedlab.errors import BadInput
from speedlab.ladder import Ladder, Rung, get_ladder
from speedlab.measuring.events import Event, Report, say_nothing
from speedlab.measuring.workbench import Workbench
from speedlab.profile import Profile, get_profile
from speedlab.recipe import Recipe
from speedlab.records.record import Record
from speedlab.records.store import check_session, check_writable, write_record, write_text_atomic


def run_ladder(
    ladder: str,
    *,
    profile: str = "auto",
    corpus: str = "standard-library",
    rungs: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    steps: int = 0,
    out: Path | None = None,
    report: Report = say_nothing,
) -> list[Record]:
    """Measure a ladder, or some of its rungs in its own order, in this process. Returns one record per rung.

    out: folder that receives <device>/<ladder>/<rung>.json as each rung ends; None writes nothing. steps: timed
    steps per rung, 0 for the profile's number. order: stack the ladder's changes in this order instead, each of them
    named once, under a ladder name of its own. A rung that cannot run, or that fails, is a record with its reason.
    """
    ladder_ = get_ladder(ladder) if order is None else reordered(get_ladder(ladder), order)
    keys = tuple(rungs) if rungs else ladder_.keys
    for key in keys:
        ladder_.rung(key)
    machine = capabilities()
    profile_ = get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes)
    session = Session(profile_, machine, corpus=corpus, steps=steps, out=out, report=report)
    return session.measure(ladder_, [rung for rung in ladder_ if rung.key in keys])


class Session(Workbench):
    """Measures rungs one after another and turns each into a record."""

    def __init__(
        self,
        profile: Profile,
        machine: Capabilities,
        *,
        corpus: str = "standard-library",
        steps: int = 0,
        out: Path | None = None,
        report: Report = say_nothing,
    ) -> None:
        super().__init__(profile, machine, corpus=corpus, steps=steps)
        self.out, self.report = out, report
        self._losses: dict[Recipe, list[float]] = {}
        self._failing: set[Recipe] = set()  # they ended in an error or found no memory: nothing to compare with

    def measure(self, ladder: Ladder, rungs: Sequence[Rung]) -> list[Record]:
        """One record per rung, in order. The first one that could be measured is timed again at the end."""
        from speedlab.measuring.ceiling import measure_ceilings
        from speedlab.measuring.sweep import measure_shapes

        if self.out is not None:
            check_writable(self.out)
            check_session(self.out, self.device_slug, ladder.name, self.id)
        self.report(Event(kind="note", text="measuring this machine's matmul rates and copy bandwidth"))
        recipes = [self.recipe(ladder, rung.key)[0] for rung in rungs if self.undone(ladder, rung) is None]
        self.ceilings = measure_shapes(self.ceilings or measure_ceilings(self.machine), recipes, self.machine)
        self._report_estimate(ladder, rungs)
        records: list[Record] = []
        for done, rung in enumerate(rungs):
            self.report(Event(kind="rung", rung=rung.key, text=rung.title, done=done, total=len(rungs)))
            record = self._measure_rung(ladder, rung)
            records.append(record)
            self._write(record)
            self.report(
                Event(kind="row", rung=rung.key, text=record.reason or "measured", done=done + 1, total=len(rungs))
            )
        self._time_first_again(ladder, records)
        self._add_curves(ladder, records)
        self._profile_all(records)
        return records

    def _measure_rung(self, ladder: Ladder, rung: Rung) -> Record:
        import torch

        from speedlab.measuring.prediction import predict

        recipe, substitutions = self.recipe(ladder, rung.key)
        base = self.base_record(ladder, rung, recipe, substitutions) | {"ceilings": self.ceilings}
        undone = self.undone(ladder, rung)
        if undone is not None:
            return Record(**base, status=undone.status, reason=undone.reason)
        base["predicted"] = predict(recipe, self.ceilings) if self.device.type == "cuda" else None
        try:
            return self._checked_and_timed(ladder, rung, recipe, base)
        except torch.OutOfMemoryError:
            self._failing.add(recipe)
            need = "a smaller micro-batch fits: try --profile t4"
            return Record(**base, status="out_of_memory", reason=f"the step needs more memory than there is; {need}")
        except BadInput:
            raise
        except Exception as error:
            self._failing.add(recipe)
            self._keep_traceback(ladder, rung)
            return Record(**base, status="error", reason=f"{type(error).__name__}: {_first_line(error)}")

    def _checked_and_timed(self, ladder: Ladder, rung: Rung, recipe: Recipe, base: dict[str, Any]) -> Record:
        from speedlab.measuring.contract import judge
        from speedlab.measuring.variant import contract_recipe

        measured = self._measure_variant(recipe)
        self._losses[recipe] = measured.losses
        before, losses_before = self._comparison(ladder, rung)
        verdict, detail = judge(rung, before, losses_before, measured.losses)
        if verdict == "reference" and rung.contract != "reference":
            detail = {"before": None, "note": "no rung below it runs here, so its losses are compared with nothing"}
        failed = verdict == "failed"
        notes = [f"{measured.recompiles} recompilations inside the timed window"] if measured.recompiles else []
        notes += measured.notes
        return Record(
            **base,
            status="contract_failed" if failed else "measured",
            reason=detail["note"] if failed else None,
            contract_recipe=contract_recipe(recipe).as_dict(),
            step_ms=measured.step_ms,
            tokens_per_step=recipe.tokens_per_step,
            compile_s=measured.compile_s,
            compile_cache=measured.compile_cache,
            peak_allocated_bytes=measured.peak.allocated_bytes,
            peak_reserved_bytes=measured.peak.reserved_bytes,
            energy_j=measured.energy_j,
            energy_steps=measured.energy_steps,
            skipped_steps=measured.skipped_steps,
            losses=list(itertools.takewhile(math.isfinite, measured.losses)),  # a record holds numbers only
            contract_verdict=verdict,
            contract_detail=detail,
            kernels=measured.kernels,
            recompiles=measured.recompiles,
            notes=notes,
        )

    def _measure_variant(self, recipe: Recipe):
        if recipe.data_parallel > 1:
            from speedlab.measuring.processes import measure_in_processes

            return measure_in_processes(recipe, self.plan, corpus=self.corpus, profile=self.profile.name)
        from speedlab.measuring.variant import measure_variant

        return measure_variant(
            recipe, self.weights_for(recipe), self.tokens.tokens, self.plan, self.place,
            kernels=self.profile_at_once, long_energy=True,
        )  # fmt: skip

    def _comparison(self, ladder: Ladder, rung: Rung) -> tuple[str | None, list[float] | None]:
        """The nearest rung below that runs here and its contract losses; nothing where none does.

        A rung that fits is no failure because the one below it does not fit.
        """
        before = self.before(ladder, rung.key)
        while before is not None:
            recipe, _ = self.recipe(ladder, before)
            if recipe not in self._failing:
                try:
                    return before, self._losses_of(ladder, before)
                except BadInput:
                    raise
                except Exception as error:
                    self._failing.add(recipe)
                    text = f"{before} cannot be compared with: {type(error).__name__}: {_first_line(error)}"
                    self.report(Event(kind="note", rung=rung.key, text=text))
            before = self.before(ladder, before)
        return None, None

    def _losses_of(self, ladder: Ladder, key: str) -> list[float]:
        """Contract losses of a rung, from its own run in this session or made now."""
        from speedlab.measuring.variant import contract_losses

        recipe, _ = self.recipe(ladder, key)
        if recipe not in self._losses:
            weights = self.weights_for(recipe)
            self._losses[recipe] = contract_losses(
                recipe, weights, self.tokens.tokens, self.plan.contract_steps, self.place
            )
        return self._losses[recipe]

    def _time_first_again(self, ladder: Ladder, records: list[Record]) -> None:
        """Time the first measured rung once more and store the samples: what drifted during the session shows."""
        from speedlab.measuring.variant import measure_variant

        measured = [i for i, record in enumerate(records) if record.status == "measured"]
        if len(measured) < 2:
            return
        index = measured[0]

        def drift_step_ms(recipe: Recipe) -> list[float]:
            weights, plan = self.weights_for(recipe), replace(self.plan, contract_steps=0)
            return measure_variant(recipe, weights, self.tokens.tokens, plan, self.place, kernels=False).step_ms

        self._add(records, index, "drift_step_ms", drift_step_ms, what="timing again for drift")

    def _add_curves(self, ladder: Ladder, records: list[Record]) -> None:
        """Add to each rung that alters the training its loss curve over the same text as that of the rung before."""
        from speedlab.measuring.curves import gap, training_curve, with_skipped

        def curve(recipe: Recipe) -> dict[str, Any]:
            return training_curve(
                recipe, self.weights_for(recipe), self.tokens.tokens, self.place, tokens_seen=self.profile.curve_tokens
            )

        for index, record in enumerate(records):
            detail = record.contract_detail or {}
            alone = record.recipe["data_parallel"] == 1
            if record.contract != "training" or record.status != "measured" or not detail.get("before") or not alone:
                continue
            before = self.recipe(ladder, detail["before"])[0]

            def with_curves(recipe: Recipe, before: Recipe = before, detail: dict[str, Any] = detail) -> dict[str, Any]:
                one, two = curve(before), curve(recipe)
                return detail | {"curve_before": one, "curve": two, "gap": gap(one, two)}

            self._add(records, index, "contract_detail", with_curves, what="loss curves")
            records[index] = with_skipped(records[index])
            self._write(records[index])

    @property
    def profile_at_once(self) -> bool:
        """On CUDA, kernels are looked at after everything has been timed: profiling may slow later launches."""
        return self.device.type == "cpu"

    def _profile_all(self, records: list[Record]) -> None:
        """Add the kernel table to each measured record that has none yet."""
        from speedlab.measuring.variant import profile_variant

        def kernels(recipe: Recipe) -> list[dict[str, Any]]:
            return profile_variant(recipe, self.weights_for(recipe), self.tokens.tokens, self.place)

        for index, record in enumerate(records):
            if record.step_ms and not record.kernels:
                self._add(records, index, "kernels", kernels, what="looking at the kernels")

    def _add(self, records: list[Record], index: int, field: str, make: Callable[[Recipe], Any], *, what: str) -> None:
        """Fill one field of a record that is measured already; a failure is a note on it and loses no row."""
        record = records[index]
        self.report(Event(kind="note", rung=record.rung, text=f"{what}: {record.rung}"))
        try:
            added = {field: make(Recipe.from_dict(record.recipe))}
        except Exception as error:
            text = f"{what} failed: {type(error).__name__}: {_first_line(error)}"
            self.report(Event(kind="note", rung=record.rung, text=text))
            added = {"notes": [*record.notes, text]}
        records[index] = replace(record, **added)
        self._write(records[index])

    def _report_estimate(self, ladder: Ladder, rungs: Sequence[Rung]) -> None:
        from speedlab.measuring.prediction import predict

        steps = 2 * self.plan.contract_steps + self.plan.warmup_steps + self.plan.steps
        seconds = 0.0
        for rung in rungs:
            recipe, _ = self.recipe(ladder, rung.key)
            predicted = predict(recipe, self.ceilings)
            seconds += steps * predicted["step_ms"] / 1e3 if predicted and self.device.type == "cuda" else 2.0
            seconds += 40.0 if recipe.compile != "off" else 2.0
        self.report(Event(kind="estimate", text=f"about {max(1, round(seconds / 60))} min", total=len(rungs)))

    def _write(self, record: Record) -> None:
        if self.out is not None:
            write_record(self.out, record)

    def _keep_traceback(self, ladder: Ladder, rung: Rung) -> None:
        """The record holds one line; the rest goes beside the records, or to whoever listens."""
        text = traceback.format_exc()
        if self.out is not None:
            write_text_atomic(Path(self.out) / "errors" / f"{ladder.name}-{rung.key}.txt", text)
        self.report(Event(kind="note", rung=rung.key, text=text))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
