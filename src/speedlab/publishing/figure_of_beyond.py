"""The figure of the chapter past the ladder: where the kernels of a step spend their time, recipe by recipe."""

from __future__ import annotations

from matplotlib.figure import Figure

from speedlab.publishing.beyond_tables import REST, by_part
from speedlab.publishing.facts import device_title
from speedlab.publishing.formatting import three_digits
from speedlab.publishing.plotting import INK, MUTED, bar_rows, legend_below, new_chart, styled
from speedlab.publishing.svg import BLUE, GREEN, ORANGE, PANEL, SKY, VERMILION
from speedlab.records.experiment import Experiment

# Matmuls and attention are what no fusion removes; the rest is what this page is about.
GROUPS: dict[str, tuple[tuple[str, ...], str]] = {
    "matmuls": (("matmuls",), BLUE),
    "attention": (("attention",), SKY),
    "loss": (("loss",), VERMILION),
    "GELU": (("GELU and its bias",), ORANGE),
    "residuals, norms": (("residuals and norms",), GREEN),
    "all else": (("q/k/v gradients joined", "optimizer", "embeddings", REST), MUTED),
}


def parts_of_steps(experiment: Experiment) -> Figure:
    """One stacked bar for each recipe, the slowest first: milliseconds of kernels by part of the step."""
    rows = sorted(experiment.measured, key=lambda row: -row["busy_ms"])
    sums = [by_part(row) for row in rows]
    lengths = {name: [sum(one.get(part, 0.0) for part in parts) for one in sums]
               for name, (parts, _) in GROUPS.items()}  # fmt: skip
    said = "; ".join(
        f"{row['candidate']}: " + ", ".join(f"{name} {three_digits(values[place])}" for name, values in lengths.items())
        for place, row in enumerate(rows)
    )
    title = f"Kernels of one step in ms: {device_title(experiment.device)}"
    with styled():
        figure, (axis,) = new_chart(1.4 * len(rows), title=title, alt=f"{title}. {said}.")
        left = [0.0] * len(rows)
        for name, (_, colour) in GROUPS.items():
            axis.barh(range(len(rows)), lengths[name], left=left, color=colour, height=0.6, edgecolor=PANEL, label=name)
            left = [start + length for start, length in zip(left, lengths[name], strict=True)]
        for place, end in enumerate(left):
            axis.annotate(three_digits(end), (end, place), (4, 0), textcoords="offset points", va="center",
                          fontsize=8.5, color=INK)  # fmt: skip
        bar_rows(axis, [row["candidate"] for row in rows])
        axis.set_xlim(0, max(left, default=1.0) * 1.1)
        axis.set_xlabel("ms of kernels, what lies between them not counted")
        legend_below(figure, axis, len(GROUPS))
    return figure
