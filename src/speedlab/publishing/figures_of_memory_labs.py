"""Figures of the memory labs: batches, checkpointing, memory along a step, smaller cards, accumulation.

Each takes one experiment and gives a matplotlib Figure with alternative text. Where an experiment has no row for a
figure, as on a CPU, the figure says so. It knows rows of these experiments and nothing of how they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from speedlab.profile import PROFILES
from speedlab.publishing import formatting as form
from speedlab.publishing.facts import device_title
from speedlab.publishing.lab_rows import of, tokens_per_s
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
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
LINES = (PUBLISHED, AFTER, SAVED, LOST)


def throughput_over_batch(experiment: Experiment) -> Figure:
    """Tokens per second over the micro-batch; powers of two filled, all others hollow."""
    found = of(experiment, "batch")
    if not found:
        return _nothing(experiment, "Throughput over the micro-batch")
    words = "; ".join(f"{_mode(row)} {row['micro_batch']}: {_k(row)} k" for row in found)
    with styled():
        figure, (axis,) = new_chart(
            7, title=f"Throughput over the micro-batch: {_where(experiment)}",
            alt=f"Thousand tokens per second by micro-batch on {_where(experiment)}: {words}.",
        )  # fmt: skip
        for colour, mode in zip(LINES, dict.fromkeys(row["compile"] for row in found), strict=False):
            line = sorted((row for row in found if row["compile"] == mode), key=lambda row: row["micro_batch"])
            sizes = [row["micro_batch"] for row in line]
            speeds = [tokens_per_s(row) / 1e3 for row in line]
            axis.plot(sizes, speeds, color=colour, linewidth=1.2, label=_mode(line[0]))
            for size, speed in zip(sizes, speeds, strict=True):
                power = size & (size - 1) == 0
                axis.plot(size, speed, marker="o", color=colour, markerfacecolor=colour if power else "white")
        axis.set_ylim(0, 1.1 * max(map(tokens_per_s, found)) / 1e3)
        axis.set_xlabel("sequences in a micro-batch; filled points are powers of two")
        axis.set_ylabel("thousand tokens per second")
        legend_below(figure, axis, 2)
    return figure


def checkpointing_ways(experiment: Experiment, *, compiled: bool = False, long: bool = False) -> Figure:
    """Time and peak memory of each way of checkpointing, side by side, in one setting."""
    title = "Time and memory of each way"
    variants = [row for row in of(experiment, "variant") if (row["compile"] != "off") == compiled]
    contexts = sorted({row["context_length"] for row in variants})
    if not variants or (long and len(contexts) < 2):
        return _nothing(experiment, title)
    context = contexts[-1] if long else contexts[0]
    found = [row for row in variants if row["context_length"] == context]
    panels = [("ms per step", [_step_ms(row) for row in found], MEASURED)]
    if all(row["peak_allocated_bytes"] for row in found):
        panels.append(("GiB held at the peak", [row["peak_allocated_bytes"] / 2**30 for row in found], SKY))
    return _bars(
        [row["way"].replace("_", " ") for row in found], panels,
        title=f"{title}, {found[0]['micro_batch']} x {context:,} tokens, {_mode(found[0])}: {_where(experiment)}",
    )  # fmt: skip


def memory_along_a_step(experiment: Experiment) -> Figure:
    """Bytes that tensors hold from the first block forward to the update, with and without checkpointing.

    The line is the most that was held since the mark before, so that what a recomputation adds is seen.
    """
    found = of(experiment, "timeline")
    if not found:
        return _nothing(experiment, "Memory along one step")
    words = "; ".join(f"{row['way']} at most {max(row['peak_bytes']) / 2**30:.1f} GiB" for row in found)
    with styled():
        figure, (axis,) = new_chart(
            7, title=f"Memory along one step: {_where(experiment)}",
            alt=f"Memory that tensors hold along one step on {_where(experiment)}: {words}.",
        )  # fmt: skip
        for colour, row in zip(LINES, found, strict=False):
            most = [max(pair) / 2**30 for pair in zip(row["peak_bytes"], row["held_bytes"], strict=True)]
            axis.plot(range(len(most)), most, color=colour, linewidth=1.8, label=row["way"].replace("_", " "))
        marks = found[0]["marks"]
        turn = next((i for i, mark in enumerate(marks) if mark.startswith("backward")), None)
        if turn is not None:
            axis.axvline(turn, color=MUTED, linewidth=0.8, linestyle="--")
        shown = [i for i, mark in enumerate(marks) if mark in ("start", "backward head", "updated")]
        blocks = [i for i, mark in enumerate(marks) if "block" in mark]
        spread = blocks[1 :: max(1, len(blocks) // 6)]
        shown = sorted({*shown, *(i for i in spread if all(abs(i - other) > 1 for other in shown))})
        axis.set_xticks(shown, [marks[i] for i in shown], rotation=45, ha="right", fontsize=8)
        axis.set_ylim(0, None)
        axis.set_ylabel("GiB held by tensors")
        legend_below(figure, axis, len(found))
    return figure


def throughput_over_fill(experiment: Experiment) -> Figure:
    """Tokens per second over the share of an emulated card that the allocator took."""
    title = "How full should a card be?"
    found = [row for row in of(experiment, "fill") if row["peak_reserved_bytes"]]
    if not found:
        return _nothing(experiment, title)
    shares = [100 * row["peak_reserved_bytes"] / row["limit_bytes"] for row in found]
    speeds = [tokens_per_s(row) / 1e3 for row in found]
    words = "; ".join(f"{share:.0f} %: {speed:.1f} k" for share, speed in zip(shares, speeds, strict=True))
    with styled():
        figure, (axis,) = new_chart(
            6, title=f"{title} {found[0]['card']} (emulated) on {_where(experiment)}",
            alt=f"Thousand tokens per second by share of the card reserved on {_where(experiment)}: {words}.",
        )  # fmt: skip
        axis.axvspan(70, 80, color=SKY, alpha=0.25, linewidth=0, label="the advice: 70 to 80 %")
        axis.plot(shares, speeds, color=MEASURED, marker="o", linewidth=1.4, label="measured")
        for row, share, speed in zip(found, shares, speeds, strict=True):
            axis.annotate(
                str(row["micro_batch"]), (share, speed), (0, 7), textcoords="offset points", ha="center", fontsize=8.5,
                color=INK,
            )  # fmt: skip
        axis.set_xlim(0, 105)
        axis.set_ylim(0, max(speeds) * 1.15)
        axis.set_xlabel("share of the card reserved at the peak in %; numbers are sequences in a micro-batch")
        axis.set_ylabel("thousand tokens per second")
        legend_below(figure, axis, 2)
    return figure


def speed_over_micro_steps(experiment: Experiment) -> Figure:
    """Tokens per second over the number of micro-batches for each update, and the update's share of the step."""
    found = of(experiment, "micro_steps")
    if not found:
        return _nothing(experiment, "Speed over micro-batches per update")
    words = "; ".join(f"{_mode(row)} K={row['accumulation']}: {_k(row)} k" for row in found)
    with styled():
        figure, axes = new_chart(
            6, columns=2, title=f"Micro-batches for each update: {_where(experiment)}",
            alt=f"Thousand tokens per second by micro-batches for each update on {_where(experiment)}: {words}.",
        )  # fmt: skip
        for colour, mode in zip(LINES, dict.fromkeys(row["compile"] for row in found), strict=False):
            line = [row for row in found if row["compile"] == mode]
            counts = [row["accumulation"] for row in line]
            axes[0].plot(counts, [tokens_per_s(row) / 1e3 for row in line], color=colour, marker="o",
                         label=_mode(line[0]))  # fmt: skip
            shares = [100 * median(row["update_ms"]) / _step_ms(row) for row in line]
            axes[1].plot(counts, shares, color=colour, marker="o")
        axes[0].set_ylabel("thousand tokens per second")
        axes[1].set_ylabel("update, % of a step")
        for axis in axes:
            axis.set_xscale("log", base=2)
            axis.set_xticks(counts, [str(count) for count in counts])
            axis.set_xlabel("micro-batches per update (K)")
            axis.set_ylim(0, 1.12 * max(value for line in axis.lines for value in line.get_ydata()))
        legend_below(figure, axes[0], 2)
    return figure


def _bars(labels: list[str], panels: Sequence[tuple[str, list[float], str]], *, title: str) -> Figure:
    """Horizontal bars, one panel for each quantity: (words for the axis, values, colour)."""
    sentences = "; ".join(
        f"{label}: " + ", ".join(f"{_number(values[place])} {words}" for words, values, _ in panels)
        for place, label in enumerate(labels)
    )
    with styled():
        figure, axes = new_chart(len(labels), columns=len(panels), title=title, alt=f"{title}. {sentences}.")
        for position, (axis, (words, values, colour)) in enumerate(zip(axes, panels, strict=True)):
            _panel(axis, labels if position == 0 else [""] * len(labels), values, colour, words)
    return figure


def _panel(axis: Axes, labels: list[str], values: list[float], colour: str, words: str) -> None:
    axis.barh(range(len(values)), values, color=colour, height=0.62)
    for place, value in enumerate(values):
        axis.annotate(
            _number(value), (value, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5,
            color=INK,
        )  # fmt: skip
    bar_rows(axis, labels)
    axis.set_xlim(0, max(values) * 1.2)
    axis.set_xlabel(words)


def _number(value: float) -> str:
    return form.count(value) if isinstance(value, int) else form.three_digits(value)


def _nothing(experiment: Experiment, title: str) -> Figure:
    """A figure in words: this experiment has no such row."""
    reasons = {row["reason"] for row in experiment.rows if row["status"] != "measured" and row.get("reason")}
    text = "No row was measured for this figure" + (f": {sorted(reasons)[0]}." if reasons else ".")
    with styled():
        figure, (axis,) = new_chart(1, title=f"{title.rstrip('?')}: {_where(experiment)}", alt=f"{title}: {text}")
        axis.set_axis_off()
        axis.text(0, 0.5, text, fontsize=9, color=MUTED, transform=axis.transAxes, wrap=True)
    return figure


def _step_ms(row: Row) -> float:
    return float(median(row["step_ms"]))


def _k(row: Row) -> str:
    return form.three_digits(tokens_per_s(row) / 1e3)


def _mode(row: Row) -> str:
    return "eager" if row["compile"] == "off" else "compiled"


def _where(experiment: Experiment) -> str:
    toy = "" if PROFILES[experiment.profile].publishable else f", {experiment.profile} profile (speeds mean nothing)"
    return f"{device_title(experiment.device)}{toy}"
