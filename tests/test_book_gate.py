"""What keeps a run from becoming a book, and that a sound one becomes one: the gate, the staging, the strict build."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from toy_chapters import toy_source, write_toys

from speedlab.errors import BadInput, NotAvailable, SpeedLabError
from speedlab.publishing import book
from speedlab.publishing.execute import read_source
from speedlab.publishing.executed import RESULT_MIME, problems_of, problems_of_result
from speedlab.publishing.run_folder import Chapter, Run

ASKED = {"profile": "smoke", "steps": 3, "source": "auto"}
CONFIG = """\
title: Toy
only_build_toc_files: true
execute: {execute_notebooks: "off"}
"""
TOC = "format: jb-book\nroot: intro\nchapters:\n  - file: chapters/01_a\n"


def result(**changes) -> dict:
    plain = {"chapter": "01_a", "status": "measured", "session": "0123456789ab", "records": []}
    return {**plain, **ASKED, "source": "measure", **changes}


def executed(source: Path) -> nbformat.NotebookNode:
    """The notebook of a toy chapter as papermill would leave it after a sound run."""
    notebook = read_source(source)
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), start=1):
        cell.execution_count = number
        cell.metadata["papermill"] = {"status": "completed", "exception": False}
    last = notebook.cells[-1]
    last.outputs = [nbformat.v4.new_output("display_data", {RESULT_MIME: result(), "text/plain": "done"})]
    return notebook


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout: one chapter, a book of two pages, one sound run."""
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a", "print('hello')")})
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "_config.yml").write_text(CONFIG)
    (tmp_path / "book" / "_toc.yml").write_text(TOC)
    (tmp_path / "book" / "intro.md").write_text("# Intro\n\nWords.\n")
    run = Run(
        folder=tmp_path / "runs" / "one", kernel="python3", source_hash="1", machine={},
        chapters=[Chapter(chapter="01_a", status="completed")], **ASKED,
    )  # fmt: skip
    run.write()
    nbformat.write(executed(notebooks / "01_a.py"), run.page("01_a"))
    return tmp_path


def spoil(checkout: Path, change) -> None:
    """Change the executed notebook of the checkout's run."""
    page = checkout / "runs" / "one" / "01_a.ipynb"
    notebook = nbformat.read(page, as_version=4)
    change(notebook, [cell for cell in notebook.cells if cell.cell_type == "code"])
    nbformat.write(notebook, page)


def test_a_sound_notebook_has_no_problem(checkout: Path) -> None:
    book.check_run(Run.read(checkout / "runs" / "one"), checkout / "notebooks")


def error_output(notebook, cells) -> None:
    cells[1].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no\nway", traceback=[])]


def error_banner(notebook, cells) -> None:
    cells[0].metadata["tags"] = ["papermill-error-cell-tag"]


def not_executed(notebook, cells) -> None:
    cells[1].execution_count = None


def interrupted(notebook, cells) -> None:
    cells[1].metadata["papermill"]["status"] = "running"


def raised(notebook, cells) -> None:
    cells[1].metadata["papermill"]["exception"] = True


def no_papermill(notebook, cells) -> None:
    del cells[1].metadata["papermill"]


def no_result(notebook, cells) -> None:
    """As a killed kernel leaves it: all statuses say completed."""
    cells[-1].outputs = []


def result_too_early(notebook, cells) -> None:
    cells[1].outputs, cells[-1].outputs = cells[-1].outputs, []


def other_code(notebook, cells) -> None:
    cells[1].source = "print('goodbye')"


def other_chapter(notebook, cells) -> None:
    cells[-1].outputs[0].data[RESULT_MIME]["chapter"] = "02_b"


def other_steps(notebook, cells) -> None:
    cells[-1].outputs[0].data[RESULT_MIME]["steps"] = 40


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (error_output, r"code cell 2 holds an error \(ValueError: no way\)"),
        (error_banner, "code cell 1 is papermill's error banner"),
        (not_executed, "code cell 2 was not executed"),
        (interrupted, "code cell 2 has papermill status 'running'"),
        (raised, "code cell 2 raised an exception"),
        (no_papermill, "code cell 2 has papermill status None"),
        (no_result, "its last code cell holds no result"),
        (result_too_early, "its last code cell holds no result"),
        (other_code, "its code is not that of the source any more"),
        (other_chapter, "its result is of chapter '02_b'"),
        (other_steps, "it ran with steps=40, asked was 3"),
    ],
)
def test_each_fault_alone_keeps_the_run_out_of_the_book(checkout: Path, fault, words: str) -> None:
    spoil(checkout, fault)
    with pytest.raises(SpeedLabError, match=f"run one cannot be published: 01_a: {words}") as caught:
        book.build_book(checkout)
    assert "\n" not in str(caught.value) and not (checkout / "book" / "chapters").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"profile": "full"}, "profile='full', asked was 'smoke'"),
        ({"status": "failed"}, "says failed"),
        ({"records": "records/a.json"}, "must list its records"),
        ({"records": ["../a.json"]}, "does not lie in the run"),
        ({"records": ["/etc/passwd"]}, "does not lie in the run"),
        ({"records": ["records/gone.json"]}, "gone.json is missing"),
        ({"extra": 1}, "must have exactly the fields"),
    ],
)
def test_a_result_must_be_of_this_run(tmp_path: Path, changed: dict, words: str) -> None:
    problems = problems_of_result(result(**changed), "01_a", run=tmp_path, asked=ASKED)
    assert len(problems) == 1 and words in problems[0]


def test_auto_and_zero_leave_the_choice_to_the_chapter() -> None:
    asked = {"profile": "auto", "steps": 0, "source": "auto"}
    assert problems_of_result(result(profile="full", steps=40), "01_a", asked=asked) == []


def test_a_notebook_without_code_is_no_chapter() -> None:
    assert problems_of(nbformat.v4.new_notebook(), "01_a") == ["it has no code cell"]


def test_a_missing_and_a_damaged_page_are_named(checkout: Path) -> None:
    page = checkout / "runs" / "one" / "01_a.ipynb"
    page.write_text("{")
    with pytest.raises(SpeedLabError, match="01_a: its notebook cannot be read"):
        book.build_book(checkout, checkout / "runs" / "one")
    page.unlink()
    with pytest.raises(SpeedLabError, match="01_a: not executed"):
        book.build_book(checkout, checkout / "runs" / "one")


def test_without_a_run_the_command_that_makes_one_is_named(checkout: Path) -> None:
    with pytest.raises(BadInput, match="is not a run"):
        book.build_book(checkout, checkout / "book")
    (checkout / "runs" / "one" / "summary.json").unlink()
    with pytest.raises(NotAvailable, match="speedlab reproduce"):
        book.build_book(checkout)


def test_staged_pages_hold_nothing_for_machines(checkout: Path) -> None:
    run = Run.read(checkout / "runs" / "one")
    target = checkout / "book" / "chapters"
    target.mkdir()
    (target / "99_gone.ipynb").write_text("left by an earlier run")
    book.stage({"01_a": book.read_page(run, "01_a")}, target)
    assert [path.name for path in target.iterdir()] == ["01_a.ipynb"]
    assert [path.name for path in (checkout / "book").iterdir() if path.name.startswith(".")] == []
    staged = nbformat.read(target / "01_a.ipynb", as_version=4)
    assert "papermill" not in staged.metadata and all("papermill" not in cell.metadata for cell in staged.cells)
    code = [cell for cell in staged.cells if cell.cell_type == "code"]
    assert "remove-input" in code[0].metadata["tags"]
    assert code[-1].outputs[0].data == {"text/plain": "done"}


def test_a_sound_run_becomes_a_book_and_a_warning_stops_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "write_tables", lambda root, run: None)
    out = checkout / "elsewhere"
    index = book.build_book(checkout, out=out)
    assert index == out / "_build" / "html" / "index.html" and "intro.html" in index.read_text()
    page = (out / "_build" / "html" / "chapters" / "01_a.html").read_text()
    assert "A toy chapter" in page and "hello" in page
    (checkout / "book" / "intro.md").write_text("# Intro\n\n[nowhere](missing.md)\n")
    for _ in range(2):  # the second build must not pass for having nothing new to read
        with pytest.raises(SpeedLabError, match=r"the book was not built: .*WARNING.*missing\.md"):
            book.build_book(checkout, out=out)
