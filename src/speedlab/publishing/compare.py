"""Two folders of records side by side: each rung's ratio, and what differs between the machines and methods.

It never pools samples of two sessions: each side keeps its own median, and the ratio has an interval.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from speedlab.errors import BadInput, check_choice
from speedlab.profile import PROFILES
from speedlab.publishing import formatting as form
from speedlab.publishing.tables import Table, render_tables
from speedlab.recipe import Recipe, changes
from speedlab.records import stats
from speedlab.records.record import REMARK, Record
from speedlab.records.store import committed_root, read_records, reading_order

FORMATS = ("table", "markdown", "json")
PUBLISHED = "published"  # stands for the folder of committed records

# Words for a reader, and the field of `machine` in a record.
MACHINE_FIELDS = {
    "GPU": "gpu", "GPUs": "gpus", "card or machine": "machine_id", "GPU memory, bytes": "gpu_memory_bytes",
    "memory limit, bytes": "memory_limit_bytes", "power cap, W": "power_limit_w", "driver": "driver", "CUDA": "cuda",
    "cuDNN": "cudnn", "torch": "torch", "Triton": "triton", "Python": "python", "CPU": "cpu", "cores": "cores",
    "system": "os",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Something that the two sides do not share; a value is None where a side does not record it."""

    what: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Pair:
    """One ladder on the device of each side. rows: one for each rung of either side, in the order of the ladder."""

    ladder: str
    device_a: str
    device_b: str
    profile_a: str
    profile_b: str
    differences: tuple[Difference, ...]
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Comparison:
    """a, b: the two sides as they were named. left_out: one line for each ladder that has no counterpart."""

    a: str
    b: str
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]


def compare_folders(a: str, b: str = PUBLISHED) -> Comparison:
    """Compare two folders of records; the word "published" names the committed ones.

    `BadInput` for a folder that holds none, for sides that share no ladder, and for a toy beside a real model.
    """
    return compare_records(_read(a), _read(b), a=a, b=b)


def compare_records(of_a: Iterable[Record], of_b: Iterable[Record], *, a: str = "A", b: str = "B") -> Comparison:
    """A ladder on a device is compared with the same ladder on the same device, else on every device of the other."""
    groups_a, groups_b = _groups(of_a), _groups(of_b)
    pairs, left_out, matched = [], [], set()
    mixed: BadInput | None = None
    for (device, ladder), group in groups_a.items():
        others = [key for key in groups_b if key[1] == ladder]
        others = [key for key in others if key[0] == device] or others
        if not others:
            left_out.append(f"{device}/{ladder} is only in A")
        for key in others:
            matched.add(key)
            try:
                pairs.append(_pair(group, groups_b[key]))
            except BadInput as error:
                mixed = error
                left_out.append(str(error))
    left_out += [f"{device}/{ladder} is only in B" for device, ladder in groups_b if (device, ladder) not in matched]
    if not pairs:
        raise mixed or BadInput(f"nothing to compare: {'; '.join(left_out)}; name two folders with the same ladder")
    return Comparison(a, b, tuple(pairs), tuple(left_out))


def render_comparison(comparison: Comparison, format: str) -> str:
    """For people one table for each pair, for programs everything as JSON."""
    check_choice("format", format, FORMATS)
    if format == "json":
        return json.dumps(asdict(comparison), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    text = render_tables((comparison_table(comparison, pair) for pair in comparison.pairs), format)
    left_out = "".join(f"* left out: {line}\n" for line in comparison.left_out)
    return f"{text}\n{left_out}" if left_out else text


def comparison_table(comparison: Comparison, pair: Pair) -> Table:
    """Both speeds, their ratio with its interval, both memories; what differs stands in the notes."""
    cells = tuple(
        (
            row["rung"],
            form.count(row["tokens_per_s_a"]),
            form.count(row["tokens_per_s_b"]),
            form.ratio(row["ratio"], clear=row["clear"]),
            _interval(row),
            form.gib(row["peak_reserved_bytes_a"]),
            form.gib(row["peak_reserved_bytes_b"]),
            "; ".join(row["notes"]),
        )
        for row in pair.rows
    )
    numbers = ("A tokens/s", "B tokens/s", "A GiB", "B GiB")
    notes = [f"A: {comparison.a} ({pair.device_a})", f"B: {comparison.b} ({pair.device_b})"]
    notes += [f"differs: {item.what}: {_shown(item.a)} in A, {_shown(item.b)} in B" for item in pair.differences]
    if not pair.differences:
        notes.append("nothing that the records hold about machine and method differs")
    notes.append(
        "interval: 95 %, from resampled steps, widened by the drift of the sessions; how much one machine differs from "
        "day to day is not in it"
    )
    if not PROFILES[pair.profile_a].publishable:
        notes.append(f"profile {pair.profile_a}: {PROFILES[pair.profile_a].about}")
    return Table(
        title=f"ladder {pair.ladder}: B over A",
        columns=("rung", *numbers[:2], "B/A", "interval", *numbers[2:], "notes"),
        cells=cells,
        numbers=frozenset(numbers),
        notes=tuple(notes),
    )


def _read(name: str) -> list[Record]:
    folder = committed_root() if name == PUBLISHED else Path(name)
    records = read_records(folder)
    if not records:
        raise BadInput(f"no records below {folder}: name the folder that holds <device>/<ladder>/<rung>.json")
    return records


def _groups(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    ordered = sorted(records, key=reading_order)
    return {key: list(group) for key, group in groupby(ordered, key=lambda record: (record.device, record.ladder))}


def _pair(of_a: list[Record], of_b: list[Record]) -> Pair:
    one, two = of_a[0], of_b[0]
    toys = [not PROFILES[record.profile].publishable for record in (one, two)]
    if any(toys) and one.profile != two.profile:
        raise BadInput(
            f"{one.device}/{one.ladder} of A has profile {one.profile}, {two.device}/{two.ladder} of B has "
            f"{two.profile}: a toy and a real model are not compared; measure both with one profile"
        )
    drift = max(stats.drift(of_a), stats.drift(of_b))
    by_rung_a, by_rung_b = ({record.rung: record for record in group} for group in (of_a, of_b))
    everything = {record.rung: record for record in sorted([*of_b, *of_a], key=lambda r: reading_order(r)[1:])}
    return Pair(
        ladder=one.ladder,
        device_a=one.device,
        device_b=two.device,
        profile_a=one.profile,
        profile_b=two.profile,
        differences=_differences(one, two),
        rows=tuple(_row(rung, by_rung_a.get(rung), by_rung_b.get(rung), drift) for rung in everything),
    )


def _row(rung: str, a: Record | None, b: Record | None, drift: float) -> dict[str, Any]:
    speed_a, speed_b = (stats.tokens_per_s(r) if r is not None and r.status == "measured" else None for r in (a, b))
    ratio = stats.speedup(a, b, drift=drift) if speed_a and speed_b else None
    return {
        "rung": rung,
        "status_a": a and a.status,
        "status_b": b and b.status,
        "tokens_per_s_a": speed_a and speed_a.median,
        "tokens_per_s_b": speed_b and speed_b.median,
        "ratio": ratio and ratio.value,
        "ratio_low": ratio and ratio.low * (1 - drift),
        "ratio_high": ratio and ratio.high * (1 + drift),
        "clear": ratio and ratio.clear,
        "peak_reserved_bytes_a": a and a.peak_reserved_bytes,
        "peak_reserved_bytes_b": b and b.peak_reserved_bytes,
        "notes": _row_notes(a, b),
    }


def _row_notes(a: Record | None, b: Record | None) -> list[str]:
    """What keeps the two from being the same experiment, and what was flagged on either side."""
    notes = []
    if a is not None and b is not None:
        differing = changes(Recipe.from_dict(a.recipe), Recipe.from_dict(b.recipe))
        notes += [f"{name} {one} in A, {two} in B" for name, (one, two) in differing.items()]
    for side, record in (("A", a), ("B", b)):
        if record is None:
            notes.append(f"{side} has no record of it")
        else:
            if record.status != "measured":
                notes.append(f"{side} {record.status.replace('_', ' ')}: {' '.join((record.reason or '').split())}")
            notes += [f"{side}: {note}" for note in record.notes if not note.startswith(REMARK)]
    return notes


def _differences(one: Record, two: Record) -> tuple[Difference, ...]:
    pairs = {what: (one.machine.get(name), two.machine.get(name)) for what, name in MACHINE_FIELDS.items()}
    pairs |= {
        "profile": (one.profile, two.profile),
        "method": (one.method, two.method),
        "corpus": (_corpus(one), _corpus(two)),
        "source of speedlab": (one.source_hash[:12], two.source_hash[:12]),
        "session": (one.session, two.session),
        "day": (one.utc[:10], two.utc[:10]),
    }
    return tuple(Difference(what, a, b) for what, (a, b) in pairs.items() if a != b)


def _corpus(record: Record) -> str | None:
    return record.corpus and f"{record.corpus['name']} {record.corpus['sha256'][:12]}"


def _interval(row: dict[str, Any]) -> str:
    if row["ratio"] is None:
        return form.NOTHING
    return f"{row['ratio_low']:.3f}–{row['ratio_high']:.3f}"  # noqa: RUF001


def _shown(value: Any) -> str:
    return "not recorded" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
