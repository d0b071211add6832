"""The handful of calls that a chapter makes: each measures or shows one thing. A chapter itself holds no machinery."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedlab.device import capabilities
from speedlab.errors import check_choice
from speedlab.ladder import NINE_STEPS, Rung, before_and_after, chapters
from speedlab.profile import PROFILES, check_steps, get_profile
from speedlab.publishing import chapter_words as words
from speedlab.publishing.display import clear_progress, show_markdown, show_result, show_svg
from speedlab.publishing.facts import device_title
from speedlab.publishing.figures_of_records import kernel_kinds, loss_curves, training_curves
from speedlab.publishing.page_tables import page_tables
from speedlab.publishing.source_text import source_block
from speedlab.records.record import Record
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_record, record_path, write_record

SOURCES = ("measure", "recorded", "auto")


class Chapter:
    """One chapter of ladder nine-steps: its rungs, measured here, recorded elsewhere, or both.

    stem: "02_tensor_cores" and the like. profile: full, t4, smoke, or auto by this machine's GPU. steps: timed steps
    per rung, 0 for the profile's number. source: "measure" runs here; "recorded" shows the committed records only;
    "auto" runs here, and without a GPU that run is the toy profile, labelled as such beside the records.
    """

    def __init__(self, stem: str, *, profile: str = "auto", steps: int = 0, source: str = "auto") -> None:
        check_choice("chapter", stem, chapters())
        check_choice("profile", profile, (*PROFILES, "auto"))
        check_choice("source", source, SOURCES)
        self.stem, self.steps, self.source = stem, check_steps(steps), source
        self.keys = before_and_after(stem)
        self.rungs: tuple[Rung, ...] = chapters()[stem]
        self.recorded = _recorded(self.keys)
        self.live: list[Record] = []
        self._asked_profile = profile
        self._session: Any = None

    @property
    def measures(self) -> bool:
        return self.source != "recorded"

    def show_change(self) -> None:
        """What the chapter changes, promises and expects, from the ladder."""
        show_markdown(words.change_table(self.rungs))

    def show_prediction(self) -> None:
        """The step time by counting, as it was stored before each recorded run; made now where a GPU measures now."""
        for device, records in self.recorded.items():
            if any(record.predicted for record in records):
                show_markdown(
                    f"Counted before the recorded run on {device_title(device)}:\n\n" + words.prediction_table(records)
                )
        if not any(record.predicted for records in self.recorded.values() for record in records):
            show_markdown("No recorded prediction yet: it is made from the rates of a GPU, before that GPU is timed.")

    def show_code(self, *things: Any) -> None:
        """The source of classes or functions of the package, or of a table in a module as (module, "NAME")."""
        show_markdown("\n".join(source_block(thing) for thing in things))

    def measure(self) -> None:
        """Check and time the rungs of this chapter here, unless only records are wanted, and show all rows."""
        if self.measures:
            self._measure()
        for device, records in self.recorded.items():
            self._show_rows(records, f"**Recorded** on {device_title(device)}")
        if not self.recorded:
            show_markdown("No records are committed yet for these rungs.")
        if self.live:
            self._show_rows(self.live, f"**Here and now**, {self._live_label()}")

    def show_kernels(self) -> None:
        """Which kernels ran before and after, by kind and by name."""
        for records in self._sets():
            seen = [record for record in records if record.kernels]
            if not seen:
                continue
            show_markdown("\n\n".join(words.evidence_sentence(record) for record in seen))
            show_markdown("\n\n".join(words.kernel_total(record) for record in seen))
            if len(seen) > 1:
                show_svg(kernel_kinds(seen[0], seen[-1]))
            show_markdown(words.kernel_kind_table(seen) + "\n" + words.longest_kernels(seen[-1]))

    def show_break_even(self) -> None:
        """After how many steps the compile time of the last rung is earned back."""
        for records in self._sets():
            before, *_, after = report_rows(records)
            show_markdown(words.break_even(after, before))

    def show_contract(self) -> None:
        """Whether it is still the same training: verdicts, and the losses of the last rung over those before it."""
        for records in self._sets():
            own = records[1:]  # the first one is the start that the chapter compares with
            show_markdown("\n\n".join(words.contract_sentence(record) for record in own))
            drawn = [record for record in own if (record.contract_detail or {}).get("losses_before")]
            if drawn:
                last = drawn[-1]
                show_svg(training_curves(last) if "curve" in last.contract_detail else loss_curves(last))

    def show_other_cards(self) -> None:
        """What becomes of this change on other cards."""
        show_markdown(words.cards_table(self.rungs))

    def show_lesson(self) -> None:
        """What the numbers say, in sentences that the numbers write."""
        for records in self._sets(toys=False):
            rows = {row["rung"]: row for row in report_rows(records)}
            sentences = [
                words.lesson(rows[record.rung], rows.get(rows[record.rung]["before"])) for record in records[1:]
            ]
            show_markdown("\n\n".join(sentences))
        if not any(True for _ in self._sets(toys=False)):
            show_markdown("Nothing recorded yet, and the toy run above says nothing about speed.")

    def finish(self) -> None:
        """Emit the chapter's result, which the batch runner and the book look for."""
        run = run_folder()
        paths = [] if run is None else [_stored(run, record).relative_to(run).as_posix() for record in self.live]
        failed = [record.rung for record in self.live if record.status in ("error", "contract_failed")]
        result = {
            "chapter": self.stem,
            "profile": self._profile_name(),
            "steps": self.steps,
            "source": self.source,
            "status": "failed" if failed else "measured" if self.live else "recorded",
            "session": self._session.id if self._session else None,
            "records": paths,
        }
        text = f"{self.stem}: {result['status']}" + (f" ({', '.join(failed)})" if failed else "")
        show_result(result, text)

    def _measure(self) -> None:
        from speedlab.measuring.events import Event
        from speedlab.measuring.session import Session

        machine = capabilities()
        profile = get_profile(self._asked_profile, gpu_memory_bytes=machine.gpu_memory_bytes)

        def say(event: Event) -> None:
            if event.kind in ("rung", "estimate"):
                print(f"{event.done}/{event.total} {event.text}", flush=True)

        self._session = self._session or Session(profile, machine, steps=self.steps, report=say)
        # Where the rung below is not to be had on this machine, the comparison starts from the nearest that is.
        start = self._session.before(NINE_STEPS, self.keys[1]) or self.keys[0]
        self.live = self._session.measure(NINE_STEPS, [NINE_STEPS.rung(start), *self.rungs])
        run = run_folder() or own_run_folder(profile.name)
        for record in self.live:
            _store(run, record, own=record in self.live[1:])
        clear_progress()

    def _show_rows(self, records: Sequence[Record], label: str) -> None:
        show_markdown(f"{label}:\n\n{page_tables(report_rows(records))}")

    def _live_label(self) -> str:
        profile = self._session.profile
        label = f"{device_title(self._session.device_slug)}, profile *{profile.name}*"
        return label if profile.publishable else f"{label}: {profile.about}"

    def _profile_name(self) -> str:
        return self._session.profile.name if self._session else self._asked_profile

    def _sets(self, *, toys: bool = True) -> list[list[Record]]:
        """The recorded rows of each device, then the live ones."""
        live = [self.live] if self.live and (toys or PROFILES[self.live[0].profile].publishable) else []
        return [*self.recorded.values(), *live]


def _recorded(keys: Sequence[str]) -> dict[str, list[Record]]:
    """Committed records of these rungs by device; devices that lack one of them are left out."""
    root, found = committed_root(), {}
    devices = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    for device in devices:
        paths = [record_path(root, device, NINE_STEPS.name, key) for key in keys]
        if all(path.is_file() for path in paths):
            found[device] = [read_record(path) for path in paths]
    return found


def run_folder() -> Path | None:
    """The folder of the batch run that this kernel belongs to, as the runner says."""
    given = os.environ.get("SPEEDLAB_RUN")
    return Path(given) if given else None


def own_run_folder(profile: str) -> Path:
    """A new folder for a chapter that somebody runs by hand, below $SPEEDLAB_RUNS (a mounted drive, say) or ./runs."""
    return Path(os.environ.get("SPEEDLAB_RUNS") or "runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{profile}"


def _stored(run: Path, record: Record) -> Path:
    """Where a chapter's record lies in its run: its own rungs side by side with those of the other chapters."""
    return record_path(run / "records", record.device, record.ladder, record.rung)


def _store(run: Path, record: Record, *, own: bool) -> None:
    """Write a record. The rung that a chapter starts from belongs to the chapter before and is kept if it is there."""
    if own or not _stored(run, record).is_file():
        write_record(run / "records", record)
