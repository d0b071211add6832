"""What became of an executed chapter, in one word and one line: completed, failed, out of memory, not available here.

It decides from what papermill left: the notebook, exit statuses and the log. It starts nothing and writes nothing.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from speedlab.publishing.chapter_process import DEAD_KERNEL
from speedlab.publishing.executed import error_outputs, first_error, last_started_cell, problems_of

# Exceptions that say that memory ran out, by the name that a notebook keeps of them.
MEMORY_ERRORS = ("OutOfMemoryError", "MemoryError")
# Where Linux counts the processes that it killed because memory ran out: all of them, and those of this container.
OOM_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
LESS_MEMORY = "free some, or use a smaller --profile"


def outcome_of(
    notebook: Any,
    chapter: str,
    status: int | None,
    *,
    run: Path,
    asked: dict[str, Any],
    limits: Any,
    kernel_status: int | None,
    oom_kills: int,
    log: str,
) -> tuple[str, str | None]:
    """(status of the chapter, why it is not complete or None).

    status: exit status of `chapter_process`, None when the chapter took too long. kernel_status: that of a kernel
    that ended by itself, None where nobody saw it. oom_kills: what Linux counted of its kills for memory meanwhile.
    """
    where = last_started_cell(notebook) or "its first cell"
    if status is None:
        return "failed", f"stopped after {limits.chapter_s} s in {where}"
    if status == DEAD_KERNEL:
        return _dead_kernel(kernel_status, where, oom_kills)
    if status and "CellTimeoutError" in log:
        return "failed", f"{where} took longer than {limits.cell_s} s"
    for number, error in error_outputs(notebook):
        if error.ename == "SystemExit":
            return "failed", f"code cell {number} leaves by sys.exit, which papermill takes for success: use an if"
        if error.ename in MEMORY_ERRORS:
            return "out_of_memory", f"{first_error(notebook)}: {LESS_MEMORY}"
        if error.ename == "NotAvailable":
            return "unavailable", first_error(notebook)
    if status:
        return "failed", first_error(notebook) or f"papermill ended with status {status}: {_last_line(log)}"
    problems = problems_of(notebook, chapter, run=run, asked=asked)
    return ("failed", "; ".join(problems)) if problems else ("completed", None)


def count_oom_kills(files: tuple[Path, ...] = OOM_COUNTERS) -> int:
    """How many processes Linux has killed for memory so far; 0 where it does not say."""
    total = 0
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue  # another system, or no cgroup of this kind
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def _dead_kernel(status: int | None, where: str, oom_kills: int) -> tuple[str, str]:
    """Only the kernel's own exit status tells a kill from an exit. Linux kills with SIGKILL when memory runs out."""
    if status == -signal.SIGKILL:
        why = "by the system, out of memory" if oom_kills else "probably out of memory"
        return "out_of_memory", f"the kernel was killed in {where}, {why}: {LESS_MEMORY}"
    if status is None:
        return "failed", f"the kernel was gone in {where}, and how it ended is not known"
    if status < 0:
        return "failed", f"the kernel was ended by {signal.Signals(-status).name} in {where}"
    return "failed", f"the kernel left by itself with exit status {status} at {where}: a chapter must not call exit()"


def _last_line(log: str) -> str:
    return next((line.strip() for line in reversed(log.split("\n")) if line.strip()), "no message")
