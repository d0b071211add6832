"""What held the memory at the peak of each rung: a stacked figure, the same as a table, and sentences. From records.

The parts are computed from each record's recipe when it is read; the measured peak stands beside their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from matplotlib.figure import Figure

from speedlab.errors import BadInput
from speedlab.ladder import LADDERS, NINE_STEPS, SIX_STEPS
from speedlab.memory_plan import COMPONENTS, MemoryPlan, is_counted, not_modelled, plan_memory
from speedlab.profile import PROFILES
from speedlab.publishing import formatting as form
from speedlab.publishing.facts import device_title
from speedlab.publishing.plotting import INK, bar_rows, legend_below, new_chart, styled
from speedlab.publishing.svg import BLUE, GREEN, ORANGE, SKY, VERMILION
from speedlab.publishing.tables import Table, rung_title
from speedlab.recipe import Recipe
from speedlab.records.record import Record
from speedlab.records.store import reading_order

COLOURS = dict(zip(COMPONENTS, (BLUE, VERMILION, ORANGE, "#CC79A7", SKY, GREEN, "#7d858e"), strict=True))
GRAPHS_NOTE = "CUDA graphs: a replay allocates nothing, so the allocator's count leaves out what the graphs keep"
# A change of the peak below this share of the first rung's is not worth a sentence.
WORTH_A_SENTENCE = 0.01
# Parts below this share of a rung's change are left out of its sentence.
WORTH_A_WORD = 0.05


@dataclass(frozen=True, kw_only=True)
class Parts:
    """One measured rung: its plan, and the peak that was measured, in bytes. counted: whether that saw everything."""

    title: str
    rung: str
    plan: MemoryPlan
    measured: int
    counted: bool = True

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.plan.peak_allocated_bytes / self.measured - 1


def parts_of(records: Sequence[Record]) -> list[Parts]:
    """The rungs of one device and ladder that have a measured peak and that the formulas know, in reading order."""
    places = {(record.device, record.ladder) for record in records}
    if len(places) != 1:
        raise BadInput(f"parts of memory need the records of one device and ladder, not of {len(places)}")
    found = []
    for record in sorted(records, key=reading_order):
        recipe = Recipe.from_dict(record.recipe)
        if record.peak_allocated_bytes is None or not_modelled(recipe):
            continue
        plan = plan_memory(recipe, capability=tuple(record.machine.get("capability") or (9, 0)))
        title = rung_title(record.ladder, record.rung)
        found.append(
            Parts(
                title=title, rung=record.rung, plan=plan, measured=record.peak_allocated_bytes,
                counted=is_counted(recipe),
            )
        )  # fmt: skip
    return found


def memory_parts(records: Sequence[Record]) -> Figure:
    """A stacked bar for each rung, its parts by formula, and a black line at the peak that was measured."""
    found = parts_of(records)
    if not found:
        raise BadInput("no measured peak to take apart: these records have none")
    shown = [name for name in COMPONENTS if any(one.plan.parts[name] for one in found)]
    sentences = "; ".join(
        f"{one.title} {form.gib(one.measured)} measured, "
        + ", ".join(f"{name} {form.gib(one.plan.parts[name])}" for name in shown if one.plan.parts[name])
        for one in found
    )
    toy = "" if PROFILES[records[0].profile].publishable else f", {records[0].profile} profile"
    with styled():
        figure, (axis,) = new_chart(
            len(found),
            title=f"What holds the memory at the peak: {records[0].machine['gpu'] or 'CPU'}{toy}",
            alt=f"Parts of the peak in GiB, by formula, along ladder {records[0].ladder}: {sentences}.",
        )
        places = range(len(found))
        starts = [0.0] * len(found)
        for name in shown:
            amounts = [one.plan.parts[name] / 2**30 for one in found]
            axis.barh(places, amounts, left=starts, height=0.62, color=COLOURS[name], label=name)
            starts = [start + amount for start, amount in zip(starts, amounts, strict=True)]
        for place, one in zip(places, found, strict=True):
            measured = one.measured / 2**30
            label = "peak allocated, measured" if place == 0 else None
            axis.plot([measured] * 2, [place - 0.42, place + 0.42], color=INK, linewidth=2.0, label=label)
            words = form.gib(one.measured)
            end = max(measured, starts[place])
            axis.annotate(words, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=8.5)
        bar_rows(axis, [one.title for one in found])
        axis.set_xlim(0, max(one.measured for one in found) / 2**30 * 1.12)
        axis.set_xlabel("GiB at the peak; the number and its line are measured")
        legend_below(figure, axis, 4)
    return figure


def parts_table(found: Sequence[Parts]) -> Table:
    """The same in numbers."""
    shown = [name for name in COMPONENTS if any(one.plan.parts[name] for one in found)]
    numbers = (*shown, "predicted", "measured", "error")
    cells = tuple(
        (
            one.title,
            *(form.gib(one.plan.parts[name]) if one.plan.parts[name] else "0" for name in shown),
            form.gib(one.plan.peak_allocated_bytes),
            form.gib(one.measured),
            signed_percent(one.error) if one.counted else "CUDA graphs",
        )
        for one in found
    )
    return Table(
        title="GiB at the peak",
        columns=("GiB at the peak", *numbers),
        cells=cells,
        numbers=frozenset(numbers),
        notes=(
            "parts and predicted: by formula, from the recipe alone; measured: what tensors held at the peak",
            *_moments(found),
            *(GRAPHS_NOTE for _ in found[:1] if not all(one.counted for one in found)),
        ),
    )


def savings(found: Sequence[Parts], ladder: str) -> list[str]:
    """One sentence for each rung whose measured peak moved, naming the parts that moved with it, by formula."""
    by_rung, sentences = {one.rung: one for one in found}, []
    for one in found:
        known = LADDERS.get(ladder)
        before = by_rung.get(known.before(one.rung) or "") if known and one.rung in known.keys else None
        if before is None or not (one.counted and before.counted):
            continue
        moved = one.measured - before.measured
        if abs(moved) < WORTH_A_SENTENCE * found[0].measured:
            continue
        changes = {name: one.plan.parts[name] - before.plan.parts[name] for name in COMPONENTS}
        named = sorted((name for name in COMPONENTS if abs(changes[name]) >= WORTH_A_WORD * abs(moved)),
                       key=lambda name: -abs(changes[name]))  # fmt: skip
        listed = ", ".join(f"{name} {changes[name] / 2**30:+.2f}" for name in named).replace("-", "\N{MINUS SIGN}")
        verb = "saved" if moved < 0 else "added"
        sentences.append(f"**{one.title}** {verb} {form.gib(abs(moved))} GiB (measured); by formula {listed}.")
    return sentences


def memory_section(records: Sequence[Record], draw: Callable[[str, Any, str], str]) -> str:
    """The fragment of a page: figure, sentences and table for each device's climb of both ladders.

    draw: saves a figure under a name with a caption and gives the directive that shows it.
    """
    words = []
    for (device, ladder), group in groupby(sorted(records, key=reading_order), key=lambda r: (r.device, r.ladder)):
        if ladder not in (NINE_STEPS.name, SIX_STEPS.name):
            continue
        whole = list(group)
        found = parts_of(whole)
        if not found:
            continue
        title = device_title(device)
        caption = f"What holds the memory along ladder {ladder} on {title}: parts by formula, peak measured."
        figure = draw(f"{ladder}-{device}-memory-parts", memory_parts(whole), caption)
        listed = "".join(f"* {sentence}\n" for sentence in savings(found, ladder))
        worst = max((one for one in found if one.counted), key=lambda one: abs(one.error), default=None)
        error = worst and f"The largest error of a prediction is {signed_percent(worst.error)}, at *{worst.title}*.\n\n"
        words.append(
            f"### {title}, ladder {ladder}\n\n{figure}{listed}\n{error or ''}{parts_table(found).markdown()}\n"
        )
    return "".join(words) or "No record with a peak of GPU memory is committed yet.\n"


def signed_percent(share: float) -> str:
    """0.0069 -> "+0.7 %"; what rounds to nothing has no sign."""
    words = f"{100 * share:+.1f} %"
    return "0.0 %" if float(words[:-2]) == 0 else words.replace("-", "\N{MINUS SIGN}")


def _moments(found: Sequence[Parts]) -> list[str]:
    """When the peaks are, in words; one note if it is the same moment everywhere."""
    moments = {one.plan.peak_at for one in found}
    if moments == {"loss"}:
        return ["every peak is at the loss's backward pass: all activations are kept still, and no gradient exists yet"]
    return [f"moment of the peak of {one.title}: {one.plan.peak_at}" for one in found]
