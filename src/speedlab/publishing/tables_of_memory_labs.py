"""Tables of the memory labs: rows of one experiment gathered so that what is compared stands side by side.

Nothing is measured here, and torch is not imported. A kind of row that an experiment lacks gives a table without lines.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from speedlab.publishing import formatting as form
from speedlab.publishing.lab_rows import apart, middle, middle_speed, of, tokens_per_s
from speedlab.publishing.tables import Table
from speedlab.publishing.words_of_memory_labs import error_cell, found_cell, held_cell, reserved_cell, step_cell
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
# Half a unit in the last place of a number near 1: what one rounding may cost.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16_autocast": 2.0**-11}
RETRIES = "in {} of {} rows the allocator handed blocks back to the driver to find room"


def accumulation_tables(experiment: Experiment) -> list[Table]:
    """More parts for each update; the same update in one piece or in parts."""
    return [_more_parts(experiment), _one_piece_or_parts(experiment)]


def accumulation_extras(experiment: Experiment) -> list[Table]:
    """Clipping and the scaler beside the plain step with as many parts."""
    extras = of(experiment, "extra")
    same = {(row["accumulation"], row["micro_batch"]) for row in extras}
    plain = [
        row for row in of(experiment, "micro_steps")
        if row["compile"] == "off" and (row["accumulation"], row["micro_batch"]) in same
    ]  # fmt: skip
    cells = [
        (row.get("name", "plain"), row["precision"].replace("_", " "), step_cell(row), middle(row), held_cell(row))
        for row in (*plain, *extras)
    ]
    parts = "".join(f": {count} parts of {size} sequences" for count, size in sorted(same)[:1])
    return [_table(f"Clipping and the scaler{parts}", ("step", "precision"),
                   ("ms", "middle half of the steps, ms", "GiB held"), cells if extras else [])]  # fmt: skip


def gradient_table(experiment: Experiment) -> list[Table]:
    """How far the gradients of parts are from those of the whole, beside one rounding of the format."""
    cells = [
        (row["precision"].replace("_", " "), error_cell(row), f"{ROUNDING[row['precision']]:.1e}"
         if row["precision"] in ROUNDING else form.NOTHING)
        for row in of(experiment, "gradients")
    ]  # fmt: skip
    return [_table("Gradients in four parts against one piece", ("format",),
                   ("relative error", "one rounding"), cells)]  # fmt: skip


def checkpointing_table(experiment: Experiment) -> list[Table]:
    """Each way against the plain step of its setting: time and memory, one pair of columns for each setting."""
    variants = of(experiment, "variant")
    settings = list(dict.fromkeys((row["compile"], row["micro_batch"], row["context_length"]) for row in variants))
    found = {((row["compile"], row["micro_batch"], row["context_length"]), row["way"]): row for row in variants}
    columns, notes = [], []
    for mode, batch, context in settings:
        name = f"{'eager' if mode == 'off' else 'compiled'}, {batch} x {context:,}"
        columns += [f"{name}: time", "memory"]
        if plain := found.get(((mode, batch, context), "off")):
            notes.append(
                f"plain step {name}: {step_cell(plain)} ms, {held_cell(plain)} GiB held by tensors at the peak"
            )
    cells = []
    for way in dict.fromkeys(row["way"] for row in variants if row["way"] != "off"):
        line = [way.replace("_", " ")]
        for setting in settings:
            line += _against(found.get((setting, way)), found.get((setting, "off")))
        cells.append(tuple(line))
    notes.append("time in plain steps; ~: no clear difference, which the spread of the steps covers")
    return [_table("Time and memory against the plain step", ("way",), tuple(columns), cells, *notes)]


def runs_table(experiment: Experiment) -> list[Table]:
    """How often parts ran forward, and how far the gradients are from the plain step's."""
    errors = {row["way"]: error_cell(row) for row in of(experiment, "gradients")}
    counted: dict[str, Row] = {}
    for row in of(experiment, "variant"):
        if row.get("attention_runs") is not None:
            counted.setdefault(row["way"], row)
    ways = [*counted, *(way for way in errors if way not in counted)]
    cells = [
        (way.replace("_", " "), *(form.count(counted.get(way, {}).get(name)) for name in
                                  ("attention_runs", "feed_forward_runs")), errors.get(way, form.NOTHING))
        for way in ways
    ]  # fmt: skip
    return [_table("What a step runs forward, recomputation included", ("way",),
                   ("attention parts", "feed-forward parts", "gradient error"), cells)]  # fmt: skip


def limits_table(experiment: Experiment) -> list[Table]:
    """What fits on smaller cards by way of checkpointing: sequences, and tokens of one sequence."""
    found = {(row["kind"], row["way"], row["card"]): row for kind in ("largest", "longest")
             for row in of(experiment, kind)}  # fmt: skip
    cards = list(dict.fromkeys(card for _, _, card in found))
    cells = [
        (way.replace("_", " "),
         *(found_cell(found.get((kind, way, card), {})) for kind in ("largest", "longest") for card in cards))
        for way in dict.fromkeys(way for _, way, _ in found)
    ]  # fmt: skip
    columns = tuple(f"{what}, {card}" for what in ("sequences", "longest context") for card in cards)
    notes = ["the cards are emulated: the allocator of the large card stops at their size",
             "longest context: of one sequence, tried in doublings; bound: the search went no further"]  # fmt: skip
    return [_table("What fits on smaller cards", ("checkpointing",), columns, cells, *notes)]


def fill_table(experiment: Experiment) -> list[Table]:
    """Speed over how full an emulated card is."""
    fills = [row for row in of(experiment, "fill") if row["peak_reserved_bytes"]]
    best = max((tokens_per_s(row) for row in fills), default=1.0)
    cells = [
        (form.count(row["micro_batch"]), form.percent(row["peak_reserved_bytes"] / row["limit_bytes"]),
         form.three_digits(tokens_per_s(row) / 1e3), form.percent(tokens_per_s(row) / best))
        for row in fills
    ]  # fmt: skip
    title = f"How full a card should be: {fills[0]['card']}, emulated" if fills else "How full a card should be"
    notes = [RETRIES.format(sum(row["allocation_retries"] > 0 for row in fills), len(fills))] if fills else []
    return [_table(title, (), ("sequences", "of the card reserved", "k tokens/s", "of the best"), cells, *notes)]


def batch_tables(experiment: Experiment) -> list[Table]:
    """Throughput by micro-batch, eager beside compiled."""
    found = of(experiment, "batch")
    columns, lines = _eager_beside_compiled(found, "micro_batch")
    cells = [(*line, held_cell(first), reserved_cell(first)) for first, line in lines]
    retries = [row for row in found if row["allocation_retries"]]
    notes = [RETRIES.format(len(retries), len(found))] if found else []
    return [_table("Throughput by micro-batch", (), ("sequences", *columns, "GiB held", "GiB reserved"), cells, *notes)]


def grid_and_limits(experiment: Experiment) -> list[Table]:
    """The same tokens cut otherwise, and the largest batch of three cards."""
    grid = sorted(of(experiment, "grid"), key=lambda row: row["context_length"])
    best = max((tokens_per_s(row) for row in grid), default=1.0)
    lines = [
        (f"{row['micro_batch']} x {row['context_length']:,}", form.three_digits(tokens_per_s(row) / 1e3),
         form.percent(tokens_per_s(row) / best), held_cell(row))
        for row in grid
    ]  # fmt: skip
    tokens = f"{grid[0]['tokens_per_step']:,} tokens a step, cut otherwise" if grid else "The same tokens"
    limits = [
        (f"{row['card']}{', emulated' if row['emulated'] else ''}", found_cell(row), reserved_cell(row), held_cell(row))
        for row in of(experiment, "largest")
    ]
    return [
        _table(tokens, ("sequences x context",), ("k tokens/s", "of the best", "GiB held"), lines),
        _table("The largest micro-batch", ("card",), ("sequences", "GiB reserved", "GiB held"), limits),
    ]


def _eager_beside_compiled(found: list[Row], key: str) -> tuple[tuple[str, ...], list[tuple[Row, list[str]]]]:
    """Speed and its middle half for each mode: headings, and for each value of `key` its first row and its cells."""
    modes = list(dict.fromkeys(row["compile"] for row in found))
    names = ["eager" if mode == "off" else "compiled" for mode in modes]
    columns = tuple(heading for name in names for heading in (f"{name}, k tokens/s", f"middle half, {name}"))
    rows = {(row[key], row["compile"]): row for row in found}
    lines = []
    for value in dict.fromkeys(row[key] for row in found):
        line = [form.count(value)]
        for mode in modes:
            row = rows.get((value, mode))
            line += [form.three_digits(tokens_per_s(row) / 1e3), middle_speed(row)] if row else [form.NOTHING] * 2
        lines.append((next(rows[value, mode] for mode in modes if (value, mode) in rows), line))
    return columns, lines


def _more_parts(experiment: Experiment) -> Table:
    found = of(experiment, "micro_steps")
    columns, lines = _eager_beside_compiled(found, "accumulation")
    cells = [
        (*line, form.percent(median(first["update_ms"]) / median(first["step_ms"])), held_cell(first))
        for first, line in lines
    ]
    size = f": parts of {found[0]['micro_batch']} sequences" if found else ""
    return _table(f"More parts for each update{size}", (), ("K", *columns, "update's share", "GiB held"), cells)


def _one_piece_or_parts(experiment: Experiment) -> Table:
    found = of(experiment, "split")
    whole = {row["total_batch"]: row for row in found if row["accumulation"] == 1}
    cells = []
    for row in found:
        piece = whole.get(row["total_batch"])
        cells.append((
            f"{row['accumulation']} x {row['micro_batch']}", step_cell(row), form.three_digits(tokens_per_s(row) / 1e3),
            form.percent(tokens_per_s(row) / tokens_per_s(piece)) if piece else form.NOTHING, held_cell(row),
            form.three_digits(median(row["step_ms"]) / row["accumulation"]),
        ))  # fmt: skip
    return _table("The same update in one piece or in parts", ("K x micro-batch",),
                  ("ms per update", "k tokens/s", "speed of one piece", "GiB held", "ms per part"), cells)  # fmt: skip


def _against(row: Row | None, plain: Row | None) -> list[str]:
    if row is None or plain is None:
        return [form.NOTHING] * 2
    time = f"{'' if apart(row, plain) else '~ '}{form.three_digits(median(row['step_ms']) / median(plain['step_ms']))}x"
    if not row["peak_allocated_bytes"] or not plain["peak_allocated_bytes"]:
        return [time, form.NOTHING]
    return [time, form.percent(row["peak_allocated_bytes"] / plain["peak_allocated_bytes"])]


def _table(title: str, words: tuple[str, ...], numbers: tuple[str, ...], cells: list, *notes: str) -> Table:
    """A table whose first columns are words and whose others are numbers."""
    return Table(title=title, columns=(*words, *numbers), cells=tuple(tuple(line) for line in cells),
                 numbers=frozenset(numbers), notes=tuple(notes))  # fmt: skip
