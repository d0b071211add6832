"""Takes what was measured into the book: all of it is checked first, then each ladder is put in place as a whole.

Nothing is measured or changed here. What stood in the book before stays until its replacement is complete.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

from speedlab.errors import BadInput, SpeedLabError
from speedlab.profile import PROFILES
from speedlab.publishing.book import check_run, stage_pages
from speedlab.publishing.gate import problems_of_experiments, problems_of_records, problems_of_sources
from speedlab.publishing.run_folder import SUMMARY, Run
from speedlab.records.experiment import Experiment, experiment_path, experiment_text, read_experiments
from speedlab.records.record import METHOD, Record
from speedlab.records.store import read_records, record_path, write_record, write_text_atomic


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a folder holds. run: None for a folder that `ladder --out` or `experiment --out` wrote."""

    folder: Path
    run: Run | None
    records: list[Record]
    experiments: list[Experiment]


def publish(folder: Path, *, root: Path, to: Path | None = None) -> list[Path]:
    """Check everything in `folder` and put it into the book folder `to`, `root/book` by default; what was written.

    Raises `BadInput` with the first reason in one line, and then nothing was written. The notebooks of a run become
    the pages that the next `speedlab book` would stage.
    """
    submission = read_submission(folder)
    book = to or root / "book"
    reason = next(problems_of(submission, root, book), None)
    if reason is not None:
        raise BadInput(f"{submission.folder.name} is not published: {reason}")
    written = _put_records(submission.records, book / "records")
    for experiment in submission.experiments:
        path = experiment_path(book / "experiments", experiment.device, experiment.name)
        write_text_atomic(path, experiment_text(experiment))
        written.append(path)
    if submission.run is not None:
        stage_pages(submission.run, root / "notebooks", book)
        summary = (submission.run.folder / SUMMARY).read_text(encoding="utf-8")
        for device in dict.fromkeys(record.device for record in submission.records):
            written.append(book / "records" / device / "reproduction.json")
            write_text_atomic(written[-1], summary)
    return written


def read_submission(folder: Path) -> Submission:
    """A run folder, or one with <device>/<ladder>/<rung>.json or <device>/<experiment>.json below it."""
    folder = Path(folder)
    run = Run.read(folder) if (folder / SUMMARY).is_file() else None
    records, experiments = folder / "records", folder / "experiments"
    if run is None and not records.is_dir() and not experiments.is_dir():
        records = folder if any(folder.glob("*/*/*.json")) else records
        experiments = folder if any(folder.glob("*/*.json")) else experiments
    submission = Submission(
        folder=folder.resolve(), run=run, records=read_records(records) if records.is_dir() else [],
        experiments=read_experiments(experiments),
    )  # fmt: skip
    if not submission.records and not submission.experiments:
        raise BadInput(
            f"{folder} holds nothing to publish: give a folder that `speedlab reproduce`, `speedlab ladder --out` or "
            "`speedlab experiment --out` wrote"
        )
    return submission


def problems_of(submission: Submission, root: Path, book: Path) -> Iterator[str]:
    """Every reason against publishing, the plainest first; later ones are not looked for before they are asked for."""
    everything = [*submission.records, *submission.experiments]
    if submission.run is not None:
        yield from _problems_of_run(submission.run, root)
    yield from problems_of_records(submission.records)
    yield from problems_of_experiments(submission.experiments)
    for thing in everything:  # what was published by an older method stays until it is measured again
        if thing.method != METHOD:
            yield f"{thing.device} was measured by method {thing.method}, this is {METHOD}: measure again"
    if submission.run is not None:
        yield from _foreign(submission.run, submission)
    sessions = sorted({thing.session for thing in everything})
    if submission.run is None and len({thing.machine["machine_id"] for thing in everything}) > 1:
        yield f"its records come from more than one machine (sessions {', '.join(sessions)})"
    yield from problems_of_sources(everything, root)
    yield from _lost(submission.records, book / "records")


def _problems_of_run(run: Run, root: Path) -> Iterator[str]:
    if not PROFILES[run.profile].publishable:
        yield f"it is a {run.profile} run: its speeds mean nothing and stay unpublished"
    for chapter in run.chapters:
        if chapter.status != "completed" and not (chapter.lab and chapter.status == "pending"):
            yield f"{chapter.chapter} is {chapter.status.replace('_', ' ')} ({chapter.reason or 'it was not executed'})"
        if chapter.session not in (None, run.session):
            yield f"{chapter.chapter} comes from session {chapter.session}, the run is {run.session}"
    try:
        check_run(run, root / "notebooks")
    except SpeedLabError as error:
        yield str(error)


def _foreign(run: Run, submission: Submission) -> Iterator[str]:
    """Files that were put into the run folder: of another session, machine or source, or that no chapter wrote."""
    listed = {path for chapter in run.chapters for path in chapter.records}
    files = chain(
        ((record, record_path(run.folder / "records", record.device, record.ladder, record.rung))
         for record in submission.records),
        ((experiment, experiment_path(run.folder / "experiments", experiment.device, experiment.name))
         for experiment in submission.experiments),
    )  # fmt: skip
    for thing, path in files:
        name = path.relative_to(run.folder).as_posix()
        for what, own, wanted in (
            ("session", thing.session, run.session),
            ("machine", thing.machine["machine_id"], run.machine.get("machine_id")),
            ("source", thing.source_hash, run.source_hash),
        ):
            if own != wanted:
                yield f"{name} is foreign: its {what} is {own[:12]}, that of the run is {str(wanted)[:12]}"
        if name not in listed:
            yield f"{name} is foreign: no chapter of the run says that it wrote it"


def _lost(records: list[Record], root: Path) -> Iterator[str]:
    """A ladder is replaced as a whole, so a rung that only the old session measured would be gone."""
    for (device, ladder), group in _by_ladder(records):
        folder = record_path(root, device, ladder, "any").parent
        there = {path.stem for path in folder.glob("*.json")}
        if gone := sorted(there - {record.rung for record in group}):
            yield f"{device}/{ladder} would lose {', '.join(gone)}: measure all rungs in one session"


def _put_records(records: list[Record], root: Path) -> list[Path]:
    """Each device and ladder as a whole: its new folder is complete before it takes the place of the old one."""
    written = []
    root.mkdir(parents=True, exist_ok=True)
    for (device, ladder), group in _by_ladder(records):
        target = record_path(root, device, ladder, "any").parent
        with tempfile.TemporaryDirectory(prefix=".publish-", dir=root) as folder:
            for record in group:
                written.append(target / write_record(Path(folder), record).name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                target.rename(Path(folder) / "old")
            try:
                (Path(folder) / device / ladder).rename(target)
            except OSError:
                if (Path(folder) / "old").exists():
                    shutil.move(Path(folder) / "old", target)
                raise
    return written


def _by_ladder(records: list[Record]) -> list[tuple[tuple[str, str], list[Record]]]:
    ordered = sorted(records, key=lambda record: (record.device, record.ladder))
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda record: (record.device, record.ladder))]
