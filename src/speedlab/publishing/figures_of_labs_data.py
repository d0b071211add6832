"""Figures of the labs on the data pipeline and on all levers together. Each takes one experiment; none imports torch.

Where an experiment lacks the rows, the figure says so.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from speedlab.publishing import formatting as form
from speedlab.publishing.lab_rows import tokens_per_s
from speedlab.publishing.plotting import (
    AFTER,
    INK,
    LOST,
    MEASURED,
    MUTED,
    PUBLISHED,
    SAVED,
    SKY,
    bar_rows,
    legend_below,
    new_chart,
    styled,
)
from speedlab.publishing.words_of_labs_inside import find
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
COLOURS, MARKERS = (AFTER, LOST, SAVED, PUBLISHED), "os^D"
SHOWN_STEPS = 8  # of a timeline


def starvation_timeline(experiment: Experiment) -> Figure:
    """What the device does over some steps, working or waiting, for the loader as it is and for slow ones."""
    title = "What the device does over time"
    rows = [*find(experiment, what="slow"), *find(experiment, what="prefetch")]
    shown = _telling(rows)
    if not shown:
        return _nothing(title)
    words = "; ".join(f"{_loader(row)}: waiting {form.percent(row['starved_share'])} of the time" for row in shown)
    with styled():
        figure, (axis,) = new_chart(len(shown) * 1.3 + 1, title=title, alt=f"Timelines of the device. {words}.")
        end = 0.0
        for place, row in enumerate(shown):
            now, waits, works = 0.0, [], []
            for wait, work in list(zip(row["wait_ms"], row["work_ms"], strict=True))[:SHOWN_STEPS]:
                waits.append((now, wait))
                works.append((now + wait, work))
                now += wait + work
            axis.broken_barh(works, (place - 0.3, 0.6), facecolors=AFTER, label="works" if place == 0 else None)
            axis.broken_barh(waits, (place - 0.3, 0.6), facecolors=LOST, label="waits for data" if place == 0 else None)
            axis.annotate(f"{form.percent(row['starved_share'])} waiting", (now, place), (5, 0), fontsize=8.5,
                          textcoords="offset points", va="center", color=INK)  # fmt: skip
            end = max(end, now)
        bar_rows(axis, [_loader(row) for row in shown])
        axis.set_xlim(0, end * 1.2)
        axis.set_xlabel("ms")
        legend_below(figure, axis, 2)
    return figure


def _telling(rows: list[Row]) -> list[Row]:
    """Of the slow loaders the quickest and the slowest for each number of workers, and the hiccups with least ahead."""
    chosen = []
    for workers in sorted({row["workers"] for row in rows if row["what"] == "slow"}):
        mine = sorted(
            (row for row in rows if row["what"] == "slow" and row["workers"] == workers),
            key=lambda row: row["delay_ms"],
        )
        chosen += [mine[0], mine[-1]] if len(mine) > 1 else mine
    hiccups = sorted((row for row in rows if row["what"] == "prefetch"), key=lambda row: row["prefetch"])
    return [*chosen, *hiccups[:1]]


def _loader(row: Row) -> str:
    who = f"{row['workers']} worker{'s' if row['workers'] > 1 else ''}" if row["workers"] else "no worker"
    if row["what"] == "prefetch":
        return f"{who}, hiccups, {row['prefetch']} ahead"
    return f"{who}, {form.three_digits(row['delay_ms'])} ms slower" if row["delay_ms"] else f"{who}, as it is"


def knee(experiment: Experiment) -> Figure:
    """The mean step over the delay of the loader, measured and predicted, for each number of workers."""
    title = "When does a slow loader become the bottleneck?"
    rows = find(experiment, what="slow")
    if not rows:
        return _nothing(title)
    words = "; ".join(
        f"{row['workers']} workers, {form.three_digits(row['delay_in_steps'])} steps of delay: "
        f"{form.three_digits(fmean(row['step_ms']))} ms, predicted {form.three_digits(row['predicted_step_ms'])}"
        for row in rows
    )
    with styled():
        figure, (axis,) = new_chart(7, title=title, alt=f"Mean step over the delay of the loader. {words}.")
        for index, workers in enumerate(sorted({row["workers"] for row in rows})):
            line = sorted((row for row in rows if row["workers"] == workers), key=lambda row: row["delay_ms"])
            delays = [row["delay_in_steps"] for row in line]
            colour, who = COLOURS[index % len(COLOURS)], f"{workers} workers" if workers else "no worker"
            axis.plot(delays, [row["predicted_step_ms"] for row in line], color=colour, linestyle="--", linewidth=1.2,
                      label=f"{who}, predicted")  # fmt: skip
            axis.plot(delays, [fmean(row["step_ms"]) for row in line], color=colour, linestyle="none",
                      marker=MARKERS[index % len(MARKERS)], label=f"{who}, measured")  # fmt: skip
        axis.set_xlim(0, None)
        axis.set_ylim(0, 1.1 * max(value for line in axis.lines for value in line.get_ydata()))
        axis.set_xlabel("delay of each batch, in steps")
        axis.set_ylabel("ms of the mean step")
        legend_below(figure, axis, 2)
    return figure


def padding(experiment: Experiment) -> Figure:
    """Share of padding and trained tokens per second of each way to make batches of texts."""
    rows = find(experiment, what="shaping")
    title = "Padding, and tokens that are trained on"
    if not rows:
        return _nothing(title)
    labels = [row["shaping"].replace("_", " ") for row in rows]
    return _bars(title, labels, [
        ("padding, % of all positions", [100 * row["padding_share"] for row in rows], LOST),
        ("thousand trained tokens per second", [row["trained_tokens_per_s"] / 1e3 for row in rows], MEASURED),
    ])  # fmt: skip


def levers(experiment: Experiment) -> Figure:
    """Speed on the whole card of each lever alone and of all together, and the memory that tensors held."""
    title = "Three levers, alone and together, on the whole card"
    return _speed_and_memory(title, find(experiment, what="whole"), lambda row: row["variant"])


def levers_of_other_models(experiment: Experiment) -> Figure:
    """The same for models of Hugging Face."""
    title = "The same levers on models of Hugging Face"
    return _speed_and_memory(title, find(experiment, what="hf"), lambda row: f"{row['model']}: {row['variant']}")


def _speed_and_memory(title: str, rows: list[Row], label: Any) -> Figure:
    if not rows:
        return _nothing(title)
    panels = [("thousand tokens per second", [tokens_per_s(row) / 1e3 for row in rows], MEASURED)]
    if all(row["peak_allocated_bytes"] for row in rows):
        panels.append(("GiB held at the peak", [row["peak_allocated_bytes"] / 2**30 for row in rows], SKY))
    figure = _bars(title, [label(row) for row in rows], panels)
    if len(panels) == 2 and all(row.get("predicted_peak_bytes") for row in rows):
        axis = figure.axes[1]
        predicted = [row["predicted_peak_bytes"] / 2**30 for row in rows]
        with styled():
            axis.plot(predicted, range(len(rows)), linestyle="none", marker="|", markersize=14, markeredgewidth=2.2,
                      color=PUBLISHED, label="predicted")  # fmt: skip
            axis.set_xlim(0, max(axis.get_xlim()[1], max(predicted) * 1.2))
            for value, text in zip(predicted, axis.texts, strict=True):  # the number of the bar, clear of the mark
                text.xy = (max(value, text.xy[0]), text.xy[1])
            legend_below(figure, axis, 1)
        said = ", ".join(form.three_digits(value) for value in predicted)
        figure.set_label(f"{figure.get_label()} Predicted GiB from top to bottom: {said}.")
    return figure


def _bars(title: str, labels: list[str], panels: list[tuple[str, list[float], str]]) -> Figure:
    """Horizontal bars, one panel for each quantity: (words for the axis, values, colour)."""
    said = "; ".join(
        f"{label}: " + ", ".join(f"{form.three_digits(values[place])} {words}" for words, values, _ in panels)
        for place, label in enumerate(labels)
    )
    with styled():
        figure, axes = new_chart(len(labels), columns=len(panels), title=title, alt=f"{title}. {said}.")
        for position, (axis, (words, values, colour)) in enumerate(zip(axes, panels, strict=True)):
            _panel(axis, labels if position == 0 else [""] * len(labels), values, colour, words)
    return figure


def _panel(axis: Axes, labels: list[str], values: list[float], colour: str, words: str) -> None:
    axis.barh(range(len(values)), values, color=colour, height=0.62)
    for place, value in enumerate(values):
        axis.annotate(form.three_digits(value), (value, place), (4, 0), textcoords="offset points", va="center",
                      fontsize=8.5, color=INK)  # fmt: skip
    bar_rows(axis, labels)
    axis.set_xlim(0, max(*values, 1e-9) * 1.25)
    axis.set_xlabel(words)


def _nothing(title: str) -> Figure:
    """What stands where an experiment has no row for a figure."""
    text = "no row of this experiment was measured"
    with styled():
        figure, (axis,) = new_chart(1, title=title, alt=f"{title}: {text}.")
        axis.annotate(text, (0.5, 0.5), xycoords="axes fraction", ha="center", color=MUTED)
        axis.set_axis_off()
    return figure
