"""Keeps the result table of README.md equal to the records: `python -m speedlab.publishing.readme` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from speedlab.errors import BadInput
from speedlab.ladder import NINE_STEPS
from speedlab.publishing.checkout import checkout_root
from speedlab.publishing.facts import device_title
from speedlab.publishing.tables import by_ladder, ladder_table
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_records, write_text_atomic

START, END = "<!-- results: made by `python -m speedlab.publishing.readme` -->", "<!-- end of results -->"
COLUMNS = ("rung", "tokens/s", "this step", "so far", "GiB reserved", "contract", "published tokens/s")


def results_block() -> str:
    """The table of each device that climbed ladder nine-steps, with the published figures beside it."""
    groups = [
        group
        for group in by_ladder(report_rows(read_records(committed_root())))
        if group[0]["ladder"] == NINE_STEPS.name
    ]
    parts = [
        f"**Measured on {device_title(group[0]['device'])}** "
        f"(torch {group[0]['torch']}, session {group[0]['session']}); "
        f"*published* figures: one A100, by others.\n\n{ladder_table(group, titles=True).select(COLUMNS).markdown()}"
        for group in groups
    ]
    return "\n".join(parts) or "No records are committed yet.\n"


def updated(readme: str) -> str:
    """The text of README.md with its table made anew. `BadInput` when the two marks are not there once each."""
    pattern = re.compile(f"{re.escape(START)}\n.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        raise BadInput(f"README.md must hold the line {START} once, and {END} after it")
    return pattern.sub(lambda _: f"{START}\n\n{results_block()}\n{END}", readme)


def main(readme: Path) -> None:
    write_text_atomic(readme, updated(readme.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(checkout_root() / "README.md")
