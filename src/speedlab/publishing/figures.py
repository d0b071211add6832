"""Figures of a ladder: speed, memory, where the time went, predicted against measured. It knows report rows alone.

Each function returns a matplotlib Figure; `plotting.svg_text` and `plotting.alt_text` give what a page needs of it.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from speedlab.errors import BadInput
from speedlab.ladder import LADDERS
from speedlab.profile import PROFILES
from speedlab.publishing import formatting as form
from speedlab.publishing.figures_of_records import kernel_kinds, loss_curves
from speedlab.publishing.plotting import (
    INK,
    LOST,
    MEASURED,
    MUTED,
    PUBLISHED,
    SAVED,
    SKY,
    UNCLEAR,
    alt_text,
    bar_rows,
    legend_below,
    new_chart,
    save_svg,
    styled,
    svg_text,
)
from speedlab.publishing.tables import rung_title
from speedlab.records.published import PublishedRow, published_row

__all__ = [
    "alt_text", "kernel_kinds", "ladder_speed", "loss_curves", "memory", "predicted_against_measured", "save_svg",
    "svg_text", "waterfall",
]  # fmt: skip

Row = dict[str, Any]


def ladder_speed(rows: list[Row], *, published: bool = True) -> Figure:
    """Tokens per second along the ladder with quartiles; published figures beside them in another colour, hatched."""
    return _bars_along_ladder(
        rows,
        published=published,
        what="tokens per second",
        scale=1e-3,
        axis_label="thousand tokens per second (median; the black line spans the quartiles)",
        value=lambda row: row["tokens_per_s"],
        quartiles=lambda row: (row["tokens_per_s_q1"], row["tokens_per_s_q3"]),
        published_value=lambda row: row.tokens_per_s,
        unit="k",
    )


def memory(rows: list[Row], *, published: bool = True) -> Figure:
    """Peak memory that the allocator reserved along the ladder, and the part of it that tensors filled."""
    return _bars_along_ladder(
        rows,
        published=published,
        what="peak memory",
        scale=2.0**-30,
        axis_label="peak memory in GiB on each GPU",
        value=lambda row: row["peak_reserved_bytes"],
        inner=lambda row: row["peak_allocated_bytes"],
        published_value=lambda row: row.reserved_gib and row.reserved_gib * 2**30,
        unit="GiB",
    )


def waterfall(rows: list[Row]) -> Figure:
    """How each rung shortens the time for 1,000 tokens; the bars add up from the first rung to the last.

    Grey: the difference does not exceed the spread. Rows of their own (not stacked) and of several GPUs are left out.
    """
    _check_rows(rows)
    known = LADDERS.get(rows[0]["ladder"])
    stacked = [
        row
        for row in rows
        if row["tokens_per_s"] is not None
        and row["world_size"] == 1
        and (known is None or row["rung"] not in known.keys or known.rung(row["rung"]).stacked)
    ]
    if len(stacked) < 2:
        raise BadInput(f"a waterfall of {_where(rows)} needs two measured rungs, there are {len(stacked)}")
    times = [1e6 / row["tokens_per_s"] for row in stacked]  # ms for 1,000 tokens
    labels = [_label(stacked[0]), *(_label(row) for row in stacked[1:]), "all together"]
    total = f"{form.three_digits(times[0])} to {form.three_digits(times[-1])} ms per 1,000 tokens"
    steps = "; ".join(
        f"{_label(row)} {after - before:+.2f} ms"
        for row, before, after in zip(stacked[1:], times, times[1:], strict=False)
    )
    with styled():
        figure, (axis,) = new_chart(
            len(labels), title=f"Where the milliseconds went: {_device(rows)}", alt=f"Waterfall from {total}: {steps}."
        )
        axis.barh(0, times[0], color=MEASURED, height=0.62, label="whole step")
        axis.barh(len(times), times[-1], color=MEASURED, height=0.62)
        used: set[str] = set()
        for index, row in enumerate(stacked[1:], start=1):
            before, after = times[index - 1], times[index]
            colour, name = _waterfall_colour(stacked[index - 1], row)
            axis.barh(
                index, before - after, left=after, color=colour, height=0.62, label=None if name in used else name
            )  # fmt: skip
            used.add(name)
            axis.plot([before, before], [index - 1 + 0.31, index + 0.31], color=MUTED, linewidth=0.8)
            words = f"{after - before:+.2f}".replace("-", "\N{MINUS SIGN}")
            if colour == UNCLEAR:
                _value(axis, max(before, after), index, f"{words}, {name}", colour=MUTED)
            else:
                _value(axis, max(before, after), index, words)
        axis.plot([times[-1]] * 2, [len(times) - 1 + 0.31, len(times) + 0.31], color=MUTED, linewidth=0.8)
        _value(axis, times[0], 0, form.three_digits(times[0]))
        _value(axis, times[-1], len(times), form.three_digits(times[-1]))
        bar_rows(axis, labels)
        axis.set_xlim(0, max(times) * 1.28)  # room for the words beside the longest bar
        axis.set_xlabel("ms per 1,000 tokens")
        legend_below(figure, axis, 4)
    return figure


def predicted_against_measured(rows: list[Row]) -> Figure:
    """Time of a step as predicted before the run (ring) and as measured (dot), on a logarithmic axis."""
    _check_rows(rows)
    both = [row for row in rows if row["predicted_step_ms"] and row["step_ms_median"]]
    if not both:
        raise BadInput(f"no rung of {_where(rows)} has a prediction and a measurement")
    predicted = [row["predicted_step_ms"] for row in both]
    measured = [row["step_ms_median"] for row in both]
    sentences = "; ".join(
        f"{_label(row)} {form.three_digits(p)} predicted, {form.three_digits(m)} measured"
        for row, p, m in zip(both, predicted, measured, strict=True)
    )
    with styled():
        figure, (axis,) = new_chart(
            len(both), title=f"Predicted against measured: {_device(rows)}", alt=f"Milliseconds per step: {sentences}."
        )
        places = range(len(both))
        axis.hlines(places, predicted, measured, color=MUTED, linewidth=1.4)
        axis.scatter(
            predicted, places, s=58, facecolor="white", edgecolor=LOST, linewidth=1.8, zorder=3, label="predicted"
        )
        axis.scatter(measured, places, s=58, color=MEASURED, zorder=3, label="measured (median)")
        axis.set_xscale("log")
        for place, low, high in zip(places, predicted, measured, strict=True):
            _value(axis, max(low, high), place, f"{form.three_digits(high / low)}x", pad=9)
        bar_rows(axis, [_label(row) for row in both])
        everything = predicted + measured
        axis.set_xlim(min(everything) / 1.25, max(everything) * 1.5)
        _plain_log_ticks(axis)
        axis.set_xlabel("ms per step, logarithmic; the words give measured over predicted")
        legend_below(figure, axis, 2)
    return figure


def _bars_along_ladder(
    rows: list[Row], *, published: bool, what: str, scale: float, axis_label: str, value, published_value, unit: str,
    quartiles=None, inner=None,
) -> Figure:  # fmt: skip
    """One horizontal bar for each rung, a second one for its published figure, and words where there is no number."""
    _check_rows(rows)
    ladder = rows[0]["ladder"]
    others: list[PublishedRow | None] = [None] * len(rows)
    if published and PROFILES[rows[0]["profile"]].publishable:
        others = [published_row(ladder, row["rung"]) for row in rows]
        others = [other if other is not None and published_value(other) else None for other in others]
    source = next((other for other in others if other is not None), None)
    height, offset = (0.40, 0.21) if source else (0.62, 0.0)
    sentences = []
    with styled():
        figure, (axis,) = new_chart(
            len(rows) * (1.45 if source else 1.0),
            title=f"{what.capitalize()} along the ladder: {_device(rows)}",
            alt="",
        )
        largest = max([value(row) or 0 for row in rows] + [published_value(other) for other in others if other]) * scale
        for place, (row, other) in enumerate(zip(rows, others, strict=True)):
            words = _words_for(value(row), scale, unit) if value(row) else row["status"].replace("_", " ")
            sentence = f"{_label(row)} {words}"
            if value(row):
                _bar(axis, place - offset, row, value, quartiles, inner, scale, height)
                end = quartiles(row)[1] if quartiles else value(row)
                _value(axis, end * scale, place - offset, words)
            else:
                _value(axis, 0, place - offset, words, colour=MUTED)
            if other:
                amount = published_value(other)
                several = f" ({other.gpus} GPUs)" if other.gpus > 1 else ""
                axis.barh(
                    place + offset, amount * scale, height=height * 0.8, color="white", edgecolor=PUBLISHED,
                    hatch="////", hatchcolor=PUBLISHED, label=_source(other) if other is source else None,
                )  # fmt: skip
                _value(axis, amount * scale, place + offset, _words_for(amount, scale, unit) + several, colour=MUTED)
                sentence += f" (published on {other.card}{several}: {_words_for(amount, scale, unit)})"
            sentences.append(sentence)
        figure.set_label(f"{what.capitalize()} on {_device(rows)}: {'; '.join(sentences)}.")
        bar_rows(axis, [_label(row) for row in rows])
        axis.set_xlim(0, (largest or 1) * 1.16)
        axis.set_xlabel(axis_label)
        if source or inner:
            legend_below(figure, axis, 1)
    return figure


def _bar(axis, place: float, row: Row, value, quartiles, inner, scale: float, height: float) -> None:
    """One measured bar; the first of a figure names itself for the legend."""
    device, first = _device([row]), not axis.get_legend_handles_labels()[1]
    if inner is not None and inner(row):
        labels = (f"reserved by the allocator, {device}", "of it filled by tensors") if first else (None, None)
        axis.barh(place, value(row) * scale, color=SKY, height=height, label=labels[0])
        axis.barh(place, inner(row) * scale, color=MEASURED, height=height, label=labels[1])
    else:
        axis.barh(
            place, value(row) * scale, color=MEASURED, height=height, label=f"measured: {device}" if first else None
        )
    if quartiles:
        q1, q3 = quartiles(row)
        axis.plot([q1 * scale, q3 * scale], [place, place], color=INK, linewidth=2.2, solid_capstyle="butt")


def _source(row: PublishedRow) -> str:
    return f"published: {row.card}, {row.source.title}"


def _words_for(amount: float, scale: float, unit: str) -> str:
    return f"{form.three_digits(amount * scale)} {unit}"


def _value(axis, x: float, y: float, words: str, *, colour: str = INK, pad: float = 4) -> None:
    """A number beside the end of its bar."""
    axis.annotate(words, (x, y), (pad, 0), textcoords="offset points", va="center", fontsize=8.5, color=colour)


def _waterfall_colour(previous: Row, row: Row) -> tuple[str, str]:
    """Colour of a bar and its name in the legend. A rung that was not measured between the two changes the pair."""
    clear = row["speedup_step_clear"]
    if row["before"] != previous["rung"]:
        clear = (
            row["tokens_per_s_q1"] > previous["tokens_per_s_q3"] or row["tokens_per_s_q3"] < previous["tokens_per_s_q1"]
        )
    if not clear:
        return UNCLEAR, form.NO_CLEAR_DIFFERENCE
    return (SAVED, "faster") if row["tokens_per_s"] > previous["tokens_per_s"] else (LOST, "slower")


def _plain_log_ticks(axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _label(row: Row) -> str:
    return rung_title(row["ladder"], row["rung"])


def _device(rows: list[Row]) -> str:
    toy = "" if PROFILES[rows[0]["profile"]].publishable else f", {rows[0]['profile']} profile (speeds mean nothing)"
    return f"{rows[0]['gpu'] or 'CPU'}{toy}"


def _where(rows: list[Row]) -> str:
    return f"{rows[0]['device']}/{rows[0]['ladder']}" if rows else "no rows"


def _check_rows(rows: list[Row]) -> None:
    """One figure shows one device and ladder."""
    places = {(row["device"], row["ladder"]) for row in rows}
    if len(places) != 1:
        names = ", ".join("/".join(place) for place in sorted(places)) or "none"
        raise BadInput(f"a figure shows the rows of one device and ladder, not of {len(places)}: {names}")
