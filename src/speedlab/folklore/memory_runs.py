"""Verdicts on memory levers and batch sizes that the memory labs' experiments bear out."""

from __future__ import annotations

from speedlab.folklore.claim import Verdict
from speedlab.folklore.experiments import MissingRow, Row, judged_by, row, rows, step_ms, tokens_per_s, where
from speedlab.publishing import formatting as form
from speedlab.records.experiment import Experiment

NO_DIFFERENCE = 0.02  # what we would not call faster, slower, larger or smaller
ABOUT_30_PERCENT = (0.25, 0.35)
GROUPS = ("every_block", "groups_of_2", "groups_of_3", "groups_of_4", "groups_of_6", "groups_of_12")
BASE_CONTEXT = 1024


def settings(experiment: Experiment) -> list[tuple[str, int]]:
    """(compiler mode, context) of every pair of plain step and checkpointed blocks that was measured."""
    found = [
        (plain["compile"], plain["context_length"])
        for plain in rows(experiment, kind="variant", way="off")
        if rows(experiment, kind="variant", way="every_block", compile=plain["compile"],
                context_length=plain["context_length"])
    ]  # fmt: skip
    if not found:
        raise MissingRow("no pair of plain and checkpointed steps")
    return found


def variant(experiment: Experiment, way: str, compile: str = "off", context_length: int = BASE_CONTEXT) -> Row:
    return row(experiment, kind="variant", way=way, compile=compile, context_length=context_length)


def group_ways(experiment: Experiment) -> list[Row]:
    """Rows of groups of blocks from small to large, at the base context without the compiler."""
    return [variant(experiment, way) for way in GROUPS]


def gib(measured: Row) -> str:
    return form.gib(measured["peak_allocated_bytes"])


@judged_by("checkpointing", needs="experiment checkpointing: every block checkpointed, eager and compiled")
def thirty_percent(experiment: Experiment) -> Verdict:
    """Time a step with every block checkpointed against the plain step, eager and compiled, at two contexts."""
    costs = {}
    for mode, context in settings(experiment):
        plain, ours = (variant(experiment, way, mode, context) for way in ("off", "every_block"))
        costs[f"{'eager' if mode == 'off' else 'compiled'}, context {context:,}"] = step_ms(ours) / step_ms(plain) - 1
    listed = ", ".join(f"{form.percent(cost)} ({name})" for name, cost in costs.items())
    low, high = ABOUT_30_PERCENT
    inside = [low <= cost <= high for cost in costs.values()]
    text = f"{where(experiment)} every block checkpointed takes longer by {listed}."
    if all(inside) or not any(inside):
        return Verdict(verdict="confirmed" if all(inside) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="the compiler and the context", evidence=text)


@judged_by("checkpointing", needs="experiment checkpointing: groups of 1, 2, 3, 4, 6 and 12 blocks")
def per_layer(experiment: Experiment) -> Verdict:
    """Time groups of one block against larger groups, and count how often blocks run forward."""
    found = group_ways(experiment)
    single, larger = step_ms(found[0]), [step_ms(measured) for measured in found[1:]]
    runs = {measured["feed_forward_runs"] for measured in found}
    counted = f"{min(runs)} feed-forward parts run in each" if len(runs) == 1 else f"{min(runs)} to {max(runs)} run"
    gain = single / min(larger) - 1
    return Verdict(
        verdict="confirmed" if gain > NO_DIFFERENCE else "refuted",
        evidence=f"{where(experiment)} one block a group takes {form.three_digits(single)} ms a step, larger groups "
        f"{form.three_digits(min(larger))} to {form.three_digits(max(larger))} ms; {counted}, forward passes of both "
        "kinds together.",
    )


@judged_by("checkpointing", needs="experiment checkpointing: reentrant and non-reentrant form of the same blocks")
def non_reentrant(experiment: Experiment) -> Verdict:
    """Compare peak memory and time of both forms around the same blocks."""
    old, new = variant(experiment, "reentrant"), variant(experiment, "every_block")
    more = new["peak_allocated_bytes"] / old["peak_allocated_bytes"] - 1
    return Verdict(
        verdict="confirmed" if more > NO_DIFFERENCE else "refuted",
        evidence=f"{where(experiment)} peak {gib(old)} GiB reentrant and {gib(new)} GiB non-reentrant, "
        f"{form.three_digits(step_ms(old))} and {form.three_digits(step_ms(new))} ms a step.",
    )


def _rows_of_a_batch() -> str:
    return (
        f"By formula: a matmul's rows are batch x {BASE_CONTEXT:,}, a multiple of {BASE_CONTEXT:,} for every batch, so "
        "that its alignment cannot depend on the batch."
    )


@judged_by("batch_probe", needs="experiment batch_probe: batches around powers of two", evidence=_rows_of_a_batch)
def power_of_two(experiment: Experiment) -> Verdict:
    """Compare the tokens/s of each power of two with those of its two neighbours, eager, and of 31 and 32 compiled."""
    gains, texts = [], []
    for power in (8, 16, 32):
        speed = tokens_per_s(row(experiment, kind="batch", micro_batch=power, compile="off"))
        for other in (power - 1, power + 1):
            for near in rows(experiment, kind="batch", micro_batch=other, compile="off"):
                gains.append(speed / tokens_per_s(near) - 1)
                texts.append(f"{power} over {other} {form.percent(gains[-1])}")
    compiled = {r["micro_batch"]: r for r in rows(experiment, kind="batch") if r["compile"] != "off"}
    if {31, 32} <= compiled.keys():
        gains.append(tokens_per_s(compiled[32]) / tokens_per_s(compiled[31]) - 1)
        texts.append(f"compiled, 32 over 31 {form.percent(gains[-1])}")
    better = [gain > NO_DIFFERENCE for gain in gains]
    # More sequences are faster by themselves; only a power that also beats the larger neighbour is a reason.
    text = f"{where(experiment)} in tokens/s, {', '.join(texts)}. {_rows_of_a_batch()}"
    if all(better) or not any(better):
        return Verdict(verdict="confirmed" if all(better) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="the batch: small ones gain from every further sequence", evidence=text)


# Sentences behind verdicts by formula.


def groups_measured(experiment: Experiment) -> str:
    listed = ", ".join(
        f"{gib(measured)} GiB and {form.three_digits(step_ms(measured))} ms at {size}"
        for size, measured in zip((1, 2, 3, 4, 6, 12), group_ways(experiment), strict=True)
    )
    return f"peak and time of a step by blocks per group: {listed}."


def selective_measured(experiment: Experiment) -> str:
    listed = ", ".join(
        f"{name} {gib(measured)} GiB and {form.three_digits(step_ms(measured))} ms"
        for name, measured in (
            ("nothing recomputed", variant(experiment, "off")),
            ("all but matmul and attention outputs", variant(experiment, "selective")),
            ("whole blocks", variant(experiment, "every_block")),
        )
    )
    return f"peak and time of a step: {listed}."


def grid_measured(experiment: Experiment) -> str:
    grid = sorted(rows(experiment, kind="grid"), key=lambda measured: measured["context_length"])
    if len(grid) < 2:
        raise MissingRow("grid")
    listed = ", ".join(
        f"{m['micro_batch']} x {m['context_length']:,} {form.three_digits(tokens_per_s(m) / 1e3)} k" for m in grid
    )
    return f"tokens/s at equal tokens per step: {listed}."


def accumulation_measured(experiment: Experiment) -> str:
    first, last = (
        row(experiment, kind="micro_steps", accumulation=count, compile="off") for count in (1, 16)
    )  # fmt: skip
    gain = tokens_per_s(last) / tokens_per_s(first)
    return f"16 micro-batches for each update instead of one make {form.three_digits(gain)}x the tokens/s."
