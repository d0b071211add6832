"""What must hold of an executed chapter before anybody sees it as a page; it runs nothing and repairs nothing.

The status that papermill stores is not enough: a killed kernel and `sys.exit(0)` both leave a notebook that looks
finished. So the last code cell must have emitted the chapter's result, and the result must be of the run asked for.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from nbformat import NotebookNode

RESULT_MIME = "application/vnd.speedlab.result+json"
RESULT_FIELDS = ("chapter", "profile", "steps", "source", "status", "session", "records")
PAPERMILL_ERROR_TAGS = {"papermill-error-cell-tag", "papermill-error-cell"}


def problems_of(
    notebook: NotebookNode, chapter: str, *, run: Path | None = None, asked: dict[str, Any] | None = None
) -> list[str]:
    """Everything that keeps this notebook from being published, each in a few words; empty when it is sound.

    chapter: stem of its source, "01_causal_mask". run: folder that its records must lie in. asked: the parameters
    that it was to run with (profile, steps, source); "auto" and 0 leave the choice to the chapter.
    """
    problems = []
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    if not code_cells:
        return ["it has no code cell"]
    for number, cell in enumerate(code_cells, start=1):
        problems += [f"code cell {number} {what}" for what in _problems_of_cell(cell)]
    result = _result_of_cell(code_cells[-1])
    if result is None:
        problems.append("its last code cell holds no result: it did not run to its end")
    else:
        problems += problems_of_result(result, chapter, run=run, asked=asked)
    return problems


def last_started_cell(notebook: NotebookNode) -> str | None:
    """Which code cell ran last, with its first line, for a run that died: "code cell 3 (model = build(...))"."""
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # A kernel that dies at once never reports the count of its last cell; papermill's note on the cell is there.
    started = [
        (n, cell)
        for n, cell in enumerate(code_cells, start=1)
        if cell.get("execution_count") is not None or cell.metadata.get("papermill", {}).get("exception") is not None
    ]
    if not started:
        return None
    number, cell = started[-1]
    lines = [line.strip() for line in cell.source.splitlines()]
    first = next((line for line in lines if line and not line.startswith("#")), "empty")
    return f"code cell {number} ({first[:60]})"


def error_outputs(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    """(number of the code cell, error output) for each error that a cell raised."""
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        (number, output)
        for number, cell in enumerate(code_cells, start=1)
        for output in cell.outputs
        if output.output_type == "error"
    ]


def first_error(notebook: NotebookNode) -> str | None:
    """`Name: message` of the first error output, with the number of its cell, in one line; None without an error."""
    for number, output in error_outputs(notebook):
        return f"code cell {number}: {_one_line(f'{output.ename}: {output.evalue}')}"
    return None


def final_result(notebook: NotebookNode) -> dict[str, Any] | None:
    """The result that the last code cell emitted, or None."""
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    return _result_of_cell(code_cells[-1]) if code_cells else None


def problems_of_result(
    result: Any, chapter: str, *, run: Path | None = None, asked: dict[str, Any] | None = None
) -> list[str]:
    """What is wrong with a result: fields, the chapter it names, the parameters it ran with, the records it lists."""
    if not isinstance(result, dict) or set(result) != set(RESULT_FIELDS):
        return [f"its result must have exactly the fields {', '.join(RESULT_FIELDS)}"]
    problems = []
    if result["chapter"] != chapter:
        problems.append(f"its result is of chapter {result['chapter']!r}")
    for name, value in (asked or {}).items():
        left_open = value == "auto" or (name == "steps" and value == 0)
        if result.get(name) != value and not left_open:
            problems.append(f"it ran with {name}={result.get(name)!r}, asked was {value!r}")
    if result["status"] in ("failed", "error"):
        problems.append(f"its result says {result['status']}")
    records = result["records"]
    if not isinstance(records, list) or not all(isinstance(path, str) for path in records):
        return [*problems, "its result must list its records as paths"]
    for path in records:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts:
            problems.append(f"its record {path} does not lie in the run")
        elif run is not None and not (run / pure).is_file():
            problems.append(f"its record {path} is missing")
    return problems


def _problems_of_cell(cell: NotebookNode) -> list[str]:
    problems = []
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors:
        problems.append(f"holds an error ({_one_line(f'{errors[0].ename}: {errors[0].evalue}')})")
    if PAPERMILL_ERROR_TAGS & set(cell.metadata.get("tags", ())):
        problems.append("is papermill's error banner")
    if cell.get("execution_count") is None:
        problems.append("was not executed")
    papermill = cell.metadata.get("papermill", {})
    if papermill.get("exception"):
        problems.append("raised an exception")
    if papermill.get("status") != "completed":
        problems.append(f"has papermill status {papermill.get('status')!r}, not completed")
    return problems


def _result_of_cell(cell: NotebookNode) -> dict[str, Any] | None:
    found = [output.data[RESULT_MIME] for output in cell.outputs if RESULT_MIME in output.get("data", {})]
    return found[-1] if found else None


def _one_line(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
