"""Table cells and sentences of the labs on the data pipeline and on all levers together, from the rows recorded.

Nothing is measured here, and torch is not imported.
"""

from __future__ import annotations

from statistics import fmean, median, stdev
from typing import Any

from speedlab.publishing import formatting as form
from speedlab.publishing.lab_rows import tokens_per_s
from speedlab.publishing.memory_parts import signed_percent
from speedlab.publishing.words_of_labs_inside import NOTHING_TO_SAY, find
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
# A step that takes so much longer waits for its loader.
NOTICED = 1.05
SLOW = 3.0  # medians: a step that something else than its own work held up
UNCLEAR = "not clear"
ALONE_AND_ALL = ("FlashAttention", "checkpointing", "pipeline", "all three")


def mean_ms(row: Row) -> str:
    """The mean step: several workers deliver in bursts, which a median does not see."""
    return form.three_digits(fmean(row["step_ms"])) if row.get("step_ms") else form.NOTHING


def thousand_tokens(row: Row) -> str:
    return form.three_digits(tokens_per_s(row) / 1e3) if row.get("step_ms") else form.NOTHING


def source(row: Row) -> str:
    return str(row["source"]).replace("memory_mapped", "mapped file").replace("_", " ")


def carried(row: Row) -> str:
    return str(row["carried"]).replace("_", " ")


def change(row: Row) -> str:
    said = (f"{name} {value}" for name, value in row["change"].items())
    return ", ".join(said).replace("_", " ") or "nothing"


def interval_ms(row: Row) -> str:
    """95 % of the mean step, as if steps were independent of each other."""
    if len(row.get("step_ms") or ()) < 2:
        return form.NOTHING
    low, high = _interval(row)
    return f"{form.three_digits(low)}–{form.three_digits(high)}"  # noqa: RUF001


def longer(row: Row, resident: Row) -> str:
    """How much longer the step is than the one that finds its batch on the device, where that is clear."""
    if row is resident or len(row.get("step_ms") or ()) < 2:
        return form.NOTHING
    return signed_percent(_mean(row) / _mean(resident) - 1) if _interval(row)[0] > _interval(resident)[1] else UNCLEAR


def times(row: Row, plain: Row | None) -> str:
    """Speed over that of the plain row."""
    return f"{form.three_digits(tokens_per_s(row) / tokens_per_s(plain))}x" if plain else form.NOTHING


def slow_steps(row: Row) -> int:
    """Steps of more than three times the median."""
    return sum(ms > SLOW * median(row["step_ms"]) for ms in row["step_ms"])


def pipeline_words(experiment: Experiment) -> str:
    """Which ways to bring a batch cost time, and which cannot be told from a batch that lies on the device."""
    resident, rows = find(experiment, what="resident"), find(experiment, what="pipeline")
    if not resident or not rows:
        return NOTHING_TO_SAY
    unclear = [row for row in rows if longer(row, resident[0]) == UNCLEAR]
    worst = max(rows, key=_mean)
    best = min(rows, key=_mean)
    return (
        f"With its batch on the device a step takes {mean_ms(resident[0])} ms, and the host needs "
        f"{form.three_digits(resident[0]['host_ms'])} to queue it on an idle one. The quickest of {len(rows)} ways to "
        f"feed it makes it {mean_ms(best)} ({_feed(best)}), the slowest {mean_ms(worst)} ({_feed(worst)}), in which "
        f"the device waits for {form.percent(worst['starved_share'])} of the time. "
        f"{len(unclear)} of them cannot be told from no loading at all."
    )


def knee_words(experiment: Experiment) -> str:
    """From which delay on the step is longer, by workers, and how far the prediction is off at the worst."""
    rows = find(experiment, what="slow")
    said = []
    for workers in sorted({row["workers"] for row in rows}):
        mine = sorted((row for row in rows if row["workers"] == workers), key=lambda row: row["delay_ms"])
        late = [row for row in mine if row["delay_ms"] and _mean(row) > NOTICED * _mean(mine[0])]
        who = f"{workers} workers" if workers else "no worker"
        said.append(
            f"with {who} from {form.three_digits(late[0]['delay_in_steps'])} steps of delay on"
            if late
            else f"with {who} at none of the delays"
        )
    if not said:
        return NOTHING_TO_SAY
    worst = max((_mean(row) / row["predicted_step_ms"] - 1 for row in rows), key=abs)
    return (
        f"The step gets longer {', '.join(said)}. The prediction is off by {form.percent(abs(worst))} at most "
        f"(measured {'longer' if worst > 0 else 'shorter'})."
    )


def prefetch_words(experiment: Experiment) -> str:
    rows = sorted(find(experiment, what="prefetch"), key=lambda row: row["prefetch"])
    if not rows:
        return NOTHING_TO_SAY
    said = "; ".join(
        f"{row['prefetch']} ahead: {mean_ms(row)} ms ({interval_ms(row)}; predicted: at most "
        f"{form.three_digits(row['predicted_step_ms'])})"
        for row in rows
    )
    return (
        f"One worker whose every {rows[0]['hiccup_every']}th batch takes {form.three_digits(rows[0]['hiccup_steps'])} "
        f"steps. {said}."
    )


def padding_words(experiment: Experiment) -> str:
    """What padding to the longest possible text costs, against packing."""
    rows = {row["shaping"]: row for row in find(experiment, what="shaping")}
    if not {"pad_to_max", "packed"} <= rows.keys():
        return NOTHING_TO_SAY
    padded, packed = rows["pad_to_max"], rows["packed"]
    ratio = packed["trained_tokens_per_s"] / padded["trained_tokens_per_s"]
    text = (
        f"Padded to the longest possible text, {form.percent(padded['padding_share'])} of all positions are padding, "
        f"and packing trains on {form.three_digits(ratio)}x as many tokens a second. A counter that takes positions "
        f"for tokens would see {form.three_digits(_positions_per_s(packed) / _positions_per_s(padded))}x."
    )
    return text + _first_time(rows.get("dynamic"))


def _first_time(row: Row | None) -> str:
    """What lengths cost that are met for the first time: in a pass of their own, or among the steps."""
    if row is None:
        return ""
    if first := row.get("first_pass_ms"):
        return (
            f" With a length of its own for each batch the first pass over {row['different_shapes']} lengths takes "
            f"{form.three_digits(sum(first) / sum(row['step_ms']))}x the time of a second one over the same batches, "
            "which is what the table times: a length that is new costs once."
        )
    slow = slow_steps(row)
    if not slow:
        return ""
    share = sum(ms for ms in row["step_ms"] if ms > SLOW * median(row["step_ms"])) / sum(row["step_ms"])
    return (
        f" Padding each batch to its own longest text gives {row['different_shapes']} lengths; {slow} of "
        f"{len(row['step_ms'])} steps took more than three times the median and {form.percent(share)} of the time. We "
        "read them as lengths met for the first time, which that way has to pay for."
    )


def together_words(experiment: Experiment) -> str:
    """Speed and held memory of each lever and of all, over the baseline on the whole card."""
    rows = {row["variant"]: row for row in find(experiment, what="whole")}
    baseline = rows.pop("baseline", None)
    if baseline is None or not rows:
        return NOTHING_TO_SAY
    said = []
    for name in (name for name in ALONE_AND_ALL if name in rows):
        text = f"{name} {times(rows[name], baseline)} the speed"
        if rows[name]["peak_allocated_bytes"] and baseline["peak_allocated_bytes"]:
            share = rows[name]["peak_allocated_bytes"] / baseline["peak_allocated_bytes"]
            text += f" in {form.percent(share)} of the memory"
        said.append(text)
    return f"Over the baseline: {'; '.join(said)}." if said else NOTHING_TO_SAY


def plan_words(experiment: Experiment) -> str:
    """How near the plan came to the measured peak, and whether it said rightly what fits the smaller cards."""
    ran = [row for row in experiment.measured if row.get("peak_allocated_bytes") and "predicted_peak_bytes" in row]
    tried = [
        row for row in experiment.rows if row.get("what") == "budget" and row["status"] in ("measured", "out_of_memory")
    ]
    if not ran or not tried:
        return NOTHING_TO_SAY
    worst = max((row["predicted_peak_bytes"] / row["peak_allocated_bytes"] - 1 for row in ran), key=abs)
    right = sum(row["predicted_fits"] == (row["status"] == "measured") for row in tried)
    broken = [row for row in tried if row["predicted_fits"] and row["status"] == "out_of_memory"]
    promise = (
        "Everything that was predicted to fit did"
        if not broken
        else "Predicted to fit, and did not: " + ", ".join(_tried(row) for row in broken)
    )
    return (
        f"Predicted peaks are off by {form.percent(abs(worst))} at most. Of {len(tried)} runs on emulated cards the "
        f"plan, which keeps a reserve, said {right} rightly. {promise}."
    )


def budget_words(experiment: Experiment) -> str:
    """The fastest form of those that fit each emulated card."""
    said = []
    for budget in sorted({row["budget_gib"] for row in find(experiment, what="budget")}, reverse=True):
        rows = find(experiment, what="budget", budget_gib=budget)
        best = max(rows, key=tokens_per_s)
        others = ", ".join(f"{_tried(row)} {thousand_tokens(row)}" for row in rows if row is not best)
        said.append(
            f"on {budget} GB (emulated) {_tried(best)} is the fastest that fits, {thousand_tokens(best)} thousand "
            f"tokens a second" + (f" ({others})" if others else "")
        )
    return f"At the context that is wanted, {'; '.join(said)}." if said else NOTHING_TO_SAY


def other_models_words(experiment: Experiment) -> str:
    """What each lever gave on each model of Hugging Face, over its own baseline."""
    said = []
    for model in dict.fromkeys(row["model"] for row in find(experiment, what="hf")):
        rows = {row["variant"]: row for row in find(experiment, what="hf", model=model)}
        if "baseline" not in rows or len(rows) < 2:
            continue
        baseline = rows["baseline"]
        fastest = max(rows, key=lambda name: tokens_per_s(rows[name]))
        text = f"{model} is fastest with {fastest}, {times(rows[fastest], baseline)} its baseline"
        if "all" in rows and fastest != "all":
            text += f", and with all levers {times(rows['all'], baseline)}"
            if rows["all"]["peak_allocated_bytes"] and baseline["peak_allocated_bytes"]:
                share = rows["all"]["peak_allocated_bytes"] / baseline["peak_allocated_bytes"]
                text += f" in {form.percent(share)} of the memory"
        said.append(text)
    return f"{'; '.join(said)}." if said else NOTHING_TO_SAY


def _interval(row: Row) -> tuple[float, float]:
    half = 1.96 * stdev(row["step_ms"]) / len(row["step_ms"]) ** 0.5
    return _mean(row) - half, _mean(row) + half


def _mean(row: Row) -> float:
    return fmean(row["step_ms"])


def _positions_per_s(row: Row) -> float:
    return row["positions"] / sum(row["step_ms"])


def _feed(row: Row) -> str:
    workers = f"{row['workers']} workers" if row["workers"] else "no worker"
    return f"{source(row)}, {workers}, {carried(row)}"


def _tried(row: Row) -> str:
    return f"{row['variant']}, {row['micro_batch']} x {row['accumulation']}"
