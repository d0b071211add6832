"""Commands that show records: none of them imports torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from speedlab.commands.shared import print_rows
from speedlab.errors import BadInput, check_choice

FORMATS = ("table", "markdown", "csv", "json")


def report(
    records: Annotated[Path | None, typer.Option(help="Folder of records; the committed ones by default.")] = None,
    form: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",
    price_per_hour: Annotated[
        float | None, typer.Option(help="What one GPU costs for an hour: adds seconds, joules and money.")
    ] = None,
) -> None:
    """Show what was measured: one row per record."""
    check_choice("format", form, FORMATS)
    from speedlab.records.rows import report_rows
    from speedlab.records.store import committed_root, read_records

    folder = records or committed_root()
    rows = report_rows(read_records(folder))
    print_rows(rows, form, price_per_hour)
    if not rows:
        print(f"no records below {folder}", file=sys.stderr)


def compare(
    a: Annotated[str, typer.Argument(help="Folder of records.")],
    b: Annotated[str, typer.Argument(help="Another one; by default the committed records.")] = "published",
    form: Annotated[str, typer.Option("--format", help="table, markdown, json")] = "table",
    figure: Annotated[Path | None, typer.Option(help="Draw it too, into this new SVG file.")] = None,
) -> None:
    """Put two folders of records side by side: what is faster, and what differs."""
    from speedlab.publishing.compare import FORMATS, compare_folders, render_comparison

    check_choice("format", form, FORMATS)
    comparison = compare_folders(a, b)
    if figure is not None:
        from speedlab.publishing.figure_of_comparison import comparison_figure
        from speedlab.publishing.plotting import save_svg

        if figure.suffix != ".svg":
            raise BadInput(f"cannot draw into {figure}: the name of the figure must end in .svg")
        save_svg(comparison_figure(comparison), figure)
    print(render_comparison(comparison, form), end="")
