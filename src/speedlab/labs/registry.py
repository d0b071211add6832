"""Which experiments there are. Adding one is adding one entry. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from speedlab.errors import check_choice


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One experiment: the question it answers, and where its function lies, as "module:function".

    The function takes a `Workbench` and a `say(text)` for progress, and yields one plain dictionary for each row, with
    `status` (and `reason` where it is not "measured"). It imports what it needs when it is called.
    """

    name: str
    question: str
    function: str
    gpu: bool = False  # whether it means nothing without one


ENTRIES: tuple[Entry, ...] = ()
EXPERIMENTS: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}


def get_entry(name: str) -> Entry:
    check_choice("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
