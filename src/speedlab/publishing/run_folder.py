"""What a run of the chapters left behind: its summary, and whether a later run may go on from it.

A run is one profile, one set of parameters, one version of the package, one machine, one session. It knows nothing
of how a chapter is executed.
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedlab.errors import BadInput, NotAvailable, SpeedLabError, check_choice
from speedlab.profile import PROFILES
from speedlab.records.store import write_text_atomic

SUMMARY = "summary.json"
_WRITING = threading.Lock()
STATUSES = ("pending", "completed", "failed", "out_of_memory", "unavailable", "interrupted")


@dataclass(kw_only=True)
class Chapter:
    """One chapter or lab of a run. source_sha256: of the notebook source that was executed; reason: why it is not
    complete; lab, shown_only: whether it is a lab, and one that only shows the committed records."""

    chapter: str
    lab: bool = False
    shown_only: bool = False
    status: str = "pending"
    seconds: float | None = None
    session: str | None = None
    reason: str | None = None
    source_sha256: str | None = None
    records: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_types(
            self,
            {"chapter": str, "lab": bool, "shown_only": bool, "seconds": int | float | None, "records": list}
            | dict.fromkeys(("session", "reason", "source_sha256"), str | None),
        )
        check_choice("status of a chapter", self.status, STATUSES)
        if not all(isinstance(path, str) for path in self.records):
            raise BadInput(f"records is {self.records!r}: a list of paths")
        if not re.fullmatch(r"\w+", self.chapter):  # it becomes the name of a page
            raise BadInput(f"chapter {self.chapter!r} cannot name a page: it has letters, digits and _")


@dataclass(kw_only=True)
class Run:
    """A run folder and its summary. `machine` is what must be equal for two chapters to belong to one run."""

    folder: Path
    profile: str
    steps: int
    source: str
    kernel: str
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    source_hash: str
    machine: dict[str, Any]
    started_utc: str = field(default_factory=lambda: utc_now())
    finished_utc: str | None = None
    chapters: list[Chapter]

    def parameters(self, chapter: Chapter) -> dict[str, Any]:
        """What a chapter is executed with."""
        return {
            "profile": self.profile, "steps": self.steps, "source": "recorded" if chapter.shown_only else self.source,
        }  # fmt: skip

    @property
    def complete(self) -> bool:
        """Whether a book can be made of it: every chapter completed, and no lab that was tried and failed."""
        return bool(self.chapters) and all(
            chapter.status == "completed" or (chapter.lab and chapter.status == "pending") for chapter in self.chapters
        )

    def page(self, chapter: str) -> Path:
        """The executed notebook of a chapter that ran to its end."""
        return self.folder / f"{chapter}.ipynb"

    def chapter(self, name: str) -> Chapter:
        return next(chapter for chapter in self.chapters if chapter.chapter == name)

    def write(self) -> None:
        with _WRITING:  # an older state must not come after a newer one
            values = {name: value for name, value in asdict(self).items() if name != "folder"}
            write_text_atomic(self.folder / SUMMARY, json.dumps(values, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Run:
        """The run in this folder; `BadInput` for a folder that is none, or whose summary is damaged."""
        folder = Path(folder)
        path = folder / SUMMARY
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            chapters = [Chapter(**chapter) for chapter in values.pop("chapters")]
            run = cls(folder=folder.resolve(), chapters=chapters, **values)
            _check_types(run, _TYPES_OF_A_RUN)
            check_choice("profile", run.profile, PROFILES)
            return run
        except OSError as error:
            raise BadInput(
                f"{folder} is not a run, {SUMMARY} cannot be read ({error.strerror}): "
                "give a folder that `speedlab reproduce` wrote"
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            known = ", ".join(f.name for f in fields(cls) if f.name != "folder")
            raise BadInput(
                f"{path} is damaged ({error}): it must be JSON with {known}; run `speedlab reproduce` again"
            ) from error


_TYPES_OF_A_RUN = {
    **dict.fromkeys(("profile", "source", "kernel", "session", "source_hash", "started_utc"), str),
    "steps": int, "machine": dict, "finished_utc": str | None,
}  # fmt: skip


def _check_types(thing: Chapter | Run, types: dict[str, Any]) -> None:
    for name, wanted in types.items():
        value = getattr(thing, name)
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise BadInput(f"{name} is {value!r}, which is no {getattr(wanted, '__name__', wanted)}")


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_run_folder(runs: Path, profile: str) -> Path:
    """A name for a new run, not created yet: `<UTC>-<profile>`, with a number added where that is taken."""
    stem = f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{profile}"
    names = (stem if n == 1 else f"{stem}-{n}" for n in range(1, 1000))
    return next(runs / name for name in names if not (runs / name).exists())


def runs_newest_first(runs: Path) -> list[Run]:
    """All runs that can be read; a folder without a summary, or with a damaged one, is not a run."""
    found = []
    for summary in runs.glob(f"*/{SUMMARY}"):
        try:
            found.append(Run.read(summary.parent))
        except BadInput:
            continue  # asked for by name it would be an error; here it only cannot be chosen
    return sorted(found, key=lambda run: (run.started_utc, run.folder.name), reverse=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder; two that wrote one summary would lose each other's work."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpeedLabError(
                f"run {folder.name} is being executed by another process: wait for it, or start your own with --fresh"
            ) from None
        yield


def continued(wanted: Run, runs: Path, is_current: Callable[[Run, Chapter], bool]) -> Run:
    """The newest earlier run that `wanted` may go on with, or `wanted` itself where there is none.

    Same parameters, package, kernel and machine: then its finished chapters are as good as new ones. A chapter that
    is not current (its source has changed, its page is gone) is set back to pending. A lab that was measured is as
    good as one that only shows records.
    """
    same = ("profile", "steps", "source", "kernel", "source_hash", "machine")
    for run in runs_newest_first(runs):
        if any(getattr(run, name) != getattr(wanted, name) for name in same):
            continue
        old = {chapter.chapter: chapter for chapter in run.chapters}
        run.chapters = [
            old[new.chapter]
            if new.chapter in old
            and old[new.chapter].status == "completed"
            and (new.shown_only or not old[new.chapter].shown_only)
            and is_current(run, old[new.chapter])
            else new
            for new in wanted.chapters
        ]
        return run
    return wanted


def newest_complete(runs: Path) -> Run:
    """The newest run with every chapter completed; an error that names the command that makes one."""
    for run in runs_newest_first(runs):
        if run.complete:
            return run
    raise NotAvailable(f"no complete run in {runs}: make one with `speedlab reproduce`")
