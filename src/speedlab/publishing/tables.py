"""Report rows as text, Markdown, CSV and JSON. It knows rows, computes no speed, and never measures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from speedlab.derived_ladders import NOTES
from speedlab.errors import check_choice
from speedlab.ladder import ladder_with_rungs_of
from speedlab.profile import PROFILES
from speedlab.publishing import formatting as form
from speedlab.records.published import PublishedRow, published_row, published_rows
from speedlab.records.record import REMARK

FORMATS = ("table", "markdown", "csv", "json")

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """Cells as text, ready for any format. `numbers` are the columns whose cells stand to the right."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()
    notes: tuple[str, ...] = field(default=())

    def select(self, names: Iterable[str]) -> Table:
        """The table with these columns, of those that it has, in this order."""
        kept = [self.columns.index(name) for name in names if name in self.columns]
        return replace(
            self,
            columns=tuple(self.columns[index] for index in kept),
            cells=tuple(tuple(line[index] for index in kept) for line in self.cells),
        )

    def without_empty_columns(self) -> Table:
        """The table without columns in which nothing stands, or only dashes."""
        nothing = ("", form.NOTHING)
        return self.select(
            name for index, name in enumerate(self.columns) if any(line[index] not in nothing for line in self.cells)
        )

    def text(self) -> str:
        """Aligned plain text, one line a row, never wrapped or cut."""
        lines = [self.columns, *self.cells]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        aligned = [
            "  ".join(
                cell.rjust(width) if name in self.numbers else cell.ljust(width)
                for name, cell, width in zip(self.columns, line, widths, strict=True)
            ).rstrip()
            for line in lines
        ]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, "", aligned[0], rule, *aligned[1:], *(f"* {note}" for note in self.notes)]) + "\n"

    def markdown(self) -> str:
        """A table for a README or a page of the book: numbers to the right, notes below, no title."""
        rule = ["---:" if name in self.numbers else "---" for name in self.columns]
        lines = ["| " + " | ".join(map(_markdown_cell, line)) + " |" for line in (self.columns, *self.cells)]
        body = [lines[0], "| " + " | ".join(rule) + " |", *lines[1:]]
        notes = ["", *(f"* {_markdown_cell(note)}" for note in self.notes)] if self.notes else []
        return "\n".join([*body, *notes]) + "\n"

    def csv(self) -> str:
        """The same cells for a `csv-table` directive, headings first."""
        return _csv([self.columns, *self.cells])

    def rich(self) -> Any:
        """The same as a rich table, for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=Text(self.title), caption=Text("\n".join(self.notes)), caption_justify="left", box=SIMPLE_HEAD
        )
        for index, name in enumerate(self.columns):
            table.add_column(Text(name), justify="right" if name in self.numbers else "left", no_wrap=index == 0)
        for line in self.cells:
            table.add_row(*map(Text, line))
        return table


def render(rows: Iterable[Row], format: str) -> str:
    """The rows as `speedlab report --format` prints them.

    table, markdown: for people, one table for each device and ladder. csv, json: every key of every row, raw numbers.
    """
    check_choice("format", format, FORMATS)
    rows = list(rows)
    if format == "json":
        return json.dumps(rows, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    if format == "csv":
        return machine_csv(rows)
    return render_tables((ladder_table(group) for group in by_ladder(rows)), format)


def render_tables(tables: Iterable[Table], format: str) -> str:
    """Tables below each other. format: "table" or "markdown"."""
    if format == "table":
        return "\n".join(table.text() for table in tables)
    return "\n".join(f"**{_markdown_cell(table.title)}**\n\n{table.markdown()}" for table in tables)


def by_ladder(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each device and ladder, which one table may hold."""
    return [list(group) for _, group in groupby(rows, key=lambda row: (row["device"], row["ladder"]))]


def machine_csv(rows: list[Row]) -> str:
    """Raw numbers under the keys of the rows; absent values are empty, lists are JSON."""
    if not rows:
        return ""
    cells = [
        [json.dumps(value) if isinstance(value, list | dict) else value for value in row.values()] for row in rows
    ]  # fmt: skip
    return _csv([list(rows[0]), *cells])


def ladder_table(rows: list[Row], *, published: bool = True, titles: bool = False) -> Table:
    """The table of one device and ladder, for people.

    rows: all of one device and ladder. published: with a column of the published figures, where there are any.
    titles: name rungs in words instead of by their keys.
    """
    first, ladder = rows[0], rows[0]["ladder"]
    # Beside the speeds of a toy the figures of a real model would only mislead.
    published = published and PROFILES[first["profile"]].publishable and bool(published_rows(ladder))
    numbers = ["tokens/s", "quartiles", "ms/step", "GiB reserved", "MFU", "of ceiling", "over predicted", "compile s"]
    numbers += ["95 %"]
    columns = ["rung", *numbers[:4], "this step", "95 %", "so far", *numbers[4:8], "bound by", "contract"]
    if published:
        numbers += ["published tokens/s", "published GiB"]
        columns += numbers[-2:]
    columns.append("notes")
    cells = []
    for row in rows:
        line = [
            _name(ladder, row["rung"], titles),
            form.count(row["tokens_per_s"]),
            form.quartile_range(row["tokens_per_s_q1"], row["tokens_per_s_q3"]),
            form.three_digits(row["step_ms_median"]),
            form.gib(row["peak_reserved_bytes"]),
            form.ratio(row["speedup_step"], clear=row["speedup_step_clear"]),
            form.interval(row["speedup_step_low"], row["speedup_step_high"]),
            form.ratio(row["speedup_total"], clear=_is_first(row) or row["speedup_total_clear"]),
            form.percent(row["mfu"]),
            form.percent(row["ceiling_fraction"]),
            form.ratio(row["over_predicted"], clear=True),
            form.three_digits(row["compile_s"]),
            row["predicted_bound_by"] or form.NOTHING,
            contract_words(row),
        ]
        if published:
            line += _published_cells(published_row(ladder, row["rung"]))
        cells.append((*line, row_note(row)))
    notes = table_notes(rows, published=published, titles=titles)
    table = Table(table_title(first), tuple(columns), tuple(cells), numbers=frozenset(numbers), notes=notes)
    return table.without_empty_columns()


def published_table(ladder: str, *, card: str = "A100", source: str | None = None) -> Table:
    """What others published for a ladder, with nothing of ours in it."""
    rows = published_rows(ladder, card=card, source=source)
    cells = tuple(
        (
            rung_title(ladder, row.rung),
            str(row.gpus),
            form.count(row.tokens_per_s),
            form.three_digits(row.step_ms),
            form.three_digits(row.reserved_gib),
        )
        for row in rows
    )
    numbers = ("GPUs", "tokens/s", "ms/step", "GiB reserved")
    return Table(
        title=f"{ladder}, published, {card}",
        columns=("rung", *numbers),
        cells=cells,
        numbers=frozenset(numbers),
        notes=tuple(f"published: {source_words(row)}" for row in rows[:1]),
    )


def rung_title(ladder: str, rung: str) -> str:
    """The rung in words; its key where the ladder does not know it."""
    known = ladder_with_rungs_of(ladder)
    if known is not None and rung in known.keys:
        return known.rung(rung).title
    if rung.startswith("data_parallel_"):
        gpus = rung.removeprefix("data_parallel_")
        return f"DistributedDataParallel, {gpus} GPU{'' if gpus == '1' else 's'}"
    return rung


def _name(ladder: str, rung: str, titles: bool) -> str:
    return rung_title(ladder, rung) if titles else rung


def table_title(row: Row) -> str:
    """Device, ladder and what the rows were measured with."""
    parts = [f"{row['device']}, ladder {row['ladder']}", f"profile {row['profile']}", f"torch {row['torch']}"]
    if row["gpu"]:
        parts.insert(1, row["gpu"])
    return ", ".join([*parts, f"session {row['session']}", row["utc"][:10]])


def table_notes(rows: list[Row], *, published: bool, titles: bool = False) -> tuple[str, ...]:
    """What a reader must know before comparing: a toy profile, whose published figures, what the ratios are over."""
    notes = []
    if not PROFILES[rows[0]["profile"]].publishable:
        notes.append(f"profile {rows[0]['profile']}: {PROFILES[rows[0]['profile']].about}")
    notes += NOTES.get(rows[0]["ladder"], ())
    substitutions = [values for row in rows if row["status"] == "measured" for values in row["substitutions"]]
    notes += dict.fromkeys(form.substitution(values) for values in substitutions)
    if published:
        ladder = rows[0]["ladder"]
        others = published_rows(ladder)
        shown = {row["rung"] for row in rows}
        notes.append(f"published: {source_words(others[0])}; not measured by this project")
        notes += [
            f"the published figure of {_name(ladder, row.published_name, titles)} stands at "
            f"{_name(ladder, row.rung, titles)}, whose change it holds as well"
            for row in others
            if row.published_name in shown and row.rung in shown - {row.published_name}
        ]
    return tuple(notes)


def source_words(row: PublishedRow) -> str:
    """Who published a figure, on what and which statistic it is."""
    source = row.source
    parts = (
        source.title,
        source.hardware,
        source.torch and f"torch {source.torch}",
        source.compile_mode and f"compiled with {source.compile_mode}",
        source.url,
    )
    return ", ".join(part for part in parts if part)


def contract_words(row: Row) -> str:
    """The contract with what came of it: "rounding: passed"."""
    verdict = row["contract_verdict"]
    return row["contract"] if verdict in (None, row["contract"]) else f"{row['contract']}: {verdict}"


def row_note(row: Row) -> str:
    """Why a row is empty, what was substituted, and what was flagged, in one line."""
    parts = [f"{row['status'].replace('_', ' ')}: {row['reason']}"] if row["status"] != "measured" else []
    # The reasons stand once, below the table.
    parts += [f"{s['field']} {s['used']} instead of {s['asked']}" for s in row["substitutions"]]
    parts += [] if row["drift"] is None else [form.drift(row["drift"])]
    parts += [note for note in row["notes"] if not note.startswith(REMARK)]
    return " ".join("; ".join(parts).split())


def _is_first(row: Row) -> bool:
    return row["contract"] == "reference"


def _published_cells(row: PublishedRow | None) -> list[str]:
    if row is None:
        return [form.NOTHING, form.NOTHING]
    several = f" ({row.gpus} GPUs)" if row.gpus > 1 else ""
    return [form.count(row.tokens_per_s) + several, form.three_digits(row.reserved_gib)]


def _markdown_cell(words: str) -> str:
    """One cell: what Markdown would read as a mark is escaped, except in code spans, where only | is one."""
    parts = words.split("`")
    if len(parts) % 2 == 0:  # a lone backtick opens no code span
        parts = [words.replace("`", "'")]
    for index, part in enumerate(parts):
        if index % 2 == 0:
            part = part.replace("\\", "\\\\").replace("<", "&lt;").replace("*", "\\*")
        parts[index] = part.replace("|", "\\|")
    return " ".join("`".join(parts).split())


def _csv(lines: Iterable[Iterable[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()
