"""What a batch run came to, as text: a line for each chapter, counts, and the exit code. It runs nothing."""

from __future__ import annotations

from pathlib import Path

from speedlab.publishing.run_folder import Chapter, Run

# In the order of the last line: how a chapter stands after a call, and what counts as a failure of the call.
OUTCOMES = (
    "done", "current", "failed", "out of memory", "not available here", "interrupted", "not asked for",
)  # fmt: skip
FAILURES = ("failed", "out of memory", "interrupted")
_BY_STATUS = {
    "completed": "done", "failed": "failed", "out_of_memory": "out of memory", "unavailable": "not available here",
    "interrupted": "interrupted", "pending": "not asked for",
}  # fmt: skip


def outcome(chapter: Chapter, asked: list[str]) -> str:
    """One of `OUTCOMES`. asked: the chapters that were to be executed; a complete one that was not is current."""
    if chapter.chapter in asked:
        return _BY_STATUS[chapter.status]
    return "current" if chapter.status == "completed" else "not asked for"


def summary_table(run: Run, asked: list[str]) -> str:
    """A line for each chapter (name, outcome, seconds, its page or failed notebook, the reason), then the counts."""
    width = max(len(chapter.chapter) for chapter in run.chapters)
    lines = []
    for chapter in run.chapters:
        how = outcome(chapter, asked)
        seconds = f"{chapter.seconds:.1f} s" if chapter.seconds is not None and how != "not asked for" else ""
        path = _path(run, chapter.chapter, how)
        reason = chapter.reason if how not in ("done", "current", "not asked for") else None
        parts = [f"{chapter.chapter:<{width}}", f"{how:<13}", f"{seconds:>8}", str(path or ""), reason or ""]
        lines.append("  ".join(parts).rstrip())
    return "\n".join([*lines, counts(run, asked)])


def counts(run: Run, asked: list[str]) -> str:
    """ "9 done, 0 current, 1 failed, …": every outcome that matters is named, also where none had it."""
    found = [outcome(chapter, asked) for chapter in run.chapters]
    always = OUTCOMES[:5]
    return ", ".join(f"{found.count(how)} {how}" for how in OUTCOMES if how in always or how in found)


def exit_code(run: Run, asked: list[str]) -> int:
    """0 all done, 1 something failed, 3 nothing failed but something is not available here."""
    found = {outcome(run.chapter(name), asked) for name in asked}
    if found & set(FAILURES):
        return 1
    return 3 if "not available here" in found else 0


def _path(run: Run, name: str, how: str) -> Path | None:
    """The page, or the notebook of the attempt that failed, as far as it was written."""
    places = [run.page(name)] if how in ("done", "current") else [run.folder / "failed" / f"{name}.ipynb"]
    return next((path for path in places if how != "not asked for" and path.is_file()), None)
