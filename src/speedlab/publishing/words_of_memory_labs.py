"""Sentences and table cells of the memory labs, made from the rows of their experiments. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from speedlab.publishing import formatting as form
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
NOTHING_TO_SAY = "The rows that this sentence needs were not measured."


def step_cell(row: Row) -> str:
    """Median of a step in ms."""
    return form.three_digits(median(row["step_ms"])) if "step_ms" in row else form.NOTHING


def speed_cell(row: Row) -> str:
    """Thousand tokens per second."""
    return form.three_digits(_speed(row) / 1e3) if "step_ms" in row else form.NOTHING


def held_cell(row: Row) -> str:
    """GiB that tensors held at the peak."""
    return form.gib(row.get("peak_allocated_bytes"))


def reserved_cell(row: Row) -> str:
    """GiB that the allocator took at the peak."""
    return form.gib(row.get("peak_reserved_bytes"))


def update_cell(row: Row) -> str:
    """Median of the update alone, in ms."""
    return form.three_digits(median(row["update_ms"])) if "update_ms" in row else form.NOTHING


def error_cell(row: Row) -> str:
    return f"{row['relative_error']:.1e}" if row.get("relative_error") else "0" if "relative_error" in row else "–"  # noqa: RUF001


def found_cell(row: Row) -> str:
    """What a search found: sequences or tokens, with the bound named where it ended there."""
    value = row.get("largest", row.get("longest"))
    return form.NOTHING if value is None else f"{value:,}" + (" (bound)" if row.get("bounded") else "")


def of_kind(kind: str, cell: str | Callable[[Row], str]) -> Callable[[Row], str]:
    """A cell that stays empty in rows of another kind."""

    def only(row: Row) -> str:
        if row.get("kind") != kind:
            return form.NOTHING
        return cell(row) if callable(cell) else str(row.get(cell, form.NOTHING))

    return only


def batch_sentence(experiment: Experiment) -> str:
    """From which batch on more sequences hardly help, and whether 32 beats its neighbours."""
    eager = sorted(
        (row for row in _rows(experiment, "batch") if row["compile"] == "off"), key=lambda row: row["micro_batch"]
    )
    if len(eager) < 3:
        return NOTHING_TO_SAY
    fastest = max(eager, key=_speed)
    enough = next(row for row in eager if _speed(row) >= 0.95 * _speed(fastest))
    text = (
        f"Without the compiler, {enough['micro_batch']} sequences reach 95 % of the best speed, which is that of "
        f"{fastest['micro_batch']}."
    )
    speeds = {row["micro_batch"]: _speed(row) for row in eager}
    if {31, 32, 33} <= speeds.keys():
        gains = [form.percent(speeds[32] / speeds[near] - 1) for near in (31, 33)]
        text += f" 32 against its neighbours: {gains[0]} over 31, {gains[1]} over 33."
    return text


def checkpointing_sentence(experiment: Experiment) -> str:
    """Cost and saving of whole blocks and of the selective policy, eager and compiled."""
    parts = []
    variants = _rows(experiment, "variant")
    for mode in dict.fromkeys(row["compile"] for row in variants):
        for context in dict.fromkeys(row["context_length"] for row in variants if row["compile"] == mode):
            here = {row["way"]: row for row in variants if row["compile"] == mode and row["context_length"] == context}
            for way in ("every_block", "selective", "offload"):
                if way in here and "off" in here and here["off"]["peak_allocated_bytes"]:
                    time = median(here[way]["step_ms"]) / median(here["off"]["step_ms"])
                    memory = here[way]["peak_allocated_bytes"] / here["off"]["peak_allocated_bytes"]
                    parts.append(
                        f"{way.replace('_', ' ')}, {'eager' if mode == 'off' else 'compiled'}, context {context:,}: "
                        f"{form.three_digits(time)}x the time, {form.percent(memory)} of the peak"
                    )
    return ("Against the plain step: " + "; ".join(parts) + ".") if parts else NOTHING_TO_SAY


def fill_sentence(experiment: Experiment) -> str:
    """What 70 to 80 % of a card give of the best speed on it, and what its last per cent do."""
    fills = [row for row in _rows(experiment, "fill") if row["peak_reserved_bytes"]]
    if not fills:
        return NOTHING_TO_SAY
    best = max(_speed(row) for row in fills)
    share = {row["micro_batch"]: row["peak_reserved_bytes"] / row["limit_bytes"] for row in fills}
    advised = [row for row in fills if 0.65 <= share[row["micro_batch"]] <= 0.85]
    fullest = max(fills, key=lambda row: share[row["micro_batch"]])
    text = (
        f"{fills[0]['card']} (emulated): the fullest that ran reserved {form.percent(share[fullest['micro_batch']])} "
        f"and gave {form.percent(_speed(fullest) / best)} of the best speed"
    )
    if advised:
        low, high = (form.percent(pick(_speed(row) for row in advised) / best) for pick in (min, max))
        text += f"; between 65 and 85 % reserved, {low} to {high} of it"
    retries = sum(row["allocation_retries"] > 0 for row in fills)
    return text + f". In {retries} of {len(fills)} rows the allocator had to give blocks back to find room."


def accumulation_sentence(experiment: Experiment) -> str:
    """What more micro-batches for each update do to speed, and what the same batch in one piece does."""
    parts = []
    found = _rows(experiment, "micro_steps")
    for mode in dict.fromkeys(row["compile"] for row in found):
        line = sorted((row for row in found if row["compile"] == mode), key=lambda row: row["accumulation"])
        gain = _speed(line[-1]) / _speed(line[0])
        parts.append(
            f"{'eager' if mode == 'off' else 'compiled'}, {line[-1]['accumulation']} micro-batches of "
            f"{line[-1]['micro_batch']} instead of {line[0]['accumulation']} make {form.three_digits(gain)}x the "
            "tokens/s"
        )
    splits = _rows(experiment, "split")
    for total in dict.fromkeys(row["total_batch"] for row in splits):
        line = [row for row in splits if row["total_batch"] == total]
        whole, parts_of_it = line[0], line[-1]
        ratio = _speed(parts_of_it) / _speed(whole)
        memory = ""
        if whole["peak_allocated_bytes"] and parts_of_it["peak_allocated_bytes"]:
            share = parts_of_it["peak_allocated_bytes"] / whole["peak_allocated_bytes"]
            memory = f" with {form.percent(share)} of the peak memory"
        parts.append(
            f"{total} sequences in {parts_of_it['accumulation']} parts run at {form.three_digits(ratio)}x the speed "
            f"of {whole['accumulation']} x {whole['micro_batch']}{memory}"
        )
    return ("; ".join(parts) + ".") if parts else NOTHING_TO_SAY


def _rows(experiment: Experiment, kind: str) -> list[Row]:
    return [row for row in experiment.measured if row["kind"] == kind]


def _speed(row: Row) -> float:
    return row["tokens_per_step"] / (median(row["step_ms"]) / 1e3)
