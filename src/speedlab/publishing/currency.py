"""Is a page still the one of its source? doit keeps the answer, in a small database inside the run folder.

What doit decides is one chapter inside one run: source file and parameters as they were, the page still there. Which
run may go on at all (same package, machine, session) is decided in `run_folder`, because doit would go on in the same
folder and mix two sessions. The answer is stored after each chapter, in SQLite: doit's own runner stores it at its
end, and a killed run would have to measure everything again.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from speedlab.errors import BadInput

DATABASE = ".doit.db"


def can_remember() -> bool:
    """Whether doit is installed; a machine without it (a bare GPU image) executes everything again each time."""
    return importlib.util.find_spec("doit") is not None


def is_current(folder: Path, name: str, *, page: Path, sources: list[Path], parameters: Mapping[str, Any]) -> bool:
    """Whether `note_current` was called with the same files and values, and the page is there. Writes nothing."""
    if not can_remember() or not (folder / DATABASE).is_file():
        return False
    with _database(folder) as database:
        task = _task(name, page, sources, parameters)
        return database.get_status(task, {}).status == "up-to-date"


def note_current(folder: Path, name: str, *, page: Path, sources: list[Path], parameters: Mapping[str, Any]) -> None:
    """Note that the page was made from these files, as they are now, with these values."""
    if not can_remember():
        return
    with _database(folder) as database:
        task = _task(name, page, sources, parameters)
        database.get_status(task, {})  # computes the values that are saved with the task
        task.save_extra_values()
        database.save_success(task)


def forget(folder: Path, name: str) -> None:
    """The page is to be made again, whatever its files say: an attempt has begun."""
    if can_remember() and (folder / DATABASE).is_file():
        with _database(folder) as database:
            database.remove(name)


def _task(name: str, page: Path, sources: list[Path], parameters: Mapping[str, Any]) -> Any:
    from doit.task import Task
    from doit.tools import config_changed

    return Task(
        name, None, file_dep=[str(path) for path in sources], targets=[str(page)],
        uptodate=[config_changed(dict(parameters))],
    )  # fmt: skip


@contextmanager
def _database(folder: Path) -> Iterator[Any]:
    import sqlite3

    from doit.dependency import DatabaseException, Dependency, SqliteDB

    try:
        database = Dependency(SqliteDB, str(folder / DATABASE))
        try:
            yield database
        finally:
            database.close()
    except (DatabaseException, sqlite3.Error) as error:
        raise BadInput(
            f"{folder / DATABASE} cannot be used ({str(error).splitlines()[0]}): make room, or remove that file and "
            "run `speedlab reproduce` again"
        ) from error
