"""What a million tokens cost in seconds, energy and money. It knows report rows and a price, never a currency."""

from __future__ import annotations

import math
from collections.abc import Iterable

from speedlab.errors import BadInput
from speedlab.profile import PROFILES
from speedlab.publishing import formatting as form
from speedlab.publishing.tables import Row, Table, by_ladder, render, render_tables

# No card is rented for that much; a slip of the keyboard is.
LARGEST_PRICE_PER_HOUR = 1e9


def check_price(price_per_hour: float) -> float:
    """The price as given; `BadInput` unless it is a finite number of at least 0."""
    if not math.isfinite(price_per_hour) or not 0 <= price_per_hour <= LARGEST_PRICE_PER_HOUR:
        raise BadInput(
            f"price per hour is {price_per_hour:g}: it must be a number of at least 0, what one GPU costs for an hour"
        )
    return float(price_per_hour)


def priced_rows(rows: Iterable[Row], price_per_hour: float) -> list[Row]:
    """The rows with `seconds_per_million_tokens`, `price_per_million_tokens` and `price_per_hour`; None if not timed.

    price_per_hour: of one GPU (of the machine, for rows of a CPU), in any currency; a row on four GPUs costs four.
    """
    price_per_hour = check_price(price_per_hour)
    priced = []
    for row in rows:
        seconds = 1e6 / row["tokens_per_s"] if row["tokens_per_s"] else None
        gpus = row["world_size"] if row["gpu"] else 1
        money = seconds * gpus * price_per_hour / 3_600 if seconds is not None else None
        priced.append(
            row
            | {
                "seconds_per_million_tokens": seconds,
                "price_per_million_tokens": money,
                "price_per_hour": price_per_hour,
            }
        )
    return priced


def render_with_cost(rows: Iterable[Row], format: str, price_per_hour: float) -> str:
    """What `render` gives, with the cost: as tables of their own for people, as more keys for programs."""
    rows = priced_rows(rows, price_per_hour)
    if format in ("csv", "json"):
        return render(rows, format)
    return "\n".join(
        text for text in (render(rows, format), render_tables(map(cost_table, by_ladder(rows)), format)) if text
    )


def cost_table(rows: list[Row]) -> Table:
    """The table of one device and ladder. rows: of `priced_rows`, in the order of the ladder."""
    first = rows[0]
    cells = tuple(
        (
            row["rung"],
            form.three_digits(row["seconds_per_million_tokens"]),
            form.three_digits(row["energy_j_per_million_tokens"]),
            form.three_digits(row["tokens_per_joule"]),
            form.significant(row["price_per_million_tokens"]),
        )
        for row in rows
    )
    numbers = ("seconds", "joules", "tokens/J", "price")
    unit = "GPU" if first["gpu"] else "machine"
    notes = [f"price: at {first['price_per_hour']:,g} an hour for one {unit}, in the currency of that number"]
    if any(row["energy_j_per_million_tokens"] for row in rows):
        notes.append("joules: of the GPUs alone, from their own counters; a dash where none was read")
    else:
        notes.append("joules: no energy counter was read when these rows were measured")
    if not PROFILES[first["profile"]].publishable:
        notes.append(f"profile {first['profile']}: {PROFILES[first['profile']].about}")
    return Table(
        title=f"{first['device']}, ladder {first['ladder']}: cost of a million tokens, session {first['session']}",
        columns=("rung", *numbers),
        cells=cells,
        numbers=frozenset(numbers),
        notes=tuple(notes),
    )
