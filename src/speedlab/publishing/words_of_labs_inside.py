"""Table cells and sentences of the labs on precision, attention and the compiler, made from the rows of experiments.

Nothing is measured here, and torch is not imported: rows come as they were recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from speedlab.number_formats import FORMATS
from speedlab.publishing import formatting as form
from speedlab.publishing.tables import by_ladder, ladder_table
from speedlab.records.experiment import Experiment
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_records

Row = dict[str, Any]
NOTHING_TO_SAY = "The rows that this sentence needs were not measured."
# Fewer lost than this are none worth a word.
FEW = 0.001


def milliseconds(name: str) -> Callable[[Row], str]:
    """Cell: the median of the samples of this name."""
    return lambda row: form.three_digits(median(row[name])) if row.get(name) else form.NOTHING


def mebibytes(name: str) -> Callable[[Row], str]:
    return lambda row: form.NOTHING if row.get(name) is None else form.three_digits(row[name] / 2**20)


def share(name: str) -> Callable[[Row], str]:
    return lambda row: form.percent(row[name]) if name in row else form.NOTHING


def small(name: str) -> Callable[[Row], str]:
    """Cell: a number that may be far below one."""
    return lambda row: f"{row[name]:.1e}" if name in row else form.NOTHING


def seconds(name: str) -> Callable[[Row], str]:
    return lambda row: form.three_digits(row[name]) if row.get(name) is not None else form.NOTHING


def listed(name: str, digits: Callable[[float], str] = str) -> Callable[[Row], str]:
    return lambda row: ", ".join(digits(value) for value in row.get(name, ())) or form.NOTHING


def find(experiment: Experiment, **fields: Any) -> list[Row]:
    """Measured rows that have these values."""
    return [row for row in experiment.measured if all(row.get(name) == fields[name] for name in fields)]


def formats_table() -> str:
    """Markdown: bits, range and step of every number format, by formula."""
    lines = ["| format | sign, exponent, fraction bits | largest | smallest normal | smallest at all | step at 1 |",
             "| --- | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name, one in FORMATS.items():
        numbers = (one.largest, one.smallest_normal, one.smallest_subnormal, one.step_at_one)
        cells = " | ".join(f"{number:.3g}" for number in numbers)
        lines.append(f"| {name} | 1, {one.exponent_bits}, {one.fraction_bits} | {cells} |")
    return "\n".join(lines) + "\n"


def matmul_rates(experiment: Experiment) -> str:
    """One sentence: what large matrices multiply at in each format, measured in the same session."""
    rates = (experiment.ceilings or {}).get("matmul_flops_per_s", {})
    if len(rates) < 2:
        return NOTHING_TO_SAY
    slowest = min(rates.values())
    said = ", ".join(
        f"{name} {form.three_digits(rate / 1e12)} TFLOP/s ({form.three_digits(rate / slowest)}x)"
        for name, rate in sorted(rates.items(), key=lambda item: item[1])
    )
    return f"Large square matrices: {said}."


def gradients_lost(experiment: Experiment) -> str:
    """What float16 makes of the gradients of the last step, without and with a loss scale, beside bfloat16."""
    rows = find(experiment, what="gradients")
    if not rows:
        return NOTHING_TO_SAY
    last = max(row["step"] for row in rows)
    said = []
    for of in dict.fromkeys(row["of"] for row in rows):
        cells = {(row["format"], row["loss_scale"]): row for row in rows if row["of"] == of and row["step"] == last}
        scale = max(scale for _, scale in cells)
        plain, scaled, wide = cells["float16", 1.0], cells["float16", scale], cells["bfloat16", 1.0]
        said.append(
            f"of {of} {form.percent(plain['share_zero'])} become zero in float16 and "
            f"{form.percent(plain['share_subnormal'])} subnormal; times {scale:,.0f}, "
            f"{form.percent(scaled['share_zero'])} and {form.percent(scaled['share_subnormal'])}; in bfloat16 "
            f"{form.percent(wide['share_zero'])} become zero"
        )
    return f"Gradients of step {last}: " + ". ".join(said) + "."


def updates_lost(experiment: Experiment) -> str:
    """Which share of AdamW's updates leaves a bfloat16 weight as it is, by group of weights."""
    rows = find(experiment, what="updates", format="bfloat16")
    if not rows:
        return NOTHING_TO_SAY
    said = ", ".join(f"{row['of']} {form.percent(row['share_lost'])}" for row in rows)
    stuck = [row for row in find(experiment, what="trajectory", precision="bfloat16") if len(set(row["values"])) == 1]
    names = " and ".join(f"`{row['weight']}`" for row in stuck)
    moved = f" Over the whole run {names} never moved in pure bfloat16." if stuck else ""
    worst = max(row["share_lost"] for row in rows)
    verdict = "Hardly any update is lost here" if worst < FEW else "Updates that a bfloat16 weight does not notice"
    return f"{verdict}: {said}.{moved}"


def precision_ladder() -> str:
    """Markdown: the recorded ladder of number formats on each device, or that there is none."""
    root = committed_root()
    records = [record for record in read_records(root) if record.ladder == "precisions"] if root.is_dir() else []
    if not records:
        return "Ladder `precisions` is not recorded yet: `speedlab ladder --ladder precisions` measures it."
    return "\n\n".join(ladder_table(rows, titles=True).markdown() for rows in by_ladder(report_rows(records)))


def attention_words(experiment: Experiment) -> str:
    """How plain and the best fused kernel compare at each end of the range of contexts."""
    rows = find(experiment, what="context")
    plain = {row["context"]: row for row in rows if row["kind"] == "plain"}
    fused = [row for row in rows if row["kind"].startswith("sdpa_") and row["kind"] != "sdpa_math"]
    said = []
    for context in sorted({row["context"] for row in fused} & set(plain)):
        best = min((row for row in fused if row["context"] == context), key=lambda row: median(row["both_ms"]))
        ratio = median(plain[context]["both_ms"]) / median(best["both_ms"])
        said.append(f"{form.three_digits(ratio)}x at {context:,} ({best['kind']})")
    if not said:
        return NOTHING_TO_SAY
    ended = [row for row in experiment.rows if row.get("what") == "context" and row["status"] == "out_of_memory"]
    ends = ", ".join(f"{row['kind']} at {row['context']:,}" for row in ended)
    return f"The fastest fused kernel against the plain form, both passes: {', '.join(said)}." + (
        f" Out of memory: {ends}." if ended else ""
    )


def compile_words(experiment: Experiment) -> str:
    """Speed, compile time and break-even step of each mode, each against the same recipe without the compiler."""
    modes = {(row["recipe"], row["mode"]): row for row in find(experiment, what="mode")}
    said = []
    for (recipe, mode), row in modes.items():
        off = modes.get((recipe, "off"))
        if mode == "off" or off is None:
            continue
        before, after = median(off["step_ms"]), median(row["step_ms"])
        paid = (
            f"paid back after {form.count(row['compile_s'] * 1e3 / (before - after))} steps"
            if after < before
            else "never paid back"
        )
        said.append(
            f"{recipe}, {mode}: {form.three_digits(before)} to {form.three_digits(after)} ms a step, "
            f"{form.three_digits(row['compile_s'])} s to compile ({row['compile_cache']}), {paid}"
        )
    if not said:
        return NOTHING_TO_SAY
    again = "".join(
        f" A new process with a {row['compile_cache']} cache takes {form.three_digits(row['first_step_s'])} s for its "
        "first step."
        for row in find(experiment, what="warm")
    )
    return "; ".join(said) + "." + again


def fused_words(experiment: Experiment) -> str:
    """Launches, kernel time and counted bytes without and with the compiler."""
    said = []
    for recipe in dict.fromkeys(row["recipe"] for row in find(experiment, what="kernels")):
        pair = [
            next(iter(find(experiment, what="kernels", recipe=recipe, mode=mode)), None) for mode in ("off", "default")
        ]
        counted = [
            next(iter(find(experiment, what="bytes", recipe=recipe, mode=mode)), None) for mode in ("off", "default")
        ]
        if None in pair:
            continue
        text = (
            f"{recipe}: {form.count(pair[0]['calls'])} launches become {form.count(pair[1]['calls'])}, "
            f"{form.three_digits(pair[0]['time_us'] / 1e3)} ms of kernels {form.three_digits(pair[1]['time_us'] / 1e3)}"
        )
        if len(counted) == 2:
            text += (
                f", and the model's counted traffic goes from {form.gib(counted[0]['bytes'])} to "
                f"{form.gib(counted[1]['bytes'])} GiB"
            )
        said.append(text)
    return "; ".join(said) + "." if said else NOTHING_TO_SAY
