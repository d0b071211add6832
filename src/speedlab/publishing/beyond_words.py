"""What the chapter past the ladder shows of its records and experiments: tables and sentences made from them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from statistics import fmean, median
from typing import Any

from speedlab.beyond import BEYOND
from speedlab.labs.beyond import PLAIN_CURVE
from speedlab.labs.beyond_predictions import lab_book
from speedlab.publishing.beyond_tables import goals_table
from speedlab.publishing.facts import device_title
from speedlab.publishing.formatting import NOTHING, count, three_digits
from speedlab.publishing.page_tables import page_tables
from speedlab.records.experiment import Experiment
from speedlab.records.record import Record
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_records

# The end of a loss curve, over which its loss is averaged.
TAIL = 0.1


def ladder_section(records: Iterable[Record] | None = None) -> str:
    """For each device the goals and what was reached, the ladder rung by rung, and the lab book of predictions."""
    records = read_records(committed_root()) if records is None else records
    own = sorted((record for record in records if record.ladder == BEYOND.name), key=lambda record: record.device)
    sections = []
    for device, records_of_device in groupby(own, key=lambda record: record.device):
        group, name = list(records_of_device), device_title(device)
        goals = goals_table(group)
        parts = [f"**{goals.title}.** {name}\n\n{goals.markdown()}"] if goals else []
        parts.append(f"**Rung by rung.** {name}\n\n{page_tables(report_rows(group))}")
        parts.append(f"**The lab book.** {name}\n\n{lab_book(group)}")
        sections.append("\n\n".join(parts))
    return "\n\n".join(sections) or f"Nothing recorded yet. The predictions stand:\n\n{lab_book([])}"


def rate(row: dict[str, Any]) -> str:
    """Tokens per second of a row with step times."""
    return count(1e3 * row["tokens_per_step"] / median(row["step_ms"]))


def step_ms(row: dict[str, Any]) -> str:
    return f"{median(row['step_ms']):.1f}"


def gib(row: dict[str, Any]) -> str:
    return NOTHING if not row.get("peak_reserved_bytes") else three_digits(row["peak_reserved_bytes"] / 2**30)


def curve_words(experiment: Experiment) -> str:
    """The losses at the end of each curve, and whether the two sides lie as near as two seeds of one side do."""
    ends = {(row["curve"], row["seed"]): _end(row["losses"]) for row in experiment.measured}
    plain = [loss for (curve, _), loss in ends.items() if curve == PLAIN_CURVE]
    if len(plain) < 2:
        return "The curves of the plain recipe are not complete, so there is nothing to compare with."
    noise = max(plain) - min(plain)
    steps = experiment.measured[0]
    words = [
        f"{steps['steps']:,} steps of {steps['tokens_per_step']:,} tokens, {steps['passes']:.2g} passes over the "
        f"corpus. Two seeds of the plain recipe end {noise:.4f} nats apart."
    ]
    others = dict.fromkeys(curve for curve, _ in ends if curve != PLAIN_CURVE)
    for curve in others:
        gaps = [
            ends[curve, seed] - ends[PLAIN_CURVE, seed]
            for name, seed in ends
            if name == curve and (PLAIN_CURVE, seed) in ends
        ]
        largest = max(gaps, key=abs)
        verdict = "inside" if abs(largest) <= noise else "outside"
        words.append(
            f"{curve.capitalize()} with the same seed ends {largest:+.4f} nats from it at most, which is {verdict} "
            "that spread."
        )
    return " ".join(words)


def break_even_words(experiment: Experiment) -> str:
    """After how many steps the compilation of the fastest recipe is paid back, for each size."""
    rows = {(row["size"], row["preset"]): row for row in experiment.measured}
    words = []
    for size in dict.fromkeys(size for size, _ in rows):
        plain, fast = rows.get((size, "plain compiled")), rows.get((size, "fastest"))
        if plain is None or fast is None:
            continue
        saved_s = (median(plain["step_ms"]) - median(fast["step_ms"])) / 1e3
        extra_s = (fast["compile_s"] or 0.0) - (plain["compile_s"] or 0.0)
        if saved_s <= 0:
            words.append(f"At {size} the fastest recipe is no faster than the plain one.")
        elif extra_s <= 0:
            words.append(f"At {size} it compiles no longer than the plain one ({extra_s:+.0f} s) and is ahead at once.")
        else:
            words.append(
                f"At {size} it compiles {extra_s:.0f} s longer, paid back after {extra_s / saved_s:,.0f} steps."
            )
    return " ".join(words) or "Both presets are needed for a break-even."


def _end(losses: list[float]) -> float:
    return fmean(losses[-max(1, round(TAIL * len(losses))) :])
