"""Options and small texts that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

ProfileName = Annotated[str, typer.Option("--profile", help="full, t4, smoke, or auto: by this machine's GPU.")]
CorpusName = Annotated[
    str, typer.Option("--corpus", help="standard-library, middlemarch, shakespeare, or the path of a file or folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def words(text: str) -> list[str]:
    """The parts of a list joined by commas."""
    return [word.strip() for word in text.split(",")]


def event_text(event: Any) -> str:
    return f"{event.rung}: {event.text}" if event.rung else event.text


def print_rows(rows: list[dict[str, Any]], form: str, price_per_hour: float | None = None) -> None:
    from speedlab.publishing.cost import render_with_cost
    from speedlab.publishing.tables import render

    text = render(rows, form) if price_per_hour is None else render_with_cost(rows, form, price_per_hour)
    print(text, end="")


def print_plain_rows(rows: list[dict[str, Any]]) -> None:
    """Rows as columns of text, one column for each name that any of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = [names, *([_plain(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[index]) for line in table) for index in range(len(names))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _plain(value: Any) -> str:
    return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
