"""What the book says of several GPUs, as Markdown from records and experiments. It displays and measures nothing."""

from __future__ import annotations

from typing import Any

from speedlab.folklore.source import code_lines, package_source
from speedlab.memory_plan import total_parameters
from speedlab.publishing import formatting as form
from speedlab.records import stats
from speedlab.records.experiment import Experiment
from speedlab.records.record import Record
from speedlab.records.rows import report_rows
from speedlab.scaling_plan import FIXED, PLAIN, SERIES

# What a program for one GPU does not need: starting processes, joining the group, sharing the model out.
SEVERAL_GPU_SOURCES = {
    "training/parallel.py": "share the model out: DDP, FSDP2",
    "training/distributed.py": "join the group, find the own device",
    "training/launching.py": "start the processes, pass on an error, leave none behind",
}


def series_table(records: list[Record]) -> str:
    """One row for each series and number of GPUs of one device. each keeps: speed of each GPU over one alone."""
    lines = [
        "| recipe | GPUs | tokens/s | ms a step | scaling | interval | each keeps | losses |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    titles = {series.name: series.title for series in SERIES}
    by_place = {(record.ladder, record.rung): record for record in records}
    for row in report_rows(records):
        if row["status"] != "measured":
            cells = [f"{row['status'].replace('_', ' ')}: {row['reason']}"] + [form.NOTHING] * 4
        else:
            share = row["scaling"] and row["scaling"] / row["world_size"]
            one = by_place.get((row["ladder"], "data_parallel_1"))
            ratio = None if one is None or row["world_size"] == 1 else stats.speedup(one, by_place[_place(row)])
            cells = [
                form.count(row["tokens_per_s"]), form.three_digits(row["step_ms_median"]),
                form.NOTHING if row["scaling"] is None else f"{form.three_digits(row['scaling'])}x",
                form.NOTHING if ratio is None else form.interval(ratio.low, ratio.high), form.percent(share),
            ]  # fmt: skip
        title = titles.get(row["ladder"], row["ladder"])
        verdict = row["contract_verdict"] or "not compared"
        lines.append("| " + " | ".join([title, str(row["world_size"]), *cells, verdict]) + " |")
    return "\n".join(lines) + "\n"


def timelines(records: list[Record], sweep: Experiment | None) -> list[tuple[str, dict[str, Any]]]:
    """(title, communication) of all recipes on several GPUs whose step was drawn on a line of time."""
    titles = {series.name: series.title for series in SERIES}
    rows = [
        (f"{titles.get(record.ladder, record.ladder)}, {record.recipe['data_parallel']} GPUs", record.communication)
        for record in records
        if record.communication
    ]
    rows += [
        (row["title"], row["communication"]) for row in (sweep.measured if sweep else ()) if "communication" in row
    ]
    return rows


def fixed_pairs(records: list[Record]) -> list[tuple[str, Record, Record]]:
    """(title, one GPU, several GPUs) of the series in which each GPU keeps its batch."""
    by_place = {(record.ladder, record.recipe["data_parallel"]): record for record in records if record.step_ms}
    return [
        (series.title, by_place[series.name, 1], by_place[name, gpus])
        for series in SERIES
        if series.batch == FIXED and (series.name, 1) in by_place
        for name, gpus in sorted(by_place)
        if name == series.name and gpus > 1
    ]


def _place(row: dict[str, Any]) -> tuple[str, str]:
    return row["ladder"], row["rung"]


def sharding_table(experiment: Experiment) -> str:
    """DDP and FSDP2: time with quartiles, memory of each GPU; then what sharding can save, by formula."""
    lines = ["| state | ms a step | middle half | peak memory of each GPU, GiB |", "| --- | ---: | ---: | --- |"]
    for row in experiment.rows:
        if row["status"] != "measured":
            cells = [f"{row['status'].replace('_', ' ')}: {row['reason']}", form.NOTHING, form.NOTHING]
        else:
            step_ms = stats.quartiles(row["step_ms"])
            peaks = ", ".join(form.gib(size) for size in row.get("peak_allocated_bytes_of_each", []))
            middle = form.interval(step_ms.q1, step_ms.q3)
            cells = [form.three_digits(step_ms.median), middle, peaks or form.NOTHING]
        lines.append("| " + " | ".join([row["title"], *cells]) + " |")
    return "\n".join(lines) + "\n" + _sharding_words(experiment)


def _sharding_words(experiment: Experiment) -> str:
    rows = {row["key"]: row for row in experiment.measured}
    if not {"replicated", "fsdp2"} <= rows.keys():
        return ""
    whole, split = rows["replicated"], rows["fsdp2"]
    gpus, weights = whole["gpus"], total_parameters(PLAIN)
    longer = stats.times_faster(split["step_ms"], whole["step_ms"])
    state, copy = 16 * weights, 4 * weights
    peaks = [max(row.get("peak_allocated_bytes_of_each", []), default=None) for row in (whole, split)]
    less = "" if None in peaks else f"{form.gib(peaks[0] - peaks[1])} GiB less, and "
    time = "as long, as far as the spread tells"
    if longer.clear:
        time = f"{form.three_digits(longer.value)} times as long ({form.interval(longer.low, longer.high)})"
    return (
        f"\nBy formula weights, gradients and moments take {form.gib(state)} GiB, of which {gpus} GPUs can save "
        f"{form.gib((1 - 1 / gpus) * state)} GiB each, and DDP's own copy of the gradients {form.gib(copy)} GiB; the "
        f"rest is activations and logits, which sharding leaves alone. Measured: {less}a step "
        f"{time}.\n"
    )


def lines_table() -> str:
    """Lines of code that this package has because there can be several GPUs, counted in its source."""
    counted = {name: code_lines(package_source(name)) for name in SEVERAL_GPU_SOURCES}
    lines = ["| file | what for | lines of code |", "| --- | --- | ---: |"]
    lines += [f"| `{name}` | {SEVERAL_GPU_SOURCES[name]} | {count} |" for name, count in counted.items()]
    lines.append(f"| together | | {sum(counted.values())} |")
    return "\n".join(lines) + "\n"
