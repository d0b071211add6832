"""What the lab of the memory planner shows: predicted against measured, cards, shapes on paper. It measures nothing."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from speedlab.cards import CARDS
from speedlab.errors import BadInput
from speedlab.memory_fit import largest_micro_batch, needed_bytes, on_card
from speedlab.memory_paper import GB, SHAPES, STATES, accelerate_estimate, paper_plan, state_bytes
from speedlab.memory_plan import total_parameters
from speedlab.publishing import formatting as form
from speedlab.publishing.memory_parts import signed_percent
from speedlab.publishing.plotting import LOST, MEASURED, MUTED, SKY, bar_rows, legend_below, new_chart, styled
from speedlab.publishing.tables import Table
from speedlab.recipe import Recipe
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
FEW = 3  # names that a note lists; more are counted


def error(row: Row) -> float:
    """Predicted over measured, less one."""
    return row["predicted_allocated_bytes"] / row["measured_allocated_bytes"] - 1


def accuracy_table(experiment: Experiment) -> list[Table]:
    """Predicted against measured, the largest error first. Notes say which rows have no measured peak, and why."""
    rows = sorted(experiment.measured, key=lambda row: -abs(error(row)))
    cells = tuple(
        (row["name"], form.gib(row["predicted_allocated_bytes"]), form.gib(row["measured_allocated_bytes"]),
         signed_percent(error(row)), form.gib(row["measured_reserved_bytes"]), row["peak_at"])
        for row in rows
    )  # fmt: skip
    left = [row for row in experiment.rows if row not in rows]
    if not cells:  # nothing was measured: what was predicted stands alone
        cells = tuple((row["name"], form.gib(row.get("predicted_allocated_bytes")), *[form.NOTHING] * 3,
                       row.get("peak_at", form.NOTHING)) for row in left)  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for row in left:
        reasons.setdefault(row["reason"] or row["status"], []).append(row["name"])
    notes = [
        f"no measured peak of {', '.join(names) if len(names) <= FEW else f'{len(names)} recipes'}: {reason}"
        for reason, names in reasons.items()
    ]
    numbers = ("predicted GiB", "allocated GiB", "error", "reserved GiB")
    return [Table(title="The peak of a step, predicted and measured", columns=("recipe", *numbers, "peak at"),
                  cells=cells, numbers=frozenset(numbers), notes=tuple(notes))]  # fmt: skip


def share_words(experiment: Experiment, name: str = "124M, TF32") -> str:
    """What share of the peak weights, gradients and moments have in the recipe that the page asks about."""
    row = next((row for row in experiment.measured if row["name"] == name), None)
    if row is None:
        return f"The recipe {name} was not measured."
    parts, whole = row["predicted_parts"], row["predicted_allocated_bytes"]
    state = sum(parts[part] for part in ("weights", "gradients", "optimizer"))
    return (
        f"{name} peaks at {form.gib(row['measured_allocated_bytes'])} GiB. Weights and moments are "
        f"{form.percent(state / whole)} of it by plan, and gradients {form.percent(parts['gradients'] / whole)}: the "
        f"peak is at the {row['peak_at']}, where activations have {form.percent(parts['activations'] / whole)} and "
        f"logits {form.percent(parts['logits'] / whole)}."
    )


def planned_against_measured(experiment: Experiment) -> Figure:
    """For each recipe a ring at the predicted peak, a dot at the measured one, a tick at what was reserved."""
    rows = experiment.measured
    if not rows:
        raise BadInput(f"experiment {experiment.name} on {experiment.device} measured nothing that could be drawn")
    predicted = [row["predicted_allocated_bytes"] / 2**30 for row in rows]
    measured = [row["measured_allocated_bytes"] / 2**30 for row in rows]
    reserved = [row["measured_reserved_bytes"] / 2**30 for row in rows]
    sentences = "; ".join(
        f"{row['name']} {form.three_digits(p)} predicted, {form.three_digits(m)} measured, {form.three_digits(r)} "
        "reserved"
        for row, p, m, r in zip(rows, predicted, measured, reserved, strict=True)
    )
    with styled():
        figure, (axis,) = new_chart(
            len(rows),
            title=f"Peak memory, predicted and measured: {experiment.machine['gpu'] or 'CPU'}",
            alt=f"GiB at the peak: {sentences}.",
        )
        places = range(len(rows))
        axis.scatter(reserved, places, marker="|", s=90, color=SKY, linewidth=2.4, label="reserved by the allocator")
        axis.hlines(places, predicted, measured, color=MUTED, linewidth=1.4)
        axis.scatter(measured, places, s=30, color=MEASURED, zorder=3, label="allocated, measured")
        axis.scatter(
            predicted, places, s=80, facecolor="none", edgecolor=LOST, linewidth=1.6, zorder=4, label="predicted"
        )
        for place, row in enumerate(rows):
            end = max(predicted[place], measured[place], reserved[place])
            axis.annotate(
                signed_percent(error(row)), (end, place), (9, 0), textcoords="offset points", va="center", fontsize=8.5
            )
        bar_rows(axis, [row["name"] for row in rows])
        axis.set_xlim(0, max(*predicted, *measured, *reserved) * 1.15)
        axis.set_xlabel("GiB; the words give predicted over measured")
        legend_below(figure, axis, 3)
    return figure


def accuracy_words(experiment: Experiment) -> str:
    """How near the predictions came, over all measured rows."""
    rows = experiment.measured
    worst = max(rows, key=lambda row: abs(error(row)))
    slack = max(rows, key=lambda row: row["measured_reserved_bytes"] / row["measured_allocated_bytes"])
    extra = slack["measured_reserved_bytes"] / slack["measured_allocated_bytes"] - 1
    return (
        f"{len(rows)} recipes, each over {rows[0]['steps']} whole optimizer steps: the largest error is "
        f"{signed_percent(error(worst))} ({worst['name']}). What the allocator reserves on top of its peak is no part "
        f"of the prediction: {form.percent(extra)} at most ({slack['name']})."
    )


def card_table(recipes: dict[str, Recipe]) -> Table:
    """For each recipe the predicted need, reserve included, and the largest micro-batch on each card. Formula alone."""
    cells = []
    for card in CARDS:
        there = [on_card(recipe, card)[0] for recipe in recipes.values()]
        answers = [
            f"{largest_micro_batch(recipe, card):,} (needs {form.gib(needed_bytes(recipe, card))})" for recipe in there
        ]
        cells.append((card.title, f"{card.memory_gib:,.0f}", *answers))
    return Table(
        title="The largest micro-batch on each card",
        columns=("card", "GiB", *recipes),
        cells=tuple(cells),
        numbers=frozenset({"GiB"}),
        notes=(
            "by formula: the largest micro-batch, and what the recipe's own micro-batch needs in GiB with reserve",
            "a card without bfloat16 units runs float16 under autocast in its place, with float32 weights",
        ),
    )


def paper_table(*, micro_batch: int = 1, context_length: int = 4096) -> Table:
    """LLaMA-like shapes on paper, with and without checkpointing, in GB of 10^9 bytes."""
    cells = []
    for shape in SHAPES.values():
        for state in STATES:
            sizes = {"micro_batch": micro_batch, "context_length": context_length}
            plain = paper_plan(shape, state=state, **sizes)
            lean = paper_plan(shape, state=state, checkpointing=True, **sizes)
            held = sum(state_bytes(shape.parameters, state).values())
            cells.append(
                (
                    f"{shape.name}, {state}", f"{shape.parameters / 1e9:.2f}", _gb(held), _gb(plain["activations"]),
                    _gb(lean["activations"]), _gb(plain["logits"]), _gb(sum(plain.values())),
                )
            )  # fmt: skip
    names = ("billion weights", "state GB", "activations GB", "with checkpointing GB", "logits GB", "all GB")
    return Table(
        title="LLaMA-like models on paper",
        columns=("shape", *names),
        cells=tuple(cells),
        numbers=frozenset(names),
        notes=(
            f"one GPU, micro-batch {micro_batch}, context {context_length:,}; state: weights, gradients, moments and "
            "masters; GB are 10^9 bytes; all: without checkpointing",
        ),
    )


def accelerate_table(recipes: dict[str, Recipe], predicted: dict[str, int]) -> Table:
    """What `accelerate estimate-memory` says by its own formula beside the peak of our plan, GiB."""
    cells = tuple(
        (
            name,
            form.gib(accelerate_estimate(total_parameters(recipe), _accelerate_format(recipe))),
            form.gib(predicted[name]),
        )
        for name, recipe in recipes.items()
    )
    columns = ("recipe", "accelerate's formula, GiB", "our plan, GiB")
    title = "The peak of a step: accelerate's rule beside our plan"
    return Table(title=title, columns=columns, cells=cells, numbers=frozenset(columns[1:]))


def _accelerate_format(recipe: Recipe) -> str:
    return "float32" if recipe.precision == "float32" else recipe.precision.partition("_")[0]


def _gb(amount: float) -> str:
    return form.three_digits(amount / GB)
