"""Shows how far a long command is: a bar for people, one line a step for logs. On standard error, never in results."""

from __future__ import annotations

import sys
from typing import Self


class Progress:
    """Context manager; `show` is called with what is being done, how many steps are done and how many there are."""

    def __init__(self) -> None:
        self._bar = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, text: str, done: int, total: int) -> None:
        """A total of 0 means that the text is a note and counts nothing."""
        if self._bar is None:
            print(f"[{done}/{total}] {text}" if total else text, file=sys.stderr, flush=True)
            return
        from rich.markup import escape

        if total:
            self._bar.update(self._task, description=escape(text), completed=done, total=total)
        else:
            self._bar.console.print(escape(text), highlight=False)
