"""The table of a ladder cut to the width of a page: what is compared, how sure it is, against what limit."""

from __future__ import annotations

from dataclasses import replace

from speedlab.publishing.tables import Row, ladder_table, row_note, rung_title

COMPARED = ("rung", "tokens/s", "ms/step", "GiB reserved", "this step", "so far", "published tokens/s")
SURE = ("rung", "quartiles", "95 %", "contract", "compile s", "published GiB")
LIMITS = ("rung", "MFU", "of ceiling", "over predicted", "bound by")


def page_tables(rows: list[Row]) -> str:
    """The table of one device and ladder for a page, in Markdown. What is odd about a row stands below the first."""
    whole = ladder_table(rows, titles=True)
    remarks = tuple(f"{rung_title(row['ladder'], row['rung'])}: {row_note(row)}" for row in rows if row_note(row))
    first = replace(whole.select(COMPARED), notes=(*whole.notes, *remarks))
    measured = replace(
        whole,
        cells=tuple(line for line, row in zip(whole.cells, rows, strict=True) if row["step_ms_median"]),
        notes=(),
    )
    sure, limits = measured.select(SURE), measured.select(LIMITS)
    parts = [first.markdown()]
    if measured.cells and len(sure.columns) > 1:
        parts.append(f"How sure, and is it the same training?\n\n{sure.markdown()}")
    if measured.cells and len(limits.columns) > 1:
        parts.append(f"Against which limit?\n\n{limits.markdown()}")
    return "\n".join(parts)
