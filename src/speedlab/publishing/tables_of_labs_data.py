"""Tables of the labs on the data pipeline and on all levers: rows gathered so that what is compared stands together.

Nothing is measured here, and torch is not imported. Kinds of rows that an experiment lacks give tables without lines.
"""

from __future__ import annotations

from typing import Any

from speedlab.publishing import formatting as form
from speedlab.publishing import words_of_labs_data as words
from speedlab.publishing.tables import Table
from speedlab.publishing.words_of_labs_inside import find
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
DOES_NOT_FIT = "out of memory"


def pipeline_table(experiment: Experiment) -> list[Table]:
    """Each way to feed the step against the step that finds its batch on the device."""
    resident, rows = find(experiment, what="resident"), find(experiment, what="pipeline")
    cells = [
        (words.source(row), form.count(row["workers"]), words.carried(row), words.mean_ms(row), words.interval_ms(row),
         words.longer(row, resident[0]) if resident else form.NOTHING, form.percent(row.get("starved_share")),
         form.three_digits(row.get("load_ms")))
        for row in (*resident, *rows)
    ]  # fmt: skip
    numbers = ("workers", "ms", "95 %", "longer", "waits", "load, ms")
    notes = (
        "ms: mean steps, since workers deliver in bursts; 95 %: interval of the mean, as if steps were independent; "
        f"longer: than with the batch on the device, “{words.UNCLEAR}” where the intervals meet",
        "waits: share of the time in which the device waits for its batch; load: of one that nothing hides",
    )
    return [_table("How the ids come to the device", ("ids", "workers", "carried"), numbers, cells, *notes)]


def slow_table(experiment: Experiment) -> list[Table]:
    """Slowed loaders, measured beside predicted."""
    cells = [
        (form.count(row["workers"]), form.three_digits(row["delay_ms"]), words.mean_ms(row), words.interval_ms(row),
         form.three_digits(row["predicted_step_ms"]), form.percent(row.get("starved_share")))
        for row in find(experiment, what="slow")
    ]  # fmt: skip
    numbers = ("workers", "ms of delay", "ms per step", "95 %", "predicted", "device waits")
    return [_table("A loader that is slowed on purpose", (), numbers, cells)]


def shaping_table(experiment: Experiment) -> list[Table]:
    """Padding, lengths and speed of each way to make batches of texts."""
    cells = [
        (row["shaping"].replace("_", " "), form.percent(row["padding_share"]), form.count(row["different_shapes"]),
         form.three_digits(row["trained_tokens_per_s"] / 1e3), form.count(words.slow_steps(row)),
         form.count(len(row["step_ms"])))
        for row in find(experiment, what="shaping")
    ]  # fmt: skip
    numbers = ("padding", "lengths", "trained k tokens/s", "slow steps", "of")
    note = "lengths: how many different ones the batches had; slow: more than three times the median step"
    return [_table("Four ways to make batches of texts", ("batches",), numbers, cells, note)]


def path_tables(experiment: Experiment) -> list[Table]:
    """The decision path of each card, predicted."""
    tables = []
    for budget in _budgets(experiment, "path"):
        cells = [
            (row["question"], words.change(row), row["cost"], form.gib(row["peak_allocated_bytes"]),
             form.gib(row["needed_bytes"]), "yes" if row["fits"] else "no")
            for row in find(experiment, what="path", budget_gib=budget)
        ]  # fmt: skip
        columns = ("question", "then change", "at the cost of", "GiB of tensors", "GiB of the card", "fits")
        tables.append(
            Table(title=f"The path for a card of {budget} GB, by plan", columns=columns, cells=tuple(cells),
                  numbers=frozenset(columns[3:5]))
        )  # fmt: skip
    return tables


def levers_table(experiment: Experiment) -> list[Table]:
    """Every lever on the whole card: speed, memory, waiting, first losses."""
    rows = find(experiment, what="whole")
    plain = next((row for row in rows if row["variant"] == "baseline"), None)
    cells = [
        (row["variant"], words.thousand_tokens(row), words.times(row, plain), form.gib(row["peak_allocated_bytes"]),
         form.gib(row["predicted_peak_bytes"]), form.percent(row.get("starved_share")), *_losses(row))
        for row in rows
    ]  # fmt: skip
    numbers = ("k tokens/s", "speed", "GiB held", "planned", "device waits", "first loss", "second", "third")
    shape = f": {rows[0]['micro_batch']} x {rows[0]['context_length']:,} tokens" if rows else ""
    return [_table(f"Three levers on the whole card{shape}", ("variant",), numbers, cells)]


def budget_tables(experiment: Experiment) -> list[Table]:
    """Speed of what fits the emulated cards, and what the plan had said."""
    rows = [row for row in experiment.rows if row.get("what") == "budget"]
    places = list(dict.fromkeys((row["budget_gib"], row["micro_batch"], row["accumulation"]) for row in rows))
    found = {(row["variant"], (row["budget_gib"], row["micro_batch"], row["accumulation"])): row for row in rows}
    columns = tuple(f"{budget} GB, {batch} x {parts}" for budget, batch, parts in places)
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    fast = [(name, *(_outcome(found.get((name, place))) for place in places)) for name in variants]
    said = [(name, *(_plan(found.get((name, place))) for place in places)) for name in variants]
    context = f" at {rows[0]['context_length']:,} tokens of context" if rows else ""
    notes = ("sequences x passes of one update; memory is that of the emulated card, speed that of the card that ran",)
    return [
        _table(f"Thousand tokens a second on emulated cards{context}", ("variant",), columns, fast, *notes),
        _table("What the plan had said: GiB of the card, reserve included", ("variant",), columns, said,
               "fits: it said that this fits; wrong: the run decided otherwise"),
    ]  # fmt: skip


def other_models_table(experiment: Experiment) -> list[Table]:
    """The levers on models of Hugging Face, side by side."""
    rows = find(experiment, what="hf")
    models = list(dict.fromkeys(row["model"] for row in rows))
    found = {(row["variant"], row["model"]): row for row in rows}
    columns: tuple[str, ...] = ()
    for model in models:
        columns += (f"{model}: k tokens/s", "speed", "GiB held", "third loss")
    cells = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        line = [variant]
        for model in models:
            row = found.get((variant, model))
            line += (
                [words.thousand_tokens(row), words.times(row, found.get(("baseline", model))),
                 form.gib(row["peak_allocated_bytes"]), *_losses(row)[-1:]]
                if row else [form.NOTHING] * 4
            )  # fmt: skip
        cells.append(tuple(line))
    versions = [f"{name} {rows[0][name]}" for name in ("transformers", "accelerate") if rows and name in rows[0]]
    sizes = [f"{row['model']} {row['parameters'] / 1e6:,.0f} M weights" for row in rows
             if row["variant"] == "baseline" and "parameters" in row]  # fmt: skip
    return [_table("The levers on models of Hugging Face", ("variant",), columns, cells, ", ".join(versions + sizes))]


def _outcome(row: Row | None) -> str:
    if row is None:
        return form.NOTHING
    if row["status"] == "measured":
        return words.thousand_tokens(row)
    return DOES_NOT_FIT if row["status"] == "out_of_memory" else row["status"].replace("_", " ")


def _plan(row: Row | None) -> str:
    if row is None:
        return form.NOTHING
    wrong = row["status"] in ("measured", "out_of_memory") and row["predicted_fits"] != (row["status"] == "measured")
    fits = ", fits" if row["predicted_fits"] else ""
    return f"{form.gib(row['predicted_needed_bytes'])}{fits}{' (wrong)' if wrong else ''}"


def _losses(row: Row) -> list[str]:
    losses = [f"{loss:.4f}" for loss in row.get("losses", ())][:3]
    return losses + [form.NOTHING] * (3 - len(losses))


def _budgets(experiment: Experiment, what: str) -> list[int]:
    return list(dict.fromkeys(row["budget_gib"] for row in find(experiment, what=what)))


def _table(title: str, names: tuple[str, ...], numbers: tuple[str, ...], cells: list, *notes: str) -> Table:
    columns = (*names, *(name for name in numbers if name not in names))
    return Table(title=title, columns=columns, cells=tuple(tuple(line) for line in cells),
                 numbers=frozenset(numbers), notes=tuple(note for note in notes if note))  # fmt: skip
