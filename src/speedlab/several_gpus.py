"""The calls of the chapter on several GPUs: each shows what is recorded of it, or says that nothing is yet.

Everything comes from committed records and experiments of machines with several GPUs; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from statistics import median

from speedlab.ladder import NINE_STEPS
from speedlab.publishing import scaling_parts as parts
from speedlab.publishing import scaling_words as words
from speedlab.publishing.display import show_markdown, show_svg
from speedlab.publishing.facts import device_title
from speedlab.publishing.scaling_stopwatch import stopwatch_table
from speedlab.records.experiment import Experiment, committed_experiments, read_experiments
from speedlab.records.record import Record
from speedlab.records.store import committed_root, read_records
from speedlab.scaling_model import Link, Step, fit, step_s
from speedlab.scaling_plan import PLAIN_SERIES, SHARDING_NAME, STOPWATCH_NAME, SWEEP_NAME

NOTHING_YET = "No machine with several GPUs has been recorded yet; this table fills itself when one is: {command}."
# Of the model where nothing is measured: half of NVLink's data sheet on an H200, and one 400 Gbit/s adapter per GPU.
NVLINK = Link(bytes_per_s=225e9)
NETWORK = Link(bytes_per_s=50e9, latency_s=10e-6)
# One batch of half a million tokens, divided.
STRONG_SEQUENCES = 512


def recorded_series() -> dict[str, list[Record]]:
    """Committed records of series on several GPUs, by device."""
    root = committed_root()
    records = [record for record in read_records(root) if record.rung.startswith("data_parallel_")]
    return {device: list(group) for device, group in groupby(records, key=lambda record: record.device)}


def show_series() -> None:
    """Speed of one, two, four GPUs of one machine in one session, with what the exchange took."""
    found = recorded_series()
    for device, records in found.items():
        pairs = words.fixed_pairs(records)
        left = f"\nWhat is left to gain:\n\n{parts.what_is_left(pairs)}" if pairs else ""
        show_markdown(f"**Recorded** on {device_title(device)}:\n\n{words.series_table(records)}{left}")
    if not found:
        show_markdown(_nothing("series,timelines"))


def show_lesson() -> None:
    """Which recipe keeps the asked share of one GPU's speed, in a sentence; nothing where nothing is recorded."""
    for device, records in recorded_series().items():
        pairs = words.fixed_pairs(records)
        if pairs:
            show_markdown(f"**Recorded** on {device_title(device)}: {parts.lesson_words(pairs)}")


def show_exchange() -> None:
    """The sweep of the exchange, and where the milliseconds between one GPU and several lie."""
    _show(SWEEP_NAME, "series,sweep,timelines", _exchange)


def show_sharding() -> None:
    """DDP and FSDP2 beside each other: speed, and memory of each GPU."""
    _show(SHARDING_NAME, "sharding", words.sharding_table)


def show_stopwatch() -> None:
    """The scaling that the published stopwatch shows, and ours."""
    _show(STOPWATCH_NAME, "stopwatch", stopwatch_table)


def show_lines() -> None:
    """How many lines of this package are there because of several GPUs."""
    show_markdown(words.lines_table())


def show_model() -> None:
    """The model of up to 512 GPUs, fitted to recorded points where there are any, and what it assumes."""
    from speedlab.publishing.scaling_figures import model_figure

    alone, measured, link = _points()
    step = fit(alone, link, measured)
    share = STRONG_SEQUENCES / 32
    strong = replace(step, compute_s=share * (step.compute_s - step.fixed_s) + step.fixed_s)
    shares = [(gpus, measured[0][1] / seconds) for gpus, seconds in measured]
    show_svg(model_figure(step, strong, {"link of one machine": link, "network": NETWORK}, shares))
    points = len(measured) - 1
    fitted = (
        f"fitted to {points} measured point{'s' if points > 1 else ''} of several GPUs"
        f"{', which it meets by construction' if points == 1 else ''}, with {1e3 * step.drag_s:.2f} ms a step that it "
        "gives no cause for"
        if points > 0
        else "fitted to no point of several GPUs yet: the link is half of its data sheet"
    )
    show_markdown(
        f"A model, never a measurement. It is {fitted}. One GPU takes {1e3 * step.compute_s:.1f} ms a step, "
        f"{step.gradient_bytes / 1e6:,.0f} MB are averaged, and at most {100 * step.hidden:.0f} % of a step can hide "
        f"that. The link carries {link.bytes_per_s / 1e9:,.0f} GB/s, the network {NETWORK.bytes_per_s / 1e9:,.0f} "
        f"GB/s for each GPU. On 512 GPUs over the network a step of the growing batch would take "
        f"{1e3 * step_s(step, 512, NETWORK):.1f} ms. It knows no slow GPU among the fast ones and "
        "no network that others use."
    )


def _points() -> tuple[Step, list[tuple[int, float]], Link]:
    """One GPU's step, measured (GPUs, seconds), the link: of the recorded machine with most GPUs, or by data sheet."""
    series = [
        record
        for records in recorded_series().values()
        for record in records
        if record.ladder == PLAIN_SERIES and record.status == "measured"
    ]
    if not any(record.recipe["data_parallel"] > 1 for record in series):
        return _one_gpu(), [], NVLINK
    device = max(series, key=lambda record: record.recipe["data_parallel"]).device
    own = [record for record in series if record.device == device]
    measured = sorted((record.recipe["data_parallel"], median(record.step_ms) / 1e3) for record in own)
    sent = next((record.communication for record in own if record.communication), None)
    rates = [row["bus_bytes_per_s"] for row in (sent or {}).get("link", [])]
    gradient_bytes = sent["gradient_bytes"] if sent else 4 * 124e6
    alone = Step(compute_s=measured[0][1], gradient_bytes=gradient_bytes, fixed_s=1e-3)
    return alone, measured, Link(bytes_per_s=max(rates)) if rates else NVLINK


def _one_gpu() -> Step:
    """The step that the model starts from where no several GPUs are recorded: the chapter's own, of any one GPU."""
    chapters = [record for record in read_records(committed_root()) if record.ladder == NINE_STEPS.name]
    one = [record for record in chapters if record.rung == "batch_size" and record.step_ms]
    seconds = median(one[-1].step_ms) / 1e3 if one else 0.065
    return Step(compute_s=seconds, gradient_bytes=2 * 163e6, fixed_s=1e-3)


def _exchange(experiment: Experiment) -> str:
    """Timelines, the sweep, the link, and the stages between one GPU and several."""
    records = recorded_series().get(experiment.device, [])
    alone = [
        record
        for record in records
        if (record.ladder, record.rung, record.status) == (PLAIN_SERIES, "data_parallel_1", "measured")
        and record.machine["machine_id"] == experiment.machine["machine_id"]
    ]
    stages = parts.where_it_goes(experiment, alone[0] if alone else None)
    return (
        f"{parts.timeline_table(words.timelines(records, experiment))}\n{parts.link_words(experiment)}\n\n"
        f"{parts.sweep_table(experiment)}\n{stages}"
    )


def _show(name: str, asked: str, table: Callable[[Experiment], str]) -> None:
    experiments = read_experiments(committed_experiments(), name)
    for experiment in experiments:
        show_markdown(f"**Recorded** on {device_title(experiment.device)}:\n\n{table(experiment)}")
    if not experiments:
        show_markdown(_nothing(asked))


def _nothing(asked: str) -> str:
    return NOTHING_YET.format(command=f"`speedlab scaling --worlds 1,2 --parts {asked} --out DIR`")
