"""Where the milliseconds between one GPU and several lie, as Markdown: sweep, timeline, power. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

from speedlab.publishing import formatting as form
from speedlab.records import stats
from speedlab.records.experiment import Experiment
from speedlab.records.record import Record

# What people call good: 1.95x on two GPUs, 3.9x on four.
ASKED_EACH = 0.975
# Rows of the sweep that average no gradients: what there is without an exchange.
WITHOUT_EXCHANGE = ("independent", "nothing_sent")
AS_IT_COMES = "defaults"


def sweep_table(experiment: Experiment) -> str:
    """Each way of exchanging in order of speed, and whether it differs from the way that DDP comes with."""
    lines = [
        "| exchange | ms a step | slowest GPU, ms | speed over DDP as it comes | W each | J a step, each |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    measured = sorted(experiment.measured, key=lambda row: median(row["step_ms"]))
    base = next((row for row in measured if row["key"] == AS_IT_COMES), None)
    for row in measured:
        gain = None if base is None or row is base else stats.times_faster(base["step_ms"], row["step_ms"])
        cells = [
            form.three_digits(median(row["step_ms"])), form.three_digits(max(row["median_step_ms_of_each"])),
            form.NOTHING if gain is None else form.ratio(gain.value, clear=gain.clear),
            form.count(_watts(row)), form.three_digits(_joules(row)),
        ]  # fmt: skip
        lines.append("| " + " | ".join([row["title"], *cells]) + " |")
    text = "\n".join(lines) + "\n"
    left = [row for row in experiment.rows if row["status"] != "measured"]
    return text + ("\n" + _not_measured(left) if left else "")


def where_it_goes(experiment: Experiment, alone: Record | None) -> str:
    """From one program on each GPU to the exchange, stage by stage: what each adds, in milliseconds and joules.

    alone: one GPU on the same machine. It is a stage where it was timed in the same session, else a sentence: no
    difference crosses sessions.
    """
    rows = {row["key"]: row for row in experiment.measured}
    stages = [
        (words, rows[key]["step_ms"], _joules(rows[key]))
        for key, words in (
            ("independent", "the same program on all GPUs at once, without DDP"),
            ("nothing_sent", "with DDP that sends nothing"),
            (AS_IT_COMES, "with the exchange, as DDP comes"),
        )
        if key in rows
    ]
    together = alone is not None and alone.session == experiment.session
    if together:
        stages.insert(0, ("one GPU alone", alone.step_ms, _joules_of(alone)))
    lines = ["| stage | ms a step | added, ms | J a step, each |", "| --- | ---: | ---: | ---: |"]
    before: list[float] = []
    for words, samples, joules in stages:
        added = f"{median(samples) - median(before):+.2f}" if before else form.NOTHING
        if before and not stats.times_faster(before, samples).clear:
            added += ", within the spread"
        lines.append(f"| {words} | {median(samples):.2f} | {added} | {form.three_digits(joules)} |")
        before = samples
    sharing = [row for row in experiment.measured if row["key"] not in WITHOUT_EXCHANGE]
    sentences = [] if together or alone is None else [
        f"One GPU alone took {median(alone.step_ms):.2f} ms a step in another session on this machine."
    ]  # fmt: skip
    if sharing:
        best = min(sharing, key=lambda row: median(row["step_ms"]))
        best_ms, first, first_ms = median(best["step_ms"]), stages[0][0], median(stages[0][1])
        sentence = f"By medians the fastest exchange of the sweep is *{best['title']}*, {best_ms:.2f} ms a step"
        if len(stages) > 1:
            sentence += f": {best_ms - first_ms:.2f} ms more than {first}"
        if together:
            sentence += f", a scaling of {form.three_digits(best['gpus'] * first_ms / best_ms)}x"
        alike = [row for row in sharing if not stats.times_faster(row["step_ms"], best["step_ms"]).clear]
        if len(alike) > 1:
            which = "all" if len(alike) == len(sharing) else f"{len(alike) - 1} of"
            sentence += f"; {which} the other {len(sharing) - 1} ways to exchange lie within the spread of it"
        sentences.append(sentence + ".")
    sentences += [words for words in (_power_words(experiment), hiding_words(experiment)) if words]
    return "\n".join([*lines, "", *(f"* {sentence}" for sentence in sentences)]) + "\n"


def hiding_words(experiment: Experiment) -> str:
    """What hiding costs: the sweep's exchange beside the backward pass against the one behind it; "" without both."""
    rows = {row["key"]: _timeline(row.get("communication")) for row in experiment.measured}
    beside, behind = rows.get("tuned"), rows.get("whole_graph")
    if not beside or not behind:
        return ""
    hidden = [times["communication_ms"] - times["exposed_ms"] for times in (beside, behind)]
    parts = ", ".join(
        f"{words} {beside[name] - behind[name]:+.2f} ms"
        for name, words in (
            ("exposed_ms", "exposed exchange"), ("compute_ms", "computing"), ("idle_ms", "pauses"),
            ("span_ms", "the whole step"),
        )
    )  # fmt: skip
    return (
        f"Hiding has its price. With the graph cut at the buckets {hidden[0]:.2f} ms of the exchange are hidden, uncut "
        f"{hidden[1]:.2f} ms. What the cut changes in the timelines: {parts}."
    )


def timeline_table(rows: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Two tables with one row for each (title, communication): the step of rank 0 by what ran, and its exchange.

    "" where no step was drawn on a line of time.
    """
    rows = [(title, communication) for title, communication in rows if _timeline(communication)]
    if not rows:
        return ""
    step = [
        "| step of rank 0 | in all, ms | computing | exposed exchange | pauses |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    exchange = [
        "| its exchange | in all, ms | hidden | each GPU sends, MB | by the link's rate, ms | begins after, ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, communication in rows:
        times = _timeline(communication)
        sending, exposed = times["communication_ms"], times["exposed_ms"]
        cells = [form.three_digits(times[name]) for name in ("span_ms", "compute_ms", "exposed_ms", "idle_ms")]
        step.append("| " + " | ".join([title, *cells]) + " |")
        cells = [
            form.three_digits(sending), form.percent(1 - exposed / sending if sending else None),
            form.count(communication["ring_bytes"] / 1e6), form.three_digits(communication.get("ring_ms")),
            form.three_digits(times["first_exchange_ms"]),
        ]  # fmt: skip
        exchange.append("| " + " | ".join([title, *cells]) + " |")
    return "\n".join([*step, "", *exchange]) + "\n"


def what_is_left(pairs: Sequence[tuple[str, Record, Record]]) -> str:
    """For each (title, one GPU, several GPUs): is the asked share kept, and which milliseconds are too many.

    Both records of a pair come from one session, with the same work for each GPU.
    """
    lines = [
        f"| recipe | GPUs | ms more than one GPU | of it exposed | the rest | {form.percent(ASKED_EACH)} each "
        "| ms too many |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for title, one, several in pairs:
        gpus = several.recipe["data_parallel"]
        one_ms, several_ms = median(one.step_ms), median(several.step_ms)
        ratio = stats.speedup(one, several)
        assert ratio is not None, "only measured records are here"
        exposed = _timeline(several.communication).get("exposed_ms")
        more, too_many = several_ms - one_ms, several_ms - one_ms / ASKED_EACH
        reached = "reached" if too_many <= 0 else "not reached"
        if too_many <= 0 and ratio.low < ASKED_EACH * gpus:
            reached += ", but the interval goes below"
        rest = form.NOTHING if exposed is None else f"{more - exposed:.2f}"
        lines.append(
            f"| {title} | {gpus} | {more:.2f} | {form.three_digits(exposed)} | {rest} | {reached} | "
            f"{form.NOTHING if too_many <= 0 else f'{too_many:.2f}'} |"
        )
    words = (
        "The rest is computing that takes longer and pauses that do; without a timeline of one GPU nothing tells them "
        "apart."
    )
    return "\n".join([*lines, "", words]) + "\n"


def lesson_words(pairs: Sequence[tuple[str, Record, Record]]) -> str:
    """What the largest number of GPUs makes of each recipe, and which of them keeps the asked share.

    pairs: as in `what_is_left`, at least one.
    """
    gpus = max(several.recipe["data_parallel"] for _, _, several in pairs)
    gains = [
        (title, ratio)
        for title, one, several in pairs
        if several.recipe["data_parallel"] == gpus and (ratio := stats.speedup(one, several)) is not None
    ]
    asked = f"{form.three_digits(ASKED_EACH * gpus)}x"
    told = [
        f"*{title}* {form.three_digits(ratio.value)}x ({form.interval(ratio.low, ratio.high)})"
        for title, ratio in gains
    ]
    reached = [words for words, (_, ratio) in zip(told, gains, strict=True) if ratio.value >= ASKED_EACH * gpus]
    missed = [words for words in told if words not in reached]
    parts = [f"At least {asked} on {gpus} GPUs: {'; '.join(reached) or 'with no recipe'}."]
    if missed:
        parts.append(f"Not with {'; '.join(missed)}.")
    return " ".join([*parts, "One session on one machine."])


def link_words(experiment: Experiment) -> str:
    """The rate of the link by the size of what is sent."""
    rates = ", ".join(
        f"{row['bus_bytes_per_s'] / 1e9:,.0f} GB/s at {row['bytes'] / 2**20:.0f} MiB"
        for row in experiment.settings.get("link", [])
    )
    return f"The link, measured in the same session by all-reduce alone: {rates or 'not measured'}."


def _not_measured(rows: Sequence[dict[str, Any]]) -> str:
    """Rows that have no numbers, by reason: a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(f"{row['status'].replace('_', ' ')}: {row['reason']}", []).append(row["title"])
    return "".join(f"Not measured ({reason}): {'; '.join(titles)}.\n" for reason, titles in reasons.items())


def _power_words(experiment: Experiment) -> str:
    """How near to the power limit the rows ran, as a range; "" where no energy was counted."""
    watts = [found for row in experiment.measured if (found := _watts(row)) is not None]
    limit = experiment.machine.get("power_limit_w")
    if not watts or not limit:
        return ""
    low, high = form.count(min(watts)), form.count(max(watts))
    text = f"Each GPU took {low} to {high} W in these rows; its limit is {form.count(limit)} W."
    if max(watts) > 0.9 * limit:
        text += " At the limit clocks follow the work: a kernel that is hidden still takes joules from the others."
    return text


def _joules(row: dict[str, Any]) -> float | None:
    """Joules of one GPU in one step of a row; None where they were not counted."""
    if not row.get("energy_j"):
        return None
    return row["energy_j"] / (row.get("energy_steps") or len(row["step_ms"])) / row["gpus"]


def _joules_of(record: Record) -> float | None:
    if not record.energy_j:
        return None
    return record.energy_j / stats.energy_steps(record) / record.recipe["data_parallel"]


def _watts(row: dict[str, Any]) -> float | None:
    joules = _joules(row)
    return None if joules is None else joules / fmean(row["step_ms"]) * 1e3


def _timeline(communication: dict[str, Any] | None) -> dict[str, Any]:
    return (communication or {}).get("timeline") or {}
