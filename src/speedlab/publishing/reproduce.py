"""Runs the chapters in batch into one run folder: which ones, in what order, and what is left of an earlier run.

It goes on after a failure and picks up where an earlier run of the same kind stopped. It does not know how a chapter
is executed or what it measures, and imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from speedlab.errors import NotAvailable, SpeedLabError
from speedlab.outlook import TYPICAL_CHAPTER_S, UNKNOWN_CHAPTER_S
from speedlab.profile import PROFILES
from speedlab.publishing.currency import forget, is_current, note_current
from speedlab.publishing.execute import (
    DEFAULT_KERNEL,
    Limits,
    check_kernel,
    check_parameters,
    convert,
    run_chapter,
)
from speedlab.publishing.run_folder import Chapter, Run, continued, held, new_run_folder, runs_newest_first, utc_now
from speedlab.publishing.sources import find_chapters, find_labs, select
from speedlab.records.experiment import committed_experiments
from speedlab.records.store import committed_root, source_hash

TYPICAL_SHOWN_S = 4  # of a lab that only shows records
LABS_AT_ONCE = 4  # of those: they measure nothing, so they do not disturb each other

# (text, chapters done, chapters in all)
Listener = Callable[[str, int, int], None]


def plan(
    *, notebooks: Path, runs: Path, profile: str, machine: dict[str, Any], kernel: str = DEFAULT_KERNEL, steps: int = 0,
    source: str = "auto", fresh: bool = False, labs: bool = False,
) -> Run:  # fmt: skip
    """The run that would be made or continued; writes nothing.

    machine: what must be equal for chapters to share a run, `machine_id` among it. fresh: never continue one. labs:
    measure in the labs too; otherwise they only show the committed records, which takes seconds.
    """
    found = find_chapters(notebooks)
    chapters = [Chapter(chapter=stem, source_sha256=_sha256(path)) for stem, path in found.items()]
    chapters += [
        Chapter(chapter=stem, lab=True, shown_only=not labs, source_sha256=_sha256(path))
        for stem, path in find_labs(notebooks).items()
    ]
    wanted = Run(
        folder=new_run_folder(runs, profile), profile=profile, steps=steps, source=source, kernel=kernel,
        source_hash=source_hash(), machine=machine, chapters=chapters,
    )  # fmt: skip
    return wanted if fresh else continued(wanted, runs, lambda run, chapter: _is_current(run, chapter, notebooks))


def to_run(run: Run, only: str | None = None) -> list[str]:
    """The chapters of this run that are still to be executed, limited to those that `only` names."""
    chosen = select([chapter.chapter for chapter in run.chapters], only)
    return [name for name in chosen if run.chapter(name).status != "completed"]


def estimated_minutes(run: Run, names: list[str]) -> int:
    """Whole minutes that these chapters should take, by an earlier run of the profile where there is one."""
    seconds = {
        name: TYPICAL_SHOWN_S if run.chapter(name).shown_only else TYPICAL_CHAPTER_S.get(run.profile, UNKNOWN_CHAPTER_S)
        for name in names
    }
    for earlier in reversed(runs_newest_first(run.folder.parent)):
        if earlier.profile == run.profile and earlier.machine == run.machine:
            seconds |= {
                c.chapter: c.seconds
                for c in earlier.chapters
                if c.chapter in seconds and c.seconds and c.shown_only == run.chapter(c.chapter).shown_only
            }
    return math.ceil(sum(seconds.values()) / 60)


def reproduce(
    run: Run,
    *,
    notebooks: Path,
    only: str | None = None,
    limits: Limits | None = None,
    listener: Listener | None = None,
) -> Run:
    """Execute what is left of `run` and return it; a chapter that fails is noted and the next one starts.

    Raises `BadInput` before anything is executed for a chapter without one of the parameters, and `NotAvailable`
    without papermill or for a kernel that runs another Python.
    """
    listener = listener or (lambda text, done, total: None)
    names = to_run(run, only)
    check_kernel(run.kernel)
    sources = find_chapters(notebooks) | find_labs(notebooks)
    with tempfile.TemporaryDirectory(prefix="speedlab-") as folder:
        converted = {name: Path(folder) / f"{name}.ipynb" for name in names}
        for name in names:
            convert(sources[name], converted[name])
            check_parameters(converted[name], run.parameters(run.chapter(name)))
        with held(run.folder):
            for name in names:
                run.chapter(name).source_sha256 = _sha256(sources[name])
                forget(run.folder, name)
            for done, name in enumerate(_executed(run, names, converted, limits or Limits(), listener), start=1):
                chapter = run.chapter(name)
                if chapter.status == "completed":
                    note_current(run.folder, name, **_currency(run, chapter, sources[name]))
                words = f"{name} {chapter.status.replace('_', ' ')} in {chapter.seconds:.0f} s"
                listener(words + (f": {chapter.reason}" if chapter.reason else ""), done, len(names))
            run.finished_utc = utc_now()
            run.write()
    return run


def _executed(
    run: Run, names: list[str], notebooks: dict[str, Path], limits: Limits, listener: Listener
) -> Iterator[str]:
    """Execute the chapters, each alone, then the labs that only show records, several at once; each name when done."""
    shown = [name for name in names if run.chapter(name).shown_only]
    alone = [name for name in names if name not in shown]
    for done, name in enumerate(alone):
        listener(f"{name} ...", done, len(names))
        run_chapter(run, run.chapter(name), notebooks[name], limits)
        yield name
    if not shown:
        return
    listener(f"{len(shown)} labs from the records ...", len(alone), len(names))
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=max(2, min(LABS_AT_ONCE, os.cpu_count() or 1))) as pool:
        waiting = {
            pool.submit(run_chapter, run, run.chapter(name), notebooks[name], limits, stop): name for name in shown
        }
        try:
            for future in as_completed(waiting):
                future.result()
                yield waiting[future]
        except BaseException:  # a signal reaches the main thread alone: the others are told, and end their kernels
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def check_profile(profile: str, machine: dict[str, Any]) -> None:
    """Refuse a profile that times a GPU where there is none, before a kernel is started for each chapter."""
    if PROFILES[profile].publishable and machine["gpu"] is None:
        raise NotAvailable(f"profile {profile} needs a GPU, and there is none here: choose smoke or auto")


def probe_machine() -> dict[str, Any]:
    """What `speedlab doctor --json` says, asked in another process so that this one never holds a GPU."""
    done = subprocess.run([sys.executable, "-m", "speedlab", "doctor", "--json"], capture_output=True, text=True)
    if done.returncode:
        raise SpeedLabError(f"`speedlab doctor` failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(done.stdout)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_current(run: Run, chapter: Chapter, notebooks: Path) -> bool:
    source = (find_chapters(notebooks) | find_labs(notebooks)).get(chapter.chapter)
    if source is None or not run.page(chapter.chapter).is_file():
        return False
    return is_current(run.folder, chapter.chapter, **_currency(run, chapter, source))


def _currency(run: Run, chapter: Chapter, source: Path) -> dict[str, Any]:
    """What a page depends on: its source and parameters. One that only shows records depends on those as well."""
    shown = []
    if chapter.shown_only:
        shown = [path for root in (committed_root(), committed_experiments()) for path in sorted(root.rglob("*.json"))]
    return {
        "page": run.page(chapter.chapter), "sources": [source.resolve(), *shown], "parameters": run.parameters(chapter),
    }  # fmt: skip
