"""Two folders of records as one drawing: your machine beside the published ones. It knows comparisons, not files."""

from __future__ import annotations

from matplotlib.figure import Figure

from speedlab.errors import BadInput
from speedlab.publishing import formatting as form
from speedlab.publishing.compare import PUBLISHED, Comparison, Pair
from speedlab.publishing.facts import device_title
from speedlab.publishing.plotting import (
    INK,
    MEASURED,
    MUTED,
    SAVED,
    SKY,
    UNCLEAR,
    bar_rows,
    legend_below,
    new_chart,
    styled,
)
from speedlab.publishing.plotting import PUBLISHED as ORANGE
from speedlab.publishing.tables import rung_title

# Side A first, then one colour for each device of side B; more than these could not be told apart.
COLOURS = (MEASURED, ORANGE, SKY, SAVED, UNCLEAR)


def comparison_figure(comparison: Comparison) -> Figure:
    """Tokens per second of each rung, a bar for side A and one for each device of side B, with their ratio.

    `BadInput` for several ladders or devices on side A, and for more devices on side B than colours.
    """
    of_a = sorted({(pair.ladder, pair.device_a) for pair in comparison.pairs})
    if len(of_a) != 1:
        names = ", ".join("/".join(place) for place in of_a)
        raise BadInput(f"a figure shows one ladder on one device of A, not {names}: give a folder that holds only one")
    pairs = comparison.pairs
    if len(pairs) >= len(COLOURS):
        raise BadInput(f"a figure shows up to {len(COLOURS) - 1} devices of B, not {len(pairs)}")
    ladder, device_a = of_a[0]
    names = [_name(comparison.a, device_a), *(_name(comparison.b, pair.device_b) for pair in pairs)]
    rungs = list(dict.fromkeys(row["rung"] for pair in pairs for row in pair.rows))
    speeds = [_speeds(pairs[0], "a"), *(_speeds(pair, "b") for pair in pairs)]
    sentences = []
    with styled():
        figure, (axis,) = new_chart(
            len(rungs) * (0.5 + 0.62 * len(names)), title=f"{names[0]} beside {', '.join(names[1:])}", alt=""
        )
        height = 0.8 / len(names)
        largest = max((speed for side in speeds for speed in side.values() if speed), default=1.0)
        for number, (name, side) in enumerate(zip(names, speeds, strict=True)):
            offset = (number - (len(names) - 1) / 2) * height
            axis.barh(
                [place + offset for place in range(len(rungs))], [(side.get(rung) or 0) / 1e3 for rung in rungs],
                height=height * 0.92, color=COLOURS[number], label=name,
            )  # fmt: skip
            for place, rung in enumerate(rungs):
                words = _words(side.get(rung), pairs[number - 1] if number else None, rung)
                axis.annotate(
                    words, ((side.get(rung) or 0) / 1e3, place + offset), (4, 0), textcoords="offset points",
                    va="center", fontsize=8.5, color=INK if side.get(rung) else MUTED,
                )  # fmt: skip
                sentences.append(f"{rung_title(ladder, rung)} on {name} {words}")
        bar_rows(axis, [rung_title(ladder, rung) for rung in rungs])
        axis.set_xlim(0, largest / 1e3 * 1.45)
        axis.set_xlabel("thousand tokens per second (median), and the ratio to the first bar")
        legend_below(figure, axis, 2)
        figure.set_label(f"Tokens per second along ladder {ladder}: {'; '.join(sentences)}.")
    return figure


def _name(side: str, device: str) -> str:
    return f"{device_title(device)}, published" if side == PUBLISHED else f"{device_title(device)}, yours"


def _speeds(pair: Pair, side: str) -> dict[str, float | None]:
    return {row["rung"]: row[f"tokens_per_s_{side}"] for row in pair.rows}


def _words(speed: float | None, pair: Pair | None, rung: str) -> str:
    """The speed, for a device of B with the ratio to A; or that there is none."""
    if not speed:
        return "not measured"
    words = f"{form.three_digits(speed / 1e3)} k"
    row = next((row for row in pair.rows if row["rung"] == rung), None) if pair else None
    if row is None or row["ratio"] is None:
        return words
    return f"{words}, {form.ratio(row['ratio'], clear=row['clear'])}"
