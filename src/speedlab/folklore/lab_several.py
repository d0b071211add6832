"""Verdicts on several GPUs from sessions with them: timelines, the stopwatch on trial, scaling. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence

from speedlab.folklore.claim import Verdict
from speedlab.folklore.evidence import Lab, from_experiment, one_session
from speedlab.publishing import formatting as form
from speedlab.publishing.scaling_stopwatch import PUBLISHED_GPUS, published_shares
from speedlab.records.published import published_row
from speedlab.records.record import Record
from speedlab.records.rows import report_rows
from speedlab.scaling_plan import SERIES, TOTAL

GOOD_SCALING = 0.9
# In one direction, bytes/s: PCIe 5.0 with 16 lanes. What is faster than that between two GPUs does not cross PCIe.
PCIE = 63e9
# A part of what is lost that is hardly there, and one that is most of it.
LITTLE, MOST = 0.1, 0.5


def published_scaling() -> str:
    four, one = (published_row("nine-steps", rung) for rung in ("data_parallel", "batch_size"))
    return f"Published, A100: {form.three_digits(four.tokens_per_s / one.tokens_per_s)}x on {four.gpus} cards."


@from_experiment(
    "data_parallel_stopwatch", known=published_scaling,
    needs=f"the published stopwatch and ours around the same steps on {PUBLISHED_GPUS} cards",
)  # fmt: skip
def price_of_communication(lab: Lab) -> Verdict | None:
    """Time the same steps with the published stopwatch and with training alone, and divide what is lost between them.

    Fewer cards than the claim names say how it goes there and decide nothing about it.
    """
    found = published_shares(lab.experiment)
    if not found:
        return None
    lost, gpus = found["exchange"] + found["clock"], found["gpus"]
    clock = found["clock"] / lost if lost > 0 else 0.0
    text = (
        f"{lab.where} on {gpus} GPUs the published way of timing shows {found['published']:.2f}x where training alone "
        f"scales {found['clean']:.2f}x: of {lost:.2f} GPUs that seem lost the stopwatch takes {found['clock']:.2f}. By "
        f"formula, {PUBLISHED_GPUS} GPUs that lose nothing would show {found['clock_alone']:.2f}x with this step and "
        f"this evaluation. {published_scaling()}"
    )
    if gpus < PUBLISHED_GPUS:
        needs = f"the same trial on {PUBLISHED_GPUS} GPUs; for the published figure itself, on its own cards"
        return Verdict(verdict="not_decided", evidence=text, needs=needs)
    needs = "the same trial on the cards that the figure was published for"
    if clock < LITTLE:
        return Verdict(verdict="confirmed", evidence=text, needs=needs)
    if clock > MOST:
        return Verdict(verdict="refuted", evidence=text, needs=needs)
    return Verdict(verdict="depends", evidence=text, needs=needs, on_what="what the stopwatch holds besides training")


@from_experiment(
    "data_parallel_sweep", needs="a timeline of two GPUs with the backward kernels and the reductions of the buckets"
)
def reduces_after_backward(lab: Lab) -> Verdict | None:
    """Lay the exchange of a step on a line of time: how much of it runs beside other kernels, and when it begins."""
    hidden, parts = {}, []
    for key, words in (("tuned", "the compiled graph cut at the buckets"), ("whole_graph", "the graph uncut")):
        times = ((lab.row(key=key) or {}).get("communication") or {}).get("timeline")
        if not times or not times["communication_ms"]:
            continue
        hidden[key] = 1 - times["exposed_ms"] / times["communication_ms"]
        parts.append(
            f"with {words} the exchange begins {form.three_digits(times['first_exchange_ms'])} ms after the update in "
            f"a step of {form.three_digits(times['span_ms'])} ms, and {form.percent(hidden[key])} of it is hidden"
        )
    if "tuned" not in hidden:
        return None
    text = f"{lab.where} {'; '.join(parts)}."
    if hidden["tuned"] < LITTLE:
        return Verdict(verdict="confirmed", evidence=text)
    if hidden.get("whole_graph", 1.0) < MOST < hidden["tuned"]:
        return Verdict(
            verdict="depends", evidence=text,
            on_what="whether `torch.compile` may cut the graph at the buckets, as it does unless `optimize_ddp` is "
            "switched off: uncut, the gradients come out together at the end",
        )  # fmt: skip
    return Verdict(verdict="refuted", evidence=text)


def scaling(records: Sequence[Record]) -> Verdict:
    """Divide tokens/s of several GPUs by those of one in the same session, and by their number."""
    rows = [row for row in report_rows(records) if row["scaling"] is not None and row["world_size"] > 1]
    needs = "rung data_parallel on 1, 2 and 4 GPUs joined by NVLink"
    if not rows:
        return Verdict(verdict="not_decided", needs=needs)
    most = max(rows, key=lambda row: row["world_size"])
    own = {(r.ladder, r.rung): r for r in records if r.device == most["device"]}
    rows = [row for row in rows if row["device"] == most["device"]]
    rates = [
        link["bus_bytes_per_s"]
        for row in rows
        for link in (own[row["ladder"], row["rung"]].communication or {}).get("link", [])
    ]
    if max(rates, default=0.0) <= PCIE:
        return Verdict(verdict="not_decided", needs=f"{needs}: what is recorded does not show a faster link than PCIe")
    total = {series.name for series in SERIES if series.batch == TOTAL}
    titles = {series.name: series.title for series in SERIES}
    shares = [(row, row["scaling"] / row["world_size"]) for row in rows]
    listed = "; ".join(
        f"{form.percent(share)} on {row['world_size']} ({titles.get(row['ladder'], row['ladder'])})"
        for row, share in shares
    )
    text = (
        f"Measured {one_session(own[most['ladder'], most['rung']])}, all-reduce alone at {max(rates) / 1e9:,.0f} GB/s, "
        f"each keeps: {listed}."
    )
    held = [share > GOOD_SCALING for _, share in shares]
    if all(held) or not any(held):
        return Verdict(verdict="confirmed" if all(held) else "refuted", evidence=text)
    divided = [row["ladder"] in total for row, _ in shares]
    if all(kept != shared for kept, shared in zip(held, divided, strict=True)):
        on_what = "the work: each GPU with a batch of its own, or one batch divided among them"
    else:
        on_what = "the recipe, the batch of each GPU and their number"
    return Verdict(verdict="depends", on_what=on_what, evidence=text)
