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
from speedlab.publishing.contents import contents_with_labs
from speedlab.publishing.execute import read_source
from speedlab.publishing.executed import RESULT_MIME, problems_of
from speedlab.publishing.page_cells import page_tags
from speedlab.publishing.run_folder import Chapter, Run, newest_complete
from speedlab.publishing.sources import LABS, find_chapters, find_labs
from speedlab.publishing.touch import insert_pieces
from speedlab.records.store import write_text_atomic
from speedlab.repository import colab_url


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
    stage_pages(source, root / "notebooks", root / "book")
    write_tables(root, source)
    return _jupyter_book(root / "book", (out or root / "book").resolve(), root / "notebooks")


def stage_pages(run: Run, notebooks: Path, book: Path) -> None:
    """Put the pages of a run that was checked into the book: its chapters, and every lab.

    A lab that the run did not execute is shown as its source says, so that links to it lead somewhere.
    """
    stage({name: read_page(run, name) for name in find_chapters(notebooks)}, book / "chapters")
    done = executed_labs(run)
    labs = find_labs(notebooks)
    stage(
        {name: read_page(run, name) if name in done else _not_executed(path) for name, path in labs.items()},
        book / LABS,
    )


def executed_labs(run: Run) -> set[str]:
    """The labs that a run tried, whatever came of it."""
    return {chapter.chapter for chapter in run.chapters if chapter.lab and chapter.status != "pending"}


def check_run(run: Run, notebooks: Path) -> None:
    """Raise `SpeedLabError` naming everything that keeps the pages of this run from being published."""
    problems = []
    tried = executed_labs(run)
    labs = {name: path for name, path in find_labs(notebooks).items() if name in tried}
    for chapter, source in (find_chapters(notebooks) | labs).items():
        problems += [f"{chapter}: {problem}" for problem in _problems_of_page(run, chapter, source)]
    if problems:
        what = "; ".join(problems)
        raise SpeedLabError(
            f"run {run.folder.name} cannot be published: {what}: execute it again with `speedlab reproduce`"
        )


def stage(pages: dict[str, Any], target: Path) -> None:
    """Put notebooks, as {name: notebook}, into `target` in place of what is there, all at once, without what only
    machines read."""
    import nbformat

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        fresh = Path(folder) / target.name
        fresh.mkdir()
        for name, notebook in pages.items():
            _prepare(notebook)
            _link_to_colab(notebook, name)
            insert_pieces(notebook)
            nbformat.write(notebook, fresh / f"{name}.ipynb")
        if target.exists():
            target.rename(Path(folder) / "old")
        fresh.rename(target)


def read_page(run: Run, name: str) -> Any:
    import nbformat

    return nbformat.read(run.page(name), as_version=4)


def _not_executed(source: Path) -> Any:
    """A lab as its source says, its code shown and without outputs, with a line that says so below its title."""
    import nbformat

    notebook = read_source(source)
    note = nbformat.v4.new_markdown_cell(
        "*The run that this book was made from did not execute this page; `speedlab reproduce` does.*"
    )
    notebook.cells.insert(1, note)
    return notebook


def _problems_of_page(run: Run, chapter: str, source: Path) -> list[str]:
    import nbformat

    try:
        notebook = read_page(run, chapter)
    except FileNotFoundError:
        noted = [noted for noted in run.chapters if noted.chapter == chapter]
        return [f"not executed ({noted[0].reason or noted[0].status})" if noted else "not part of the run"]
    except (ValueError, OSError, AttributeError, KeyError, nbformat.ValidationError) as error:
        return [f"its notebook cannot be read ({str(error).splitlines()[0][:100]})"]
    noted = next((noted for noted in run.chapters if noted.chapter == chapter), Chapter(chapter=chapter))
    problems = problems_of(notebook, chapter, run=run.folder, asked=run.parameters(noted))
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


def _link_to_colab(notebook: Any, name: str) -> None:
    """Every page says below its title where it can be run; a source may say so itself."""
    title = notebook.cells[0]
    if title.cell_type == "markdown" and "colab.research.google.com" not in title.source:
        first, _, rest = title.source.partition("\n")
        title.source = f"{first}\n\n[Open this page in Colab]({colab_url(name)})\n{rest}"


def _prepare(notebook: Any) -> None:
    """Drop what a page must not show: papermill's notes, the result meant for programs, parameter cells."""
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        if cell.cell_type != "code":
            continue
        cell.metadata["tags"] = page_tags(cell.source, list(cell.metadata.get("tags", ())))
        for output in cell.outputs:
            output.get("data", {}).pop(RESULT_MIME, None)
        cell.outputs = [output for output in cell.outputs if output.get("data", True)]


def write_tables(root: Path, run: Run) -> None:
    from speedlab.publishing.generated import write_generated

    write_generated(root / "book" / "_generated", run.folder / "records")


def _jupyter_book(book: Path, out: Path, notebooks: Path) -> Path:
    """Every page anew, warnings are errors: an incremental build would not repeat the warnings of an old page."""
    labs = list(find_labs(notebooks))
    toc = book / "_generated" / "_toc.yml"
    write_text_atomic(toc, contents_with_labs(book / "_toc.yml", labs))
    command = [
        sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(book), "--all",
        "--warningiserror", "--nitpick", "--keep-going", "--path-output", str(out), "--toc", str(toc),
    ]  # fmt: skip
    log = out / "_build" / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=_environment()
        ).returncode
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace"))
    html = out / "_build" / "html"
    pages = [*(f"chapters/{name}" for name in find_chapters(notebooks)), *(f"{LABS}/{name}" for name in labs)]
    missing = [page for page in pages if not (html / f"{page}.html").is_file()]
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
