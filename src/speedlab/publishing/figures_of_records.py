"""Figures that need whole records: which kernels the time went to, and the losses that a contract compares."""

from __future__ import annotations

from matplotlib.figure import Figure

from speedlab.errors import BadInput
from speedlab.publishing import formatting as form
from speedlab.publishing.plotting import (
    AFTER,
    BEFORE,
    INK,
    LOST,
    PUBLISHED,
    bar_rows,
    legend_below,
    new_chart,
    styled,
)
from speedlab.publishing.tables import rung_title
from speedlab.records.record import Record


def kernel_kinds(before: Record, after: Record) -> Figure:
    """Time on the device by kind of kernel, before and after a change, for the tokens of one step of `before`."""
    tokens = before.tokens_per_step
    if not (before.kernels and after.kernels and tokens and after.tokens_per_step):
        raise BadInput(f"no kernel tables to compare: {before.rung} and {after.rung} need one each")
    one = milliseconds_by_kind(before)
    # Another batch is another amount of work; both sides show the time of the same tokens.
    two = {kind: ms * tokens / after.tokens_per_step for kind, ms in milliseconds_by_kind(after).items()}
    kinds = sorted(one | two, key=lambda kind: -max(one.get(kind, 0.0), two.get(kind, 0.0)))
    names = _name(before), _name(after)
    sentences = "; ".join(
        f"{kind} {form.three_digits(one.get(kind, 0.0))} before, {form.three_digits(two.get(kind, 0.0))} after"
        for kind in kinds
    )
    with styled():
        figure, (axis,) = new_chart(
            len(kinds) * 1.4,
            title="Time by kind of kernel",
            alt=f"Milliseconds by kind of kernel, {names[0]} before and {names[1]} after: {sentences}.",
        )
        largest = max([*one.values(), *two.values()])
        for values, offset, colour, name in ((one, -0.2, BEFORE, names[0]), (two, 0.2, AFTER, names[1])):
            places = [place + offset for place in range(len(kinds))]
            amounts = [values.get(kind, 0.0) for kind in kinds]
            axis.barh(places, amounts, height=0.36, color=colour, label=f"{name}: {sum(amounts):,.1f} ms in all")
            for place, amount in zip(places, amounts, strict=True):
                words = form.three_digits(amount) if amount else "none"
                axis.annotate(words, (amount, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
        bar_rows(axis, kinds)
        axis.set_xlim(0, largest * 1.12)
        axis.set_xlabel(f"ms of kernel time for {tokens:,} tokens")
        legend_below(figure, axis, 1)
    return figure


def milliseconds_by_kind(record: Record) -> dict[str, float]:
    """Milliseconds of one step by kind of kernel."""
    times: dict[str, float] = {}
    for kernel in record.kernels:
        times[kernel["kind"]] = times.get(kernel["kind"], 0.0) + kernel["time_us"] / 1e3
    return times


def loss_curves(record: Record, *, before_title: str | None = None) -> Figure:
    """The losses of a rung over those of the rung before it, and their difference beside its tolerance."""
    detail = record.contract_detail or {}
    before = detail.get("losses_before")
    if not record.losses or not before:
        raise BadInput(f"{record.ladder}/{record.rung} has no losses to compare: its contract is {record.contract}")
    name = before_title or rung_title(record.ladder, detail.get("before") or "before")
    tolerance = detail.get("tolerance")
    compared = tolerance is not None and len(before) == len(record.losses)
    difference = [abs(one - two) for one, two in zip(before, record.losses, strict=True)] if compared else []
    apart = any(difference)  # a second panel full of zeros would say nothing
    verdict = f"{record.contract}: {record.contract_verdict}"
    with styled():
        figure, axes = new_chart(
            6,
            columns=2 if apart else 1,
            title=f"Same training? {verdict}",
            alt=_loss_words(record, before, name, tolerance if compared else None),
        )
        steps = range(1, len(before) + 1)
        axes[0].plot(steps, before, color=PUBLISHED, marker="o", markersize=5, linewidth=3.5, label=name)
        axes[0].plot(
            range(1, len(record.losses) + 1), record.losses, color=AFTER, marker="x", markersize=5, linewidth=1.3,
            label=_name(record),
        )  # fmt: skip
        axes[0].set_ylabel("loss in nats")
        axes[0].legend(frameon=False, fontsize=9)
        if apart:
            axes[1].plot(steps, difference, color=AFTER, marker="x", markersize=5, linewidth=1.3, clip_on=False)
            axes[1].axhline(tolerance, color=LOST, linewidth=1.6, linestyle="--")
            axes[1].annotate(
                f"tolerance {tolerance:g}", (1, tolerance), (0, 4), textcoords="offset points", fontsize=8.5, color=INK
            )
            axes[1].set_ylim(0, max([*difference, tolerance]) * 1.25)
            axes[1].set_ylabel("absolute difference in nats")
        for axis in axes:
            axis.set_xlabel("step")
            axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


def training_curves(record: Record) -> Figure:
    """Loss over tokens seen, of a rung that alters the training and of the rung before it."""
    detail = record.contract_detail or {}
    if "curve" not in detail:
        raise BadInput(f"{record.ladder}/{record.rung} has no loss curves: its contract is {record.contract}")
    name = rung_title(record.ladder, detail["before"])
    curves = ((detail["curve_before"], name, PUBLISHED, 3.5), (detail["curve"], _name(record), AFTER, 1.3))
    with styled():
        figure, (axis,) = new_chart(
            6,
            title="Loss over the same text",
            alt=f"Loss over tokens seen: {name} ends at {curves[0][0]['losses'][-1]:.3f} nats, {_name(record)} at "
            f"{curves[1][0]['losses'][-1]:.3f}; the gap over the last tenth is {detail['gap']:+.3f}.",
        )
        for curve, label, colour, width in curves:
            axis.plot([n / 1e6 for n in curve["tokens"]], curve["losses"], color=colour, linewidth=width, label=label)
        axis.set_xlabel("million tokens seen")
        axis.set_ylabel("loss in nats")
        axis.legend(frameon=False, fontsize=9)
    return figure


def _loss_words(record: Record, before: list[float], name: str, tolerance: float | None) -> str:
    first, last = record.losses[0], record.losses[-1]
    words = (
        f"Loss of {_name(record)} from {first:.3f} to {last:.3f} over {len(record.losses)} steps, "
        f"and of {name} from {before[0]:.3f} to {before[-1]:.3f}"
    )
    if tolerance is None:
        return words + "."
    largest = max(abs(one - two) for one, two in zip(before, record.losses, strict=True))
    return f"{words}; the largest difference is {largest:.2g}, the tolerance {tolerance:g}."


def _name(record: Record) -> str:
    return rung_title(record.ladder, record.rung)
