"""What `speedlab report` prints: one flat row for each record, computed from raw samples. It knows no format."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from speedlab.errors import BadInput
from speedlab.ladder import Ladder, ladder_with_rungs_of
from speedlab.recipe import Recipe, changes
from speedlab.records import stats
from speedlab.records.record import ATTENTION_KINDS, Record
from speedlab.records.store import NOT_APPLIED, reading_order
from speedlab.work import compute_dtype, model_flops_utilization, nominal_flops_per_token


def report_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One row for each record, by device and in the order of its ladder; parts that are absent are None.

    tokens_per_s*: quartiles, over all processes. step_ms*: milliseconds. peak_*: bytes on one GPU. speedup_step: over
    the rung named by `before`; speedup_total: over the first rung; `*_low`, `*_high`: their 95 % intervals; `*_clear`:
    whether the difference exceeds the spread. drift: change of the step time of the rung that was timed again at the
    end, 0.01 for 1 % slower. mfu: share of the data sheet's peak; ceiling_fraction: share of the matmul rate measured
    in the session, both for the format that ran. predicted_*: as counted before the run, and the ceiling that binds;
    over_predicted: measured over predicted time. energy_j_per_million_tokens: of the GPUs alone, whatever else the
    machine takes. scaling: tokens/s over those of `data_parallel_1` of the same session.
    """
    ordered = sorted(records, key=reading_order)
    rows = []
    for (device, ladder), group in groupby(ordered, key=lambda record: (record.device, record.ladder)):
        group = list(group)
        _refuse_mixture(group, f"{device}/{ladder}")
        drift = stats.drift(group)
        rows.extend(_row(record, group, drift) for record in group)
    return rows


def record_before(record: Record, group: list[Record]) -> Record | None:
    """The record that this rung's speed is compared with, among those of its session, None where there is none."""
    rungs = {other.rung: other for other in group}
    if record.rung.startswith("data_parallel"):
        one = rungs.get("data_parallel_1")
        if one is not None:
            return one if one is not record else None
    ladder = ladder_with_rungs_of(record.ladder)
    if ladder is None:
        return rungs.get((record.contract_detail or {}).get("before"))
    if ladder.name != record.ladder:
        return _before_when_reordered(record, group, ladder)
    key: str | None = record.rung
    while key in ladder.keys:
        key = ladder.before(key)
        below = rungs.get(key)
        if below is None or below.status not in NOT_APPLIED:
            return below if below is not None and below.status == "measured" else None
    return None


def _before_when_reordered(record: Record, group: list[Record], known: Ladder) -> Record | None:
    """The row that a rung of a reordered ladder stands on, if it is there: nothing else may lie between the two."""
    if record.rung not in known.keys:
        return None
    ordered = sorted((other for other in group if other.rung in known.keys), key=reading_order)
    below = ordered[: ordered.index(record)]
    skipped: set[str] = set()
    while below and below[-1].status in NOT_APPLIED:
        skipped |= set(known.rung(below.pop().rung).change)
    if not below or below[-1].status != "measured":
        return None
    between = changes(Recipe.from_dict(below[-1].recipe), Recipe.from_dict(record.recipe))
    return below[-1] if set(between) <= skipped | set(known.rung(record.rung).change) else None


def first_record(group: list[Record]) -> Record | None:
    """The rung that a whole ladder is compared with: its first, where that one was measured."""
    first = next((record for record in group if record.contract == "reference"), None)
    return first if first is not None and first.status == "measured" else None


def attention_backend(record: Record) -> str | None:
    """Which attention ran, by its slowest kernel: flash, cudnn, efficient, math, cpu or plain; None when unknown."""
    times: dict[str, float] = {}
    for kernel in record.kernels:
        if kernel["kind"] in ATTENTION_KINDS:
            times[kernel["kind"]] = times.get(kernel["kind"], 0.0) + kernel["time_us"]
    if times:
        return max(times, key=times.__getitem__).removeprefix("attention, ")
    return "plain" if record.kernels and record.recipe.get("attention", "plain") == "plain" else None


def _row(record: Record, group: list[Record], drift: float) -> dict[str, Any]:
    measured = record.status == "measured"
    recipe = Recipe.from_dict(record.recipe)
    dtype = compute_dtype(recipe) if measured else None
    tokens = stats.tokens_per_s(record) if measured else None
    steps = stats.step_ms(record) if measured else None
    before, first = record_before(record, group), first_record(group)
    tokens_per_joule = stats.tokens_per_joule(record) if measured else None
    step = stats.speedup(before, record, drift=drift) if measured and before else None
    total = stats.speedup(first, record, drift=drift) if measured and first else None
    return {
        "device": record.device,
        "ladder": record.ladder,
        "rung": record.rung,
        "profile": record.profile,
        "status": record.status,
        "reason": record.reason,
        "tokens_per_s": tokens and tokens.median,
        "tokens_per_s_q1": tokens and tokens.q1,
        "tokens_per_s_q3": tokens and tokens.q3,
        "step_ms_median": steps and steps.median,
        "step_ms_q1": steps and steps.q1,
        "step_ms_q3": steps and steps.q3,
        "tokens_per_step": record.tokens_per_step,
        "peak_allocated_bytes": record.peak_allocated_bytes,
        "peak_reserved_bytes": record.peak_reserved_bytes,
        "energy_j_per_million_tokens": tokens_per_joule and 1e6 / tokens_per_joule,
        "tokens_per_joule": tokens_per_joule,
        "compile_s": record.compile_s,
        "compile_cache": record.compile_cache,
        "before": before and before.rung,
        "speedup_step": step and step.value,
        "speedup_step_low": step and step.low,
        "speedup_step_high": step and step.high,
        "speedup_step_clear": step and step.clear,
        "speedup_total": total and total.value,
        "speedup_total_low": total and total.low,
        "speedup_total_high": total and total.high,
        "speedup_total_clear": total and total.clear,
        "mfu": tokens and model_flops_utilization(recipe, tokens_per_s=tokens.median, gpu=record.machine["gpu"]),
        "ceiling_fraction": tokens and ceiling_fraction(record, tokens.median),
        "predicted_step_ms": record.predicted and record.predicted["step_ms"],
        "predicted_bound_by": record.predicted and record.predicted["bound_by"],
        "over_predicted": steps and record.predicted and steps.median / record.predicted["step_ms"],
        "contract": record.contract,
        "contract_verdict": record.contract_verdict,
        "dtype": dtype,
        "substitutions": record.substitutions,
        "attention_backend": attention_backend(record),
        "world_size": recipe.data_parallel,
        "scaling": _scaling(record, group),
        "drift": stats.own_drift(record),
        "recompiles": record.recompiles,
        "skipped_steps": record.skipped_steps,
        "notes": record.notes,
        "session": record.session,
        "machine_id": record.machine["machine_id"],
        "gpu": record.machine["gpu"],
        "method": record.method,
        "source_hash": record.source_hash,
        "commit": record.commit,
        "torch": record.machine["torch"],
        "utc": record.utc,
    }


def ceiling_fraction(record: Record, tokens_per_s: float) -> float | None:
    """Nominal FLOP/s of each GPU over the matmul rate measured in the session for the format that ran."""
    recipe = Recipe.from_dict(record.recipe)
    rate = (record.ceilings or {}).get("matmul_flops_per_s", {}).get(compute_dtype(recipe))
    return nominal_flops_per_token(recipe) * tokens_per_s / recipe.data_parallel / rate if rate else None


def _scaling(record: Record, group: list[Record]) -> float | None:
    """Tokens/s over those of the one-GPU row of the same session: 1.95 on two GPUs is 97 % each."""
    one = next((other for other in group if other.rung == "data_parallel_1"), None)
    if one is None or not record.rung.startswith("data_parallel"):
        return None
    numerator, denominator = (
        stats.tokens_per_s(r) if r.status == "measured" else None for r in (record, one)
    )  # fmt: skip
    return numerator.median / denominator.median if numerator and denominator else None


def _refuse_mixture(group: list[Record], where: str) -> None:
    """Files are checked when they are read; records that come from elsewhere are checked here."""
    for name, values in (
        ("session", {record.session for record in group}),
        ("machine_id", {record.machine["machine_id"] for record in group}),
        ("method", {record.method for record in group}),
    ):
        if len(values) > 1:
            mixed = ", ".join(sorted(map(str, values)))
            raise BadInput(f"{where}: one table never mixes machines, sessions or methods; {name} is {mixed}")
