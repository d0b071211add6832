"""The roofline of a ladder: how much arithmetic each rung does per byte, how fast, and under which measured limit.

It reads records: times, and the ceilings of their session. Arithmetic and bytes are counted from the recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure

from speedlab.errors import BadInput
from speedlab.measuring.counting import flops, moved_bytes
from speedlab.publishing import formatting as form
from speedlab.publishing.facts import device_title
from speedlab.publishing.plotting import INK, LOST, MEASURED, MUTED, PUBLISHED, SAVED, legend_below, new_chart, styled
from speedlab.publishing.tables import Table, rung_title
from speedlab.recipe import Recipe
from speedlab.records.record import Record
from speedlab.work import compute_dtype

# Roofs from the lowest to the highest, each with a colour and a marker: colour alone would not tell them apart.
FORMATS = {
    "float32": ("float32", MEASURED, "o"), "tf32": ("TF32", PUBLISHED, "s"), "bfloat16": ("bfloat16", SAVED, "D"),
    "float16": ("float16", LOST, "^"),
}  # fmt: skip
# Points nearer to each other than the first ratio, in both directions, share a label; nearer than the second, they
# put theirs on opposite sides.
SAME_PLACE, CLOSE = 1.04, 1.3


@dataclass(frozen=True)
class Point:
    """One rung. intensity: FLOP per byte. flops_per_s: reached on each GPU; limit_*: what the two ceilings allow."""

    number: int
    title: str
    dtype: str
    intensity: float
    flops_per_s: float
    limit_flops_per_s: float
    bound_by: str


def points(records: list[Record]) -> list[Point]:
    """The measured rungs whose session measured the rate of their format, in the order of `records`."""
    found = []
    for record in records:
        recipe = Recipe.from_dict(record.recipe)
        dtype = compute_dtype(recipe)
        rate = (record.ceilings or {}).get("matmul_flops_per_s", {}).get(dtype)
        if record.status != "measured" or rate is None:
            continue
        intensity = flops(recipe) / moved_bytes(recipe)
        slope = record.ceilings["copy_bytes_per_s"] * intensity
        found.append(
            Point(
                number=len(found) + 1,
                title=rung_title(record.ladder, record.rung),
                dtype=dtype,
                intensity=intensity,
                flops_per_s=flops(recipe) / (median(record.step_ms) / 1e3),
                limit_flops_per_s=min(rate, slope),
                bound_by="memory bandwidth" if slope < rate else f"{FORMATS[dtype][0]} matmul rate",
            )
        )
    return found


def roofline(records: list[Record]) -> Figure:
    """FLOP/s over FLOP per byte, both logarithmic, under the session's matmul rates and its copy bandwidth."""
    shown = points(records)
    if not shown:
        raise BadInput("a roofline needs a measured rung whose session measured its ceilings, and there is none")
    device = device_title(records[0].device)
    rates, bandwidth = _ceilings(records, {point.dtype for point in shown})
    sentences = "; ".join(
        f"{p.number} {p.title} {form.three_digits(p.intensity)} FLOP per byte, "
        f"{form.three_digits(p.flops_per_s / 1e12)} TFLOP/s of {form.three_digits(p.limit_flops_per_s / 1e12)}"
        for p in shown
    )
    with styled():
        figure, (axis,) = new_chart(
            9, title=f"Arithmetic against memory traffic: {device}", alt=f"Roofline: {sentences}."
        )  # fmt: skip
        left = min(p.intensity for p in shown) / 1.6
        right = max([*(p.intensity for p in shown), *(rate / bandwidth for rate in rates.values())]) * 2.2
        ridge = max(rates.values()) / bandwidth
        axis.plot(
            [left, ridge], [left * bandwidth / 1e12, ridge * bandwidth / 1e12], color=INK, linewidth=1.6,
            label=f"memory bandwidth, {form.three_digits(bandwidth / 1e12)} TB/s",
        )  # fmt: skip
        for dtype, rate in rates.items():
            name, colour, marker = FORMATS[dtype]
            of_format = [p for p in shown if p.dtype == dtype]
            axis.plot([rate / bandwidth, right], [rate / 1e12] * 2, color=colour, linewidth=1.6)
            axis.scatter(
                [p.intensity for p in of_format], [p.flops_per_s / 1e12 for p in of_format], s=46, color=colour,
                marker=marker, zorder=3, label=f"{name}, {form.three_digits(rate / 1e12)} TFLOP/s",
            )  # fmt: skip
        labels = _labels(shown)
        for label, p in labels:
            # Below to the right, or above to the left where another point lies close below.
            crowded = any(q.flops_per_s < p.flops_per_s and _near(q, p, CLOSE) for _, q in labels)
            offset, side = ((-7, 5), "right") if crowded else ((7, -9), "left")
            axis.annotate(
                label, (p.intensity, p.flops_per_s / 1e12), offset, textcoords="offset points", ha=side, fontsize=9
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlim(left, right)
        axis.set_ylim(min(p.flops_per_s for p in shown) / 1e12 / 1.8, max(rates.values()) / 1e12 * 1.7)
        axis.grid(color=MUTED, linewidth=0.4, alpha=0.4)
        _plain_ticks(axis)
        axis.set_xlabel("FLOP per byte read or written, logarithmic (counted)")
        axis.set_ylabel("TFLOP/s, logarithmic (measured)")
        legend_below(figure, axis, 3)
    return figure


def roofline_table(records: list[Record]) -> Table:
    """The numbers of the figure, by the numbers of its points."""
    cells = tuple(
        (
            str(p.number),
            p.title,
            form.three_digits(p.intensity),
            form.three_digits(p.flops_per_s / 1e12),
            form.three_digits(p.limit_flops_per_s / 1e12),
            form.percent(p.flops_per_s / p.limit_flops_per_s),
            p.bound_by,
        )
        for p in points(records)
    )
    numbers = ("FLOP per byte", "TFLOP/s", "roof TFLOP/s", "of the roof")
    return Table("", ("no.", "rung", *numbers, "roof"), cells, numbers=frozenset(("no.", *numbers)))


def _ceilings(records: list[Record], dtypes: set[str]) -> tuple[dict[str, float], float]:
    """Rates of the formats that ran, lowest first, and the bandwidth: all rows of one session share them."""
    ceilings = next(record.ceilings for record in records if record.ceilings)
    rates = {dtype: ceilings["matmul_flops_per_s"][dtype] for dtype in FORMATS if dtype in dtypes}
    return dict(sorted(rates.items(), key=lambda item: item[1])), ceilings["copy_bytes_per_s"]


def _labels(shown: list[Point]) -> list[tuple[str, Point]]:
    """Numbers of the points, those in one place joined: "1, 2"."""
    groups: list[list[Point]] = []
    for point in shown:
        for group in groups:
            if _near(point, group[0], SAME_PLACE):
                group.append(point)
                break
        else:
            groups.append([point])
    return [(", ".join(str(point.number) for point in group), group[0]) for group in groups]


def _near(one: Point, two: Point, ratio: float) -> bool:
    ratios = one.intensity / two.intensity, one.flops_per_s / two.flops_per_s
    return all(1 / ratio < r < ratio for r in ratios)


def _plain_ticks(axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        one.set_minor_formatter(NullFormatter())
