"""Builds the book from one executed run: checks its notebooks, stages them, writes the tables, calls jupyter-book.

Nothing is executed here and no number is made: pages come from the run, tables from the records.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from speedlab.errors import NotAvailable, SpeedLabError
from speedlab.publishing.execute import read_source
from speedlab.publishing.executed import RESULT_MIME, problems_of
from speedlab.publishing.reproduce import find_chapters
from speedlab.publishing.run_folder import Run, newest_complete

# Cells that papermill or a reader needs and a page does not: shown as values in the chapter's own words.
HIDDEN_TAGS = {"parameters": "remove-input", "injected-parameters": "remove-cell"}


def build_book(root: Path, run: Path | None = None, *, out: Path | None = None) -> Path:
    """Build the book of the checkout at `root` from a run folder and return the path of its index.html.

    run: None takes the newest complete run. out: folder that receives `_build/`, `root/book` by default. Raises
    `SpeedLabError` for a run that must not be published and for a build with any warning; the pages that were built
    before stay until then.
    """
    if importlib.util.find_spec("jupyter_book") is None:
        raise NotAvailable("jupyter-book is not installed: run `make env`, or install the packages of the extra `book`")
    source = Run.read(run) if run is not None else newest_complete(root / "runs")
    check_run(source, root / "notebooks")
    stage(source, root / "book" / "chapters", list(find_chapters(root / "notebooks")))
    write_tables(root, source)
    return _jupyter_book(root / "book", (out or root / "book").resolve(), find_chapters(root / "notebooks"))


def check_run(run: Run, notebooks: Path) -> None:
    """Raise `SpeedLabError` naming everything that keeps the pages of this run from being published."""
    problems = []
    for chapter, source in find_chapters(notebooks).items():
        problems += [f"{chapter}: {problem}" for problem in _problems_of_page(run, chapter, source)]
    if problems:
        what = "; ".join(problems)
        raise SpeedLabError(
            f"run {run.folder.name} cannot be published: {what}: execute it again with `speedlab reproduce`"
        )


def stage(run: Run, target: Path, chapters: list[str]) -> None:
    """Put the pages of a run into `target` in place of what is there, all at once, without what only machines read."""
    import nbformat

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".chapters-", dir=target.parent) as folder:
        fresh = Path(folder) / "chapters"
        fresh.mkdir()
        for chapter in chapters:
            notebook = nbformat.read(run.page(chapter), as_version=4)
            _prepare(notebook)
            nbformat.write(notebook, fresh / f"{chapter}.ipynb")
        if target.exists():
            target.rename(Path(folder) / "old")
        fresh.rename(target)


def _problems_of_page(run: Run, chapter: str, source: Path) -> list[str]:
    import nbformat

    try:
        notebook = nbformat.read(run.page(chapter), as_version=4)
    except FileNotFoundError:
        noted = [noted for noted in run.chapters if noted.chapter == chapter]
        return [f"not executed ({noted[0].reason or noted[0].status})" if noted else "not part of the run"]
    except (ValueError, OSError, AttributeError, KeyError, nbformat.ValidationError) as error:
        return [f"its notebook cannot be read ({str(error).splitlines()[0][:100]})"]
    problems = problems_of(notebook, chapter, run=run.folder, asked=run.parameters)
    if _code(notebook) != _code(read_source(source)):
        problems.append("its code is not that of the source any more")
    return problems


def _code(notebook: Any) -> list[str]:
    """Code cells as written, without the one that papermill adds."""
    return [
        cell.source.strip()
        for cell in notebook.cells
        if cell.cell_type == "code" and "injected-parameters" not in cell.metadata.get("tags", ())
    ]


def _prepare(notebook: Any) -> None:
    """Drop what a page must not show: papermill's notes, the result meant for programs, parameter cells."""
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        if cell.cell_type != "code":
            continue
        tags = list(cell.metadata.get("tags", ()))
        hidden = [HIDDEN_TAGS[tag] for tag in tags if tag in HIDDEN_TAGS]
        cell.metadata["tags"] = tags + [tag for tag in hidden if tag not in tags]
        for output in cell.outputs:
            output.get("data", {}).pop(RESULT_MIME, None)
        cell.outputs = [output for output in cell.outputs if output.get("data", True)]


def write_tables(root: Path, run: Run) -> None:
    from speedlab.publishing.generated import write_generated

    write_generated(root / "book" / "_generated", run.folder / "records")


def _jupyter_book(book: Path, out: Path, chapters: dict[str, Path]) -> Path:
    """Every page anew, warnings are errors: an incremental build would not repeat the warnings of an old page."""
    command = [
        sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(book), "--all",
        "--warningiserror", "--nitpick", "--keep-going", "--path-output", str(out),
    ]  # fmt: skip
    log = out / "_build" / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=_environment()
        ).returncode
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace"))
    html = out / "_build" / "html"
    missing = [name for name in chapters if not (html / "chapters" / f"{name}.html").is_file()]
    if status or missing:
        found = re.findall(r"^.*\b(?:WARNING|ERROR)\b.*$", text, flags=re.MULTILINE)
        what = found[0] if found else f"pages missing: {', '.join(missing)}" if missing else f"exit status {status}"
        raise SpeedLabError(f"the book was not built: {what.strip()} ({len(found)} warnings in {log})")
    return html / "index.html"


def _environment() -> dict[str, str]:
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    if "PYTHONPATH" in environment:  # jupyter-book changes its folder while it builds
        paths = [os.path.abspath(path) for path in environment["PYTHONPATH"].split(os.pathsep) if path]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
