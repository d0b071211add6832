"""Tables and sentences of the lab on number formats, from its experiment and from ladder `precisions`.

Nothing is measured here, and torch is not imported: rows and records come as they were written.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Any

from speedlab.number_formats import FORMATS
from speedlab.publishing import formatting as form
from speedlab.publishing.facts import device_title
from speedlab.publishing.tables import Table, by_ladder, rung_title
from speedlab.publishing.words_of_labs_inside import NOTHING_TO_SAY, Row, find, first_then_list, small
from speedlab.records.experiment import Experiment
from speedlab.records.record import Record
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_records

EIGHT_BITS = ("float8_e5m2", "float8_e4m3")
WAYS = {"bfloat16": "in pure bfloat16", "bfloat16_master": "with master weights"}
TAIL = 0.1  # of a curve, over which the gap of a record is a mean


def formats_table() -> str:
    """Markdown: bits, range and step of every number format, by formula."""
    heads = ("largest", "smallest normal", "smallest at all", "step at 1")
    cells = []
    for name, one in FORMATS.items():
        numbers = (one.largest, one.smallest_normal, one.smallest_subnormal, one.step_at_one)
        bits = f"1, {one.exponent_bits}, {one.fraction_bits}"
        cells.append((name, bits, *(f"{number:.3g}" for number in numbers)))
    columns = ("format", "sign, exponent, fraction bits", *heads)
    table = Table("Number formats, by formula", columns, tuple(cells), frozenset(heads))
    return f"**{table.title}**\n\n{table.markdown()}"


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


def in_float16(experiment: Experiment) -> list[Table]:
    """Shares of gradients that float16 loses, without and with a loss scale; bfloat16 in a note."""
    cells = _by_format(experiment)
    scale = _scale(experiment)
    heads = ("zero", "subnormal", "zero, scaled", "subnormal, scaled", "above largest, scaled")
    lines = []
    for of, step in _kinds(cells):
        plain, scaled = cells.get((of, step, "float16", 1.0)), cells.get((of, step, "float16", scale))
        if plain and scaled:
            shares = (plain["share_zero"], plain["share_subnormal"], scaled["share_zero"], scaled["share_subnormal"],
                      scaled["share_above_largest"])  # fmt: skip
            lines.append((of, f"{step}", *map(_share, shares)))
    wide = [row for row in cells.values() if row["format"] == "bfloat16"]
    worst = max((row["share_zero"] + row["share_subnormal"] for row in wide), default=0.0)
    notes = (f"in bfloat16 {_share(worst)} become zero or subnormal, whichever of these gradients",) if wide else ()
    title = f"Gradients in float16, without a loss scale and with one of {scale:,.0f}"
    return [Table(title, ("gradients of", "step", *heads), tuple(lines), frozenset(("step", *heads)), notes)]


def in_eight_bits(experiment: Experiment) -> list[Table]:
    """Shares that the 8-bit formats lose with a loss scale."""
    cells, scale = _by_format(experiment), _scale(experiment)
    heads = tuple(
        f"{what}, {name.removeprefix('float8_')}" for name in EIGHT_BITS for what in ("zero", "above largest")
    )
    lines = []
    for of, step in _kinds(cells):
        rows = [cells.get((of, step, name, scale)) for name in EIGHT_BITS]
        if all(rows):
            shares = [row[name] for row in rows for name in ("share_zero", "share_above_largest")]
            lines.append((of, f"{step}", *map(_share, shares)))
    title = f"Gradients in 8 bits with one loss scale of {scale:,.0f} for all"
    return [Table(title, ("gradients of", "step", *heads), tuple(lines), frozenset(("step", *heads)))] if lines else []


def _by_format(experiment: Experiment) -> dict[tuple[str, int, str, float], Row]:
    rows = find(experiment, what="gradients")
    return {(row["of"], row["step"], row["format"], row["loss_scale"]): row for row in rows}


def _kinds(cells: Any) -> list[tuple[str, int]]:
    """(kind, step), the steps of a kind beside each other, kinds as they were measured."""
    kinds = list(dict.fromkeys(of for of, *_ in cells))
    return [(of, step) for of in kinds for step in sorted({step for kind, step, *_ in cells if kind == of})]


def _scale(experiment: Experiment) -> float:
    return max((row["loss_scale"] for row in find(experiment, what="gradients")), default=1.0)


def _share(share: float) -> str:
    """A share in percent, in which a few of many millions are not none."""
    if share == 0:
        return "none"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return form.percent(share) if share >= 0.0005 else f"{100 * share:.1g} %" if share >= 1e-6 else "< 0.0001 %"


def gradients_lost(experiment: Experiment) -> str:
    """What changes from the first step to the last, what the scale mends, and what it may break."""
    cells, scale = _by_format(experiment), _scale(experiment)
    kinds = list(dict.fromkeys(of for of, *_ in cells))
    if not kinds or scale == 1.0:
        return NOTHING_TO_SAY
    start, last = (pick(step for _, step, *_ in cells) for pick in (min, max))
    said = []
    for of in kinds:
        early, late = (cells[of, step, "float16", 1.0]["share_zero"] for step in (start, last))
        said.append(f"of {of} {_share(early)} at step {start} and {_share(late)} at step {last}")
    zero = max(cells[of, step, "float16", scale]["share_zero"] for of in kinds for step in (start, last))
    text = [f"Zero in float16 without a scale: {'; '.join(said)}."]
    text.append(f"With the scale at most {_share(zero)} of any kind become zero.")
    totals = {(row["of"], row["step"]): sum(row["counts"]) for row in find(experiment, what="histogram")}
    over = [
        f"{form.count(cells[of, step, 'float16', scale]['share_above_largest'] * totals[of, step])} of "
        f"{form.count(totals[of, step])} gradients of {of} that are not zero, at step {step},"
        for of in kinds for step in dict.fromkeys((start, last))
        if cells[of, step, "float16", scale]["share_above_largest"] and (of, step) in totals
    ]  # fmt: skip
    if over:
        text.append(
            f"It lifts {', '.join(over)} above float16's largest number. One such gradient is enough: the scaler skips "
            "that step and halves the scale."
        )
    return first_then_list(text)


def updates(experiment: Experiment) -> list[Table]:
    """Which share of AdamW's updates leaves a 16-bit weight as it is, one line for each group of weights."""
    rows = find(experiment, what="updates")
    lost = {(row["of"], row["format"]): row["share_lost"] for row in rows}
    formats = list(dict.fromkeys(row["format"] for row in rows))
    heads = ("mean size", "mean update", *(f"lost in {name}" for name in formats))
    groups = sorted({row["of"]: row for row in rows}.values(), key=lambda row: row["of"] == "all")
    cells = tuple(
        (row["of"], small(row["mean_weight"]), small(row["mean_update"]),
         *(form.percent(lost[row["of"], name]) for name in formats))
        for row in groups
    )  # fmt: skip
    title = f"Updates of step {rows[0]['step']} that a 16-bit weight does not notice" if rows else "Updates"
    return [Table(title, ("weights", *heads), cells, frozenset(heads))] if rows else []


def weights_watched(experiment: Experiment) -> str:
    """Where each watched weight went, in each way to train, and when it stopped."""
    rows = find(experiment, what="trajectory")
    if not rows:
        return NOTHING_TO_SAY
    said = ["The first entry of two weights, as drawn in the figure:"]
    for weight in dict.fromkeys(row["weight"] for row in rows):
        ways, mine = [], [row for row in rows if row["weight"] == weight]
        start = mine[0]["values"][0]
        for row in mine:
            values = row["values"]
            moves = [at for at, (one, two) in enumerate(pairwise(values), 1) if one != two]
            way = WAYS.get(row["precision"], f"in {row['precision']}")
            ways.append(
                f"{way} it ends at {values[-1]:.5g} after {len(moves)} moves, the last at step {moves[-1]}"
                if moves else f"{way} it never moves"
            )  # fmt: skip
        said.append(f"`{weight}` starts at {start:.5g}: {'; '.join(ways)}.")
    return first_then_list(said)


def ladder_records() -> list[list[Record]]:
    """The measured rungs of ladder `precisions`, those of one device beside each other."""
    root = committed_root()
    records = [record for record in read_records(root) if record.ladder == "precisions"] if root.is_dir() else []
    devices = dict.fromkeys(record.device for record in records)
    return [[r for r in records if r.device == device and r.status == "measured"] for device in devices]


def ladder_table() -> str:
    """Markdown: speed, memory and loss of each way to train on each device, or that there is no record."""
    parts = [_one_ladder(records) for records in ladder_records() if records]
    return "\n\n".join(parts) or (
        "Ladder `precisions` is not recorded yet: `speedlab ladder --ladder precisions` measures it."
    )


def _one_ladder(records: list[Record]) -> str:
    rows = {row["rung"]: row for group in by_ladder(report_rows(records)) for row in group}
    repeats, details = reference_tails(records), {r.rung: r.contract_detail or {} for r in records}
    heads = ("tokens/s", "speed", "GiB reserved", "loss gap, nats")
    cells = []
    for record in records:
        row, gap = rows[record.rung], details[record.rung].get("gap")
        clear = record.contract == "reference" or row["speedup_total_clear"]
        speed = form.ratio(row["speedup_total"], clear=clear)
        loss = form.NOTHING if gap is None else f"{gap:+.3f}"
        name = rung_title("precisions", record.rung)
        cells.append((name, form.count(row["tokens_per_s"]), speed, form.gib(row["peak_reserved_bytes"]), loss))
    title = f"Ways to train on {device_title(records[0].device)}"
    text = f"**{title}**\n\n{Table(title, ('training', *heads), tuple(cells), frozenset(heads)).markdown()}\n"
    return text + gap_words(records, repeats)


def reference_tails(records: list[Record]) -> list[float]:
    """The mean loss over the last tenth, of each time that the reference was trained beside another rung."""
    details = [record.contract_detail or {} for record in records]
    return [tail(detail["curve_before"]) for detail in details if "curve_before" in detail]


def tail(curve: dict[str, Any]) -> float:
    seen = curve["tokens"][-1]
    return fmean(loss for at, loss in zip(curve["tokens"], curve["losses"], strict=True) if at > (1 - TAIL) * seen)


def gap_words(records: list[Record], repeats: list[float]) -> str:
    """Which loss ends outside what the reference itself gave over its repeats, and what a scaler skipped."""
    if len(repeats) < 2:
        return NOTHING_TO_SAY
    sides: dict[str, list[str]] = {"Above all of these": [], "Among them": [], "Below all of these": []}
    above, among, below = sides.values()
    for record in records:
        if "curve" in (record.contract_detail or {}):
            end, name = tail(record.contract_detail["curve"]), rung_title("precisions", record.rung)
            side = above if end > max(repeats) else below if end < min(repeats) else among
            beyond = max(end - max(repeats), min(repeats) - end)
            side.append(f"{name} at {end:.3f}" + (f", by {beyond:.3f}" if beyond > 0 else ""))
    tokens = next(r.contract_detail["curve"]["tokens"][-1] for r in records if "curve" in (r.contract_detail or {}))
    said = [
        f"Loss is a mean over the last tenth of {tokens:,} tokens, the gap to a reference trained beside it. That "
        f"reference, the same float32 training {len(repeats)} times, ended between {min(repeats):.3f} and "
        f"{max(repeats):.3f}: additions in another order are enough for that."
    ]
    said += [f"{words}: {'; '.join(names)}." for words, names in sides.items() if names]
    skipped = {rung_title("precisions", r.rung): r.skipped_steps for r in records if r.skipped_steps}
    said += [
        f"{name}: the scaler left {steps.get('curve', 0)} of the curve's steps without an update, and it runs behind "
        "by as many."
        for name, steps in skipped.items()
    ]
    return "\n" + "\n".join(f"* {sentence}" for sentence in said) + "\n"
