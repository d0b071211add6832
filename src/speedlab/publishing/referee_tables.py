"""What a referee asks of the measuring itself, as sections of pages: its cost, repeatability, seconds to a loss.

Made from experiments of the labs; while none is recorded a section says so. It measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from speedlab.labs.harness import overhead
from speedlab.labs.loss_against_time import final_loss, levels, seconds_to, tokens_per_s
from speedlab.ladder import NINE_STEPS
from speedlab.publishing import formatting as form
from speedlab.publishing.facts import device_title
from speedlab.publishing.plotting import AFTER, BEFORE, LOST, PUBLISHED, SAVED, new_chart, styled
from speedlab.publishing.tables import Table
from speedlab.records.experiment import Experiment

# What the harness may cost: issue and promise of the method page.
PROMISED_SHARE = 0.01

# Saves a chart under a name with a caption, and gives the directive that shows it.
Draw = Callable[[str, Figure, str], str]


def harness_section(experiments: Sequence[Experiment]) -> str:
    """What stopwatch and loader add to a step at the top rung, and how long the GPU idles, on each device."""
    parts = []
    for experiment in _named(experiments, "harness_overhead"):
        found = overhead(experiment.rows)
        if found is None:
            continue
        kept = "within" if found.high <= PROMISED_SHARE else "above" if found.low > PROMISED_SHARE else "about"
        idle = (
            ""
            if found.idle_share is None
            else f" The GPU runs nothing in {form.percent(found.idle_share)} of a step without the harness."
        )
        parts.append(
            f"**{device_title(experiment.device)}:** a step takes {form.percent(found.share)} longer with stopwatch "
            f"and loader than without (95 % interval {form.percent(found.low)} to {form.percent(found.high)}), "
            f"{kept} the {form.percent(PROMISED_SHARE)} that we allow ourselves.{idle}\n"
        )
    return "\n".join(parts) or _nothing_yet("harness_overhead")


def determinism_section(experiments: Sequence[Experiment]) -> str:
    """Which rungs and operations give the same bits twice, and what deterministic mode costs, on each device."""
    parts = []
    for experiment in _named(experiments, "determinism"):
        rows = [row for row in experiment.measured if "what" in row]
        tables = [
            f"**{device_title(experiment.device)}**, the same steps twice from the same weights and batches, dropout "
            f"off:\n\n{_rungs(rows)}",
            f"Single operations, outputs and gradients, each repeated and compared with the first time:\n\n"
            f"{_operations(rows)}",
            _warnings(rows),
            _costs(rows),
        ]
        parts.append("\n".join(table for table in tables if table))
    return "\n".join(parts) or _nothing_yet("determinism")


def loss_section(experiments: Sequence[Experiment], draw: Draw) -> str:
    """Seconds to a loss beside tokens/s for each recipe, and the curves, on each device."""
    parts = []
    for experiment in _named(experiments, "loss_against_time"):
        asked = levels(experiment.rows)
        if not asked:
            continue
        title = device_title(experiment.device)
        numbers = ("tokens/s", "updates", "loss at the end", *(f"s to {loss:g} nats" for loss in asked))
        cells = tuple(_loss_cells(row, asked) for row in experiment.measured)
        table = Table("", ("recipe", *numbers), cells, frozenset(numbers)).markdown()
        figure = draw(
            f"loss-against-time-{experiment.device}", loss_curves(experiment),
            f"Loss on text that none of them saw, over seconds of training: measured on {title}.",
        )  # fmt: skip
        parts.append(f"### {title}\n\n{table}\n{figure}")
    return "\n".join(parts) or _nothing_yet("loss_against_time")


def loss_curves(experiment: Experiment) -> Figure:
    """Validation loss over seconds of training, a line for each recipe."""
    rows = experiment.measured
    ends = "; ".join(f"{_recipe(row)} ends at {row['validation_loss'][-1]:.2f}" for row in rows)
    with styled():
        figure, (axis,) = new_chart(7, title="Loss against time", alt=f"Validation loss in nats over seconds: {ends}.")
        for row, colour, line in zip(rows, _COLOURS, _LINES, strict=False):
            axis.plot(row["seconds"], row["validation_loss"], color=colour, linestyle=line, label=_recipe(row))
        axis.set_xlabel("seconds of training")
        axis.set_ylabel("validation loss in nats")
        axis.legend(frameon=False, fontsize=9)
    return figure


_COLOURS = (PUBLISHED, BEFORE, AFTER, SAVED, LOST)
_LINES = ("-", "--", "-", "--", "-.")


def _named(experiments: Sequence[Experiment], name: str) -> list[Experiment]:
    return [experiment for experiment in experiments if experiment.name == name]


def _nothing_yet(name: str) -> str:
    return f"Not recorded yet. `speedlab experiment {name}` measures it.\n"


def _rungs(rows: list[dict[str, Any]]) -> str:
    cells = tuple(
        (
            NINE_STEPS.rung(row["rung"]).title + (", deterministic mode" if row["mode"] == "deterministic" else ""),
            "the same" if row["losses_equal"] else f"up to {row['largest_loss_difference']:.1e} nats apart",
            "the same" if row["weights_equal"] else f"up to {row['largest_weight_difference']:.1e} apart",
        )
        for row in rows
        if row["what"] == "rung"
    )
    return Table("", ("rung", "losses", "weights at the end"), cells).markdown()


def _operations(rows: list[dict[str, Any]]) -> str:
    cells = tuple(
        (
            row["operation"],
            f"{row['different']} of {row['repeats']}",
            f"{row['largest_difference']:.1e}" if row["different"] else form.NOTHING,
        )
        for row in rows
        if row["what"] == "operation"
    )
    return Table("", ("operation", "repeats that differ", "by up to"), cells).markdown()


def _warnings(rows: list[dict[str, Any]]) -> str:
    said = {message: row["rung"] for row in rows if row["what"] == "warning" for message in row["messages"]}
    if not said:
        return ""
    cells = tuple((message, NINE_STEPS.rung(rung).title) for message, rung in said.items())
    table = Table("", ("what PyTorch warns of in deterministic mode", "first at rung"), cells)
    return table.markdown()


def _costs(rows: list[dict[str, Any]]) -> str:
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["what"] == "cost" and row.get("step_ms"):
            times.setdefault(row["rung"], {})[row["mode"]] = median(row["step_ms"])
    cells = tuple(
        (
            NINE_STEPS.rung(rung).title,
            form.three_digits(found["ordinary"]),
            form.three_digits(found["deterministic"]),
            form.percent(found["deterministic"] / found["ordinary"] - 1),
        )
        for rung, found in times.items()
        if {"ordinary", "deterministic"} <= found.keys()
    )
    if not cells:
        return ""
    numbers = ("ms/step", "deterministic", "longer by")
    table = Table("", ("rung", *numbers), cells, frozenset(numbers)).markdown()
    return f"What deterministic mode costs, with a cuBLAS workspace of fixed size, dropout off:\n\n{table}"


def _recipe(row: dict[str, Any]) -> str:
    title = NINE_STEPS.rung(row["rung"]).title
    return f"{title}, batch {row['micro_batch']}, learning rate {row['learning_rate']:g}"


def _loss_cells(row: dict[str, Any], asked: list[float]) -> tuple[str, ...]:
    times = [seconds_to(row, loss) for loss in asked]
    end = f"{final_loss(row):.3f}"
    if "diverged_after_s" in row:
        end += f", then not finite after {form.three_digits(row['diverged_after_s'])} s"
    speed = form.count(tokens_per_s(row)) if row["seconds"][-1] else form.NOTHING
    return (_recipe(row), speed, form.count(row["updates"][-1]), end, *map(form.three_digits, times))
