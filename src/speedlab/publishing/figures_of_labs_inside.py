"""Figures of the labs on precision, attention and the compiler. Each takes one experiment; none imports torch.

Where an experiment lacks the rows, as a toy does, the figure shows those that there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from statistics import fmean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from speedlab.number_formats import FORMATS
from speedlab.publishing import formatting as form
from speedlab.publishing.plotting import (
    AFTER,
    INK,
    LOST,
    MUTED,
    PUBLISHED,
    SAVED,
    SKY,
    UNCLEAR,
    bar_rows,
    legend_below,
    new_chart,
    styled,
)
from speedlab.publishing.tables import rung_title
from speedlab.publishing.words_of_compiler import LAYERS
from speedlab.publishing.words_of_labs_inside import find
from speedlab.records.experiment import Experiment
from speedlab.records.record import Record

Row = dict[str, Any]
COLOURS = (AFTER, PUBLISHED, SAVED, LOST, SKY, UNCLEAR, INK)
MARKERS = "osD^vPX<>*"
# Forms of attention that are no single kernel.
SEPARATE = ("plain", "plain_compiled", "tiled", "sdpa_math")
MOST_KINDS = 6  # of kernels that have a colour of their own


def gradient_histogram(experiment: Experiment) -> Figure:
    """Where the gradients of the last step lie, by powers of two, with the ends of float16 marked."""
    rows = find(experiment, what="histogram")
    if not rows:
        return _nothing("Gradients by size")
    last = [row for row in rows if row["step"] == max(row["step"] for row in rows)]
    half = FORMATS["float16"]
    words = []
    with styled():
        figure, (axis,) = new_chart(7, title=f"Gradients of step {last[0]['step']} by size", alt="")
        for row, colour in zip(last, COLOURS, strict=False):
            total = sum(row["counts"]) or 1
            exponents = [row["lowest_exponent"] + index for index in range(len(row["counts"]))]
            shares = [count / total for count in row["counts"]]
            axis.plot(exponents, shares, color=colour, linewidth=1.6, label=row["of"])
            peak = exponents[shares.index(max(shares))]
            below = sum(
                share for exponent, share in zip(exponents, shares, strict=True) if 2.0**exponent < half.smallest_normal
            )
            words.append(f"{row['of']}: most near 2^{peak}, {form.percent(below)} below float16's normal numbers")
        top = axis.get_ylim()[1]
        for edge, name in ((half.smallest_subnormal / 2, "zero"), (half.smallest_normal, "subnormal")):
            place = _exponent(edge)
            axis.axvline(place, color=LOST, linewidth=1.2, linestyle="--")
            axis.annotate(f"{name} in float16 ", (place, top), ha="right", va="top", fontsize=8.5, color=INK)
        axis.axvspan(_exponent(half.smallest_subnormal / 2), _exponent(half.smallest_normal), color=SKY, alpha=0.18)
        shown = [row["lowest_exponent"] + i for row in last for i, count in enumerate(row["counts"]) if count]
        axis.set_xlim(max(min(shown), -70) - 1, max(shown) + 2)
        axis.set_ylim(0, top)
        axis.set_xlabel("power of two below the gradient's size")
        axis.set_ylabel("share of those not zero")
        legend_below(figure, axis, 3)
        figure.set_label(f"Histogram of gradients by power of two. {'; '.join(words)}.")
    return figure


def _exponent(value: float) -> int:
    return round(math.log2(value))


def weight_trajectories(experiment: Experiment) -> Figure:
    """One panel for each watched weight: its value after each step, for each way to train."""
    rows = find(experiment, what="trajectory")
    if not rows:
        return _nothing("One weight while the model trains")
    weights = list(dict.fromkeys(row["weight"] for row in rows))
    words = "; ".join(
        f"{row['weight']} in {row['precision']}: from {row['values'][0]:.5g} to {row['values'][-1]:.5g}, "
        f"{len(set(row['values']))} different values"
        for row in rows
    )
    with styled():
        figure, axes = new_chart(
            7, columns=len(weights), title="One weight while the model trains", alt=f"Values over steps. {words}."
        )
        for axis, weight in zip(axes, weights, strict=True):
            mine = [row for row in rows if row["weight"] == weight]
            # Where two lie on each other the first shows as a rim.
            for row, colour, width in zip(mine, COLOURS, (4.0, 2.4, 1.1), strict=False):
                axis.step(range(len(row["values"])), row["values"], color=colour, linewidth=width, where="post",
                          label=row["precision"])  # fmt: skip
            axis.set_title(weight, fontsize=9, loc="left")
            axis.set_xlabel("step")
            axis.ticklabel_format(axis="y", useOffset=False)
        legend_below(figure, axes[0], 3)
    return figure


def precision_gaps(records: Sequence[Record]) -> Figure:
    """How far each way to train is from the mean of the reference's repeats, over the tokens seen, in nats.

    records: the rungs of ladder `precisions` on one device, whose curves stand beside one of the reference each.
    """
    details = {record.rung: record.contract_detail for record in records if "curve" in (record.contract_detail or {})}
    if len(details) < 2:
        return _nothing("Loss against float32")
    repeats = list(zip(*(detail["curve_before"]["losses"] for detail in details.values()), strict=True))
    middle = [fmean(losses) for losses in repeats]
    tokens = [count / 1e6 for count in next(iter(details.values()))["curve"]["tokens"]]
    gaps = {rung: [loss - mean for loss, mean in zip(detail["curve"]["losses"], middle, strict=True)]
            for rung, detail in details.items()}  # fmt: skip
    words = "; ".join(f"{rung_title('precisions', rung)} ends {gap[-1]:+.3f}" for rung, gap in gaps.items())
    with styled():
        figure, (axis,) = new_chart(
            7, title="Loss against float32, the same text", alt=f"Difference in nats over tokens. {words}."
        )
        low, high = ([edge(losses) - mean for losses, mean in zip(repeats, middle, strict=True)] for edge in (min, max))
        axis.fill_between(tokens, low, high, color=UNCLEAR, alpha=0.5, label=f"float32, {len(details)} times")
        for (rung, gap), colour in zip(gaps.items(), COLOURS, strict=False):
            axis.plot(tokens, gap, color=colour, linewidth=1.3, label=rung_title("precisions", rung))
        axis.axhline(0, color=INK, linewidth=0.7)
        axis.set_xlabel("million tokens seen")
        axis.set_ylabel("nats above float32")
        legend_below(figure, axis, 2)
    return figure


def attention_over_context(experiment: Experiment) -> Figure:
    """Time of both passes over the context at a fixed number of tokens, and where it was counted the memory."""
    rows = find(experiment, what="context")
    if not rows:
        return _nothing("Attention over the context")
    # PyTorch's own choice lies on the kernel that it chose, as the words below the figure say.
    kinds = [kind for kind in dict.fromkeys(row["kind"] for row in rows) if kind != "sdpa"]
    counted = any(row["extra_peak_bytes"] is not None for row in rows)
    words = "; ".join(
        f"{kind} " + ", ".join(f"{form.three_digits(median(row['both_ms']))} ms at {row['context']:,}"
                               for row in rows if row["kind"] == kind)
        for kind in kinds
    )  # fmt: skip
    with styled():
        figure, axes = new_chart(
            10, columns=2 if counted else 1, title="Attention, forward and backward, same tokens in longer sequences",
            alt=f"Time over the context. {words}.",
        )  # fmt: skip
        colours = {True: cycle(COLOURS), False: cycle(COLOURS)}
        for kind, marker in zip(kinds, cycle(MARKERS), strict=False):
            line = [row for row in rows if row["kind"] == kind]
            contexts, separate = [row["context"] for row in line], kind in SEPARATE
            look = {
                "color": next(colours[separate]), "marker": marker, "markersize": 4.5, "linewidth": 1.3,
                "linestyle": "--" if separate else "-", "label": kind,
            }  # fmt: skip
            axes[0].plot(contexts, [median(row["both_ms"]) for row in line], **look)
            if counted:
                axes[1].plot(contexts, [row["extra_peak_bytes"] / 2**30 for row in line], **look)
        for axis, label in zip(axes, ("ms (dashed: operations of their own)", "GiB beyond the inputs"), strict=False):
            _log_log(axis, sorted({row["context"] for row in rows}))
            axis.set_ylabel(label)
        legend_below(figure, axes[0], 5)
    return figure


def _log_log(axis: Axes, contexts: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(contexts, [f"{context:,}" for context in contexts], fontsize=8)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.minorticks_off()
    axis.set_xlabel("tokens of a sequence")
    axis.grid(axis="y", color=MUTED, linewidth=0.3)


def break_even(experiment: Experiment) -> Figure:
    """Seconds since the start over steps, compile time included, for each mode of the recipe with native layers."""
    rows = find(experiment, what="mode", recipe="native")
    if not rows:
        return _nothing("When is compiling paid back?")
    times = {row["mode"]: (row["compile_s"] or 0.0, median(row["step_ms"]) / 1e3) for row in rows}
    off = times.get("off", (0.0, 0.0))[1]
    crossings = [compile_s / (off - step_s) for compile_s, step_s in times.values() if step_s < off]
    steps = int(1.6 * max([*crossings, 100]))
    words = "; ".join(
        f"{mode}: {form.three_digits(compile_s)} s before {form.three_digits(1e3 * step_s)} ms a step"
        for mode, (compile_s, step_s) in times.items()
    )
    with styled():
        figure, (axis,) = new_chart(
            6, title="When is compiling paid back? Native layers", alt=f"Seconds over steps. {words}."
        )
        for (mode, (compile_s, step_s)), colour in zip(times.items(), COLOURS, strict=False):
            axis.plot([0, steps], [compile_s, compile_s + steps * step_s], color=colour, linewidth=1.6, label=mode)
        axis.set_xlim(0, steps)
        axis.set_ylim(0, None)
        axis.set_xlabel("steps")
        axis.set_ylabel("seconds, compiling included")
        legend_below(figure, axis, 4)
    return figure


def fused_kernels(experiment: Experiment) -> Figure:
    """Kernel time of a step by kind, stacked, for each recipe and mode that was profiled."""
    rows = find(experiment, what="kernels")
    if not rows:
        return _nothing("Kernel time of one step by kind")
    totals: dict[str, float] = {}
    for row in rows:
        for kind, one in row["kinds"].items():
            totals[kind] = totals.get(kind, 0.0) + one["time_us"]
    named = sorted(totals, key=lambda kind: -totals[kind])[:MOST_KINDS]
    labels = [f"{LAYERS.get(row['recipe'], row['recipe'])}, {row['mode']}" for row in rows]
    words = "; ".join(
        f"{label}: {form.three_digits(row['time_us'] / 1e3)} ms in {form.count(row['calls'])} launches"
        for label, row in zip(labels, rows, strict=True)
    )
    with styled():
        figure, (axis,) = new_chart(len(rows) * 1.5 + 2, title="Kernel time of one step by kind", alt=f"{words}.")
        left = [0.0] * len(rows)
        for kind, colour in zip([*named, "all others"], COLOURS, strict=False):
            amounts = []
            for row in rows:
                mine = row["kinds"].get(kind, {"time_us": 0.0})["time_us"]
                others = row["time_us"] - sum(row["kinds"].get(name, {"time_us": 0.0})["time_us"] for name in named)
                amounts.append((others if kind == "all others" else mine) / 1e3)
            axis.barh(
                range(len(rows)), amounts, left=left, height=0.6, color=colour, edgecolor=INK, linewidth=0.4, label=kind
            )
            left = [start + amount for start, amount in zip(left, amounts, strict=True)]
        for place, (end, row) in enumerate(zip(left, rows, strict=True)):
            axis.annotate(f"{form.count(row['calls'])} launches", (end, place), (5, 0), textcoords="offset points",
                          va="center", fontsize=8.5)  # fmt: skip
        bar_rows(axis, labels)
        axis.set_xlim(0, max(left) * 1.22)
        axis.set_xlabel("ms of kernel time")
        legend_below(figure, axis, 3)
    return figure


def _nothing(title: str) -> Figure:
    """What stands where an experiment has no row for a figure."""
    with styled():
        figure, (axis,) = new_chart(1, title=title, alt=f"{title}: no row of this experiment was measured.")
        axis.annotate("no row of this experiment was measured", (0.5, 0.5), xycoords="axes fraction", ha="center")
        axis.set_axis_off()
    return figure
