"""What the book says of several GPUs, as Markdown from records and experiments. It displays and measures nothing."""

from __future__ import annotations

from statistics import median
from typing import Any

from speedlab.folklore.source import code_lines, package_source
from speedlab.publishing import formatting as form
from speedlab.records.experiment import Experiment
from speedlab.records.record import Record
from speedlab.records.rows import report_rows
from speedlab.scaling_plan import SERIES

# What a program for one GPU does not need: starting processes, joining the group, sharing the model out.
SEVERAL_GPU_SOURCES = {
    "training/parallel.py": "share the model out: DDP, FSDP2",
    "training/distributed.py": "join the group, find the own device",
    "training/launching.py": "start the processes, pass on an error, leave none behind",
}


def series_table(records: list[Record]) -> str:
    """One row for each series and number of GPUs of one device. each keeps: speed of each GPU over one alone."""
    lines = [
        "| recipe | GPUs | tokens/s | ms a step | scaling | each keeps | exchange, ms | of it exposed, ms | losses |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    titles = {series.name: series.title for series in SERIES}
    communication = {(record.ladder, record.rung): _timeline(record.communication) for record in records}
    for row in report_rows(records):
        timeline = communication[row["ladder"], row["rung"]]
        if row["status"] != "measured":
            cells = [f"{row['status'].replace('_', ' ')}: {row['reason']}"] + [form.NOTHING] * 5
        else:
            share = row["scaling"] and row["scaling"] / row["world_size"]
            cells = [
                form.count(row["tokens_per_s"]), form.three_digits(row["step_ms_median"]),
                form.NOTHING if row["scaling"] is None else f"{form.three_digits(row['scaling'])}x",
                form.percent(share), form.three_digits(timeline.get("communication_ms")),
                form.three_digits(timeline.get("exposed_ms")),
            ]  # fmt: skip
        title = titles.get(row["ladder"], row["ladder"])
        verdict = row["contract_verdict"] or "not compared"
        lines.append("| " + " | ".join([title, str(row["world_size"]), *cells, verdict]) + " |")
    return "\n".join(lines) + "\n"


def sweep_table(experiment: Experiment) -> str:
    """Each way of exchanging beside the way that DDP comes with, in order of speed."""
    lines = [
        "| exchange | ms a step | slowest GPU, ms | exchange, ms | exposed, ms | first after, ms | update, ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    measured = sorted(experiment.measured, key=lambda row: median(row["step_ms"]))
    for row in measured:
        timeline = _timeline(row.get("communication"))
        cells = [form.three_digits(median(row["step_ms"])), form.three_digits(max(row["median_step_ms_of_each"]))]
        names = ("communication_ms", "exposed_ms", "first_exchange_ms", "optimizer_ms")
        cells += [form.three_digits(timeline.get(name)) for name in names]
        lines.append("| " + " | ".join([row["title"], *cells]) + " |")
    for row in experiment.rows:
        if row["status"] != "measured":
            reason = f"{row['status'].replace('_', ' ')}: {row['reason']}".replace("|", "\\|")
            lines.append("| " + " | ".join([row["title"], reason, *[form.NOTHING] * 5]) + " |")
    return "\n".join(lines) + "\n"


def where_it_goes(alone: Record, experiment: Experiment) -> str:
    """From one GPU to several, step by step: what each part of the machinery adds, in milliseconds."""
    rows = {row["key"]: median(row["step_ms"]) for row in experiment.measured}
    stages = [("one GPU alone", median(alone.step_ms))]
    stages += [
        (words, rows[key])
        for key, words in (
            ("independent", "the same program on all GPUs at once, without DDP"),
            ("nothing_sent", "with DDP that sends nothing"),
            ("defaults", "with the exchange, as DDP comes"),
        )
        if key in rows
    ]
    lines = ["| stage | ms a step | added, ms |", "| --- | ---: | ---: |"]
    before = None
    for words, ms in stages:
        lines.append(f"| {words} | {ms:.2f} | {form.NOTHING if before is None else f'{ms - before:+.2f}'} |")
        before = ms
    sharing = {row["key"]: row for row in experiment.measured if row["key"] not in ("independent", "nothing_sent")}
    if sharing:
        best = min(sharing.values(), key=lambda row: median(row["step_ms"]))
        alone_ms, best_ms = stages[0][1], median(best["step_ms"])
        lines += [
            "",
            f"The fastest exchange of the sweep is *{best['title']}*, {best_ms:.2f} ms a step: "
            f"{best_ms - alone_ms:.2f} ms more than one GPU alone, a scaling of "
            f"{form.three_digits(best['gpus'] * alone_ms / best_ms)}x.",
        ]
    return "\n".join(lines) + "\n"


def link_words(experiment: Experiment) -> str:
    """The rate of the link by the size of what is sent."""
    rates = ", ".join(
        f"{row['bus_bytes_per_s'] / 1e9:,.0f} GB/s at {row['bytes'] / 2**20:.0f} MiB"
        for row in experiment.settings.get("link", [])
    )
    return f"The link, measured in the same session by all-reduce alone: {rates or 'not measured'}."


def sharding_table(experiment: Experiment) -> str:
    lines = ["| state | ms a step | peak memory of each GPU, GiB |", "| --- | ---: | --- |"]
    for row in experiment.rows:
        if row["status"] != "measured":
            lines.append(f"| {row['title']} | {row['status'].replace('_', ' ')}: {row['reason']} | {form.NOTHING} |")
            continue
        peaks = ", ".join(form.gib(size) for size in row.get("peak_allocated_bytes_of_each", []))
        lines.append(f"| {row['title']} | {form.three_digits(median(row['step_ms']))} | {peaks or form.NOTHING} |")
    return "\n".join(lines) + "\n"


def stopwatch_table(experiment: Experiment) -> str:
    """Tokens/s under each stopwatch on one and on several GPUs, and the scaling that it shows."""
    rates: dict[str, dict[int, float]] = {}
    titles = {}
    for row in experiment.measured:
        tokens_per_s = 1e3 * row["tokens_per_step"] * row["steps"] / row["window_ms"]
        rates.setdefault(row["key"], {})[row["gpus"]] = tokens_per_s
        titles[row["key"]] = row["title"]
    counts = sorted({gpus for values in rates.values() for gpus in values})
    if not counts:
        return "No row of this experiment could be measured.\n"
    lines = ["| in the window | " + " | ".join(f"tokens/s on {gpus}" for gpus in counts) + " | scaling |"]
    lines.append("| --- | " + "---: | " * (len(counts) + 1))

    def scaling(values: dict[int, float], most: int) -> str:
        return f"{values[most] / values[1]:.2f}x" if most > 1 and {1, most} <= set(values) else form.NOTHING

    for key, values in rates.items():
        cells = [form.count(values.get(gpus)) for gpus in counts]
        lines.append("| " + " | ".join([titles[key], *cells, scaling(values, counts[-1])]) + " |")
    published = _mixed(rates, counts[-1])
    if published:
        lines.append(f"| one GPU every 10 steps, {counts[-1]} every 5: as published | {published} |")
    return "\n".join(lines) + "\n"


def lines_table() -> str:
    """Lines of code that this package has because there can be several GPUs, counted in its source."""
    counted = {name: code_lines(package_source(name)) for name in SEVERAL_GPU_SOURCES}
    lines = ["| file | what for | lines of code |", "| --- | --- | ---: |"]
    lines += [f"| `{name}` | {SEVERAL_GPU_SOURCES[name]} | {count} |" for name, count in counted.items()]
    lines.append(f"| together | | {sum(counted.values())} |")
    return "\n".join(lines) + "\n"


def _mixed(rates: dict[str, dict[int, float]], most: int) -> str | None:
    """The row that divides unlike windows, as the published figures do."""
    one, several = rates.get("evaluation_every_10", {}).get(1), rates.get("evaluation_every_5", {}).get(most)
    if one is None or several is None or most == 1:
        return None
    between = [form.NOTHING] * (len({gpus for values in rates.values() for gpus in values}) - 2)
    return " | ".join([form.count(one), *between, form.count(several), f"{several / one:.2f}x"])


def _timeline(communication: dict[str, Any] | None) -> dict[str, Any]:
    return (communication or {}).get("timeline") or {}
