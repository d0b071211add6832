"""What became of a chapter, from what papermill left of it; the runs themselves are in test_reproduce.py."""

from __future__ import annotations

import signal
from pathlib import Path

import nbformat
import pytest
from test_book_gate import executed, result
from toy_chapters import toy_source, write_toys

from speedlab.publishing.chapter_process import DEAD_KERNEL
from speedlab.publishing.execute import Limits
from speedlab.publishing.outcome import count_oom_kills, outcome_of

ASKED = {name: result()[name] for name in ("profile", "steps")} | {"source": "auto"}


@pytest.fixture
def notebook(tmp_path: Path) -> nbformat.NotebookNode:
    return executed(write_toys(tmp_path, {"01_a": toy_source("01_a", "model = build()")}) / "01_a.py")


def outcome(notebook: nbformat.NotebookNode, status: int | None = 0, **changes) -> tuple[str, str | None]:
    plain = {"run": Path(), "asked": ASKED, "limits": Limits(), "kernel_status": None, "oom_kills": 0, "log": ""}
    return outcome_of(notebook, "01_a", status, **(plain | changes))


def test_a_sound_chapter_is_completed(notebook) -> None:
    assert outcome(notebook) == ("completed", None)


@pytest.mark.parametrize(
    ("kernel_status", "oom_kills", "status", "words"),
    [
        (-signal.SIGKILL, 0, "out_of_memory", "the kernel was killed in code cell 3 (from IPython"),
        (-signal.SIGKILL, 0, "out_of_memory", "probably out of memory: free some"),
        (-signal.SIGKILL, 1, "out_of_memory", "by the system, out of memory: free some"),
        (-signal.SIGABRT, 1, "failed", "ended by SIGABRT"),
        (0, 1, "failed", "left by itself with exit status 0"),
        (3, 0, "failed", "left by itself with exit status 3"),
        (None, 0, "failed", "how it ended is not known"),
    ],
)
def test_how_a_kernel_ended_decides_what_is_said(
    notebook, kernel_status: int | None, oom_kills: int, status: str, words: str
) -> None:
    found, reason = outcome(notebook, DEAD_KERNEL, kernel_status=kernel_status, oom_kills=oom_kills)
    assert found == status and words in reason


def with_error(notebook, name: str, value: str):
    notebook.cells[2].outputs = [nbformat.v4.new_output("error", ename=name, evalue=value, traceback=[])]
    return notebook


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("OutOfMemoryError", "out_of_memory", "code cell 2: OutOfMemoryError: CUDA out of memory: free some"),
        ("MemoryError", "out_of_memory", "MemoryError"),
        ("NotAvailable", "unavailable", "code cell 2: NotAvailable: CUDA out of memory"),
        ("SystemExit", "failed", "code cell 2 leaves by sys.exit"),
        ("RuntimeError", "failed", "code cell 2: RuntimeError: CUDA out of memory"),
    ],
)
def test_an_error_is_told_by_its_kind(notebook, name: str, status: str, words: str) -> None:
    found, reason = outcome(with_error(notebook, name, "CUDA out of memory"), 1)
    assert (found == status and reason.startswith(words)) or words in reason


def test_limits_are_named_with_the_cell(notebook) -> None:
    limits = Limits(cell_s=5, chapter_s=60)
    assert outcome(notebook, None, limits=limits)[1].startswith("stopped after 60 s in code cell 3")
    assert outcome(notebook, 1, limits=limits, log="CellTimeoutError: ...")[1].endswith("took longer than 5 s")
    assert outcome(notebook, 1, log="a\nImportError: no\n\n")[1] == "papermill ended with status 1: ImportError: no"


def test_kills_for_memory_are_counted_where_linux_says_so(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 12\noom_kill 3\n")
    (tmp_path / "memory.events").write_text("low 0\noom 9\noom_kill 2\noom_group_kill 7\n")
    assert count_oom_kills((tmp_path / "vmstat", tmp_path / "memory.events", tmp_path / "missing")) == 5
