"""What each change contributes, as tables and words for a page. It knows shares and computes none."""

from __future__ import annotations

from collections.abc import Iterable

from speedlab.ladder import NINE_STEPS
from speedlab.publishing import formatting as form
from speedlab.publishing.facts import device_title
from speedlab.publishing.tables import Row, Table
from speedlab.records.attribution import Attribution, Share, attribute

WORDS = (
    "A speed-up is a product of ratios, so its logarithm is a sum. The *share* of a change is the logarithm of its own "
    "ratio over that of the whole speed-up on one GPU. *Along* the order of the chapters the shares add up to the "
    "whole. *Alone* is the change on the baseline and nothing else, *removed* is what the top loses without it, both "
    "as parts of the same whole: they need not add up, and what is missing or too much is what the changes do to each "
    "other. *Over orders* is the least and the largest share in the orders that were measured.\n\n"
)
NUMBERS = ("along", "alone", "removed", "over orders")


def attribution_section(rows: Iterable[Row]) -> str:
    """The fragment of a page, from report rows: two tables for each device, and in words what they lack."""
    found = [one for one in attribute(rows) if _has_shares(one)]
    if not found:
        command = f"`speedlab ladder --ladder {NINE_STEPS.name}`"
        return (
            f"No whole ladder is committed yet whose speed-up could be shared out: {command} measures one on a GPU.\n"
        )
    return WORDS + "".join(
        f"### What each change contributes on {device_title(one.device)}\n\n{changes_table(one).markdown()}\n"
        f"The same, by layer:\n\n{layers_table(one).markdown()}\n"
        for one in found
    )


def changes_table(one: Attribution) -> Table:
    """One row for each change, each share with its ratio, and the sums."""
    cells = [
        (
            NINE_STEPS.rung(row["rung"]).title,
            *(_share_words(row[name]) for name in ("along", "alone", "removed")),
            _range_words(row),
        )
        for row in one.rows
    ]
    sums = tuple(_sum_words([row[name] for row in one.rows]) for name in ("along", "alone", "removed"))
    notes = ["unclear: the difference does not exceed the spread", *one.gaps]
    if any(row[name] and row[name].inert for row in one.rows for name in ("along", "alone", "removed")):
        notes.insert(1, "inert: the rest of the recipe does not read what the change sets")
    return Table(
        title=f"What each change contributes, {one.device}",
        columns=("change", *NUMBERS),
        cells=(*cells, ("all together", *sums, form.NOTHING)),
        numbers=frozenset(NUMBERS),
        notes=tuple(notes),
    )


def layers_table(one: Attribution) -> Table:
    """One row for each layer of changes."""
    cells = tuple(
        (row["layer"], *(form.percent(row[name]) for name in ("along", "alone", "removed")), _range_words(row))
        for row in one.layers
    )
    return Table(
        title=f"By layer, {one.device}", columns=("layer", *NUMBERS), cells=cells, numbers=frozenset(NUMBERS)
    )  # fmt: skip


def _has_shares(one: Attribution) -> bool:
    return any(row["orders"] for row in one.rows)


def _share_words(share: Share | None) -> str:
    if share is None:
        return form.NOTHING
    if share.inert:
        return "inert"
    if share.value is None:
        return form.NOTHING
    doubt = "" if share.clear else ", unclear"
    return f"{_percent(share.value)} ({form.three_digits(share.ratio)}x{doubt})"


def _percent(share: float) -> str:
    """A part that rounds to nothing has no sign."""
    words = form.percent(share)
    return words.removeprefix("-") if float(words.removesuffix(" %")) == 0 else words


def _sum_words(shares: list[Share | None]) -> str:
    values = [share.value for share in shares if share is not None and share.value is not None]
    return form.percent(sum(values)) if values else form.NOTHING


def _range_words(row: Row) -> str:
    if len(row["orders"]) < 2:
        return form.NOTHING
    return f"{_percent(row['low'])} to {_percent(row['high'])} ({len(row['orders'])} orders)"
