"""What every figure shares: palette, an empty chart, alt text, and an SVG that is the same at every drawing.

A figure stands on a light panel of its own, as the diagrams do: no single text colour has enough contrast on a white
and on a dark page at once. No pyplot: it would keep global state and load a backend.
"""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from speedlab.publishing.svg import BLUE, FAINT, GREEN, INK, ORANGE, PANEL, RULE, SKY, VERMILION
from speedlab.records.store import write_text_atomic

MEASURED, PUBLISHED, BEFORE, AFTER = BLUE, ORANGE, SKY, BLUE
SAVED, LOST, UNCLEAR = GREEN, VERMILION, "#7d858e"
MUTED = FAINT
WIDTH_INCHES = 8.0

_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so text is as wide on every machine
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": RULE,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 1.0,
    "hatch.color": INK,
    "svg.hashsalt": "speedlab",
    "svg.fonttype": "path",  # the same letters where that font is missing
}


def styled():
    """Context in which figures are drawn and saved; the reader's own settings of matplotlib are put back after it."""
    return matplotlib.style.context(["default", _STYLE])


def new_chart(
    rows: float, *, title: str, alt: str, columns: int = 1, row_inches: float = 0.36
) -> tuple[Figure, list[Axes]]:
    """An empty figure on its panel with room for `rows` horizontal bars, and its axes from left to right.

    alt: what is to be seen, in words and with the numbers that matter, for those who cannot see it.
    """
    figure = Figure(figsize=(WIDTH_INCHES, 1.3 + row_inches * rows), layout="constrained", facecolor=PANEL)
    figure.get_layout_engine().set(w_pad=0.14, h_pad=0.12)  # inches between the drawing and the edge of its panel
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.set_facecolor(PANEL)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.02, ha="left", fontsize=11, fontweight="bold")
    figure.set_label(alt)
    return figure, list(axes)


def bar_rows(axis: Axes, labels: list[str]) -> None:
    """Name the rows of a horizontal bar chart from top to bottom."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x", color=RULE, linewidth=0.6)
    axis.set_axisbelow(True)


def legend_below(figure: Figure, axis: Axes, columns: int) -> None:
    """The legend under the chart, where it hides no bar."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=9)


def alt_text(figure: Figure) -> str:
    """The description that the figure was drawn with."""
    return figure.get_label()


def svg_text(figure: Figure) -> str:
    """The figure as SVG: the same bytes for the same figure, with its description inside, without a date."""
    file = io.StringIO()
    with styled():
        figure.savefig(file, format="svg", metadata={"Date": None, "Description": alt_text(figure)})
    return file.getvalue()


def save_svg(figure: Figure, path: Path) -> None:
    """Write the figure as SVG, whole or not at all."""
    write_text_atomic(Path(path), svg_text(figure))
