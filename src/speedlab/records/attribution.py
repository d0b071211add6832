"""How a whole speed-up is shared among its changes, and how much that depends on their order. It knows report rows.

A speed-up is a product of ratios, so its logarithm is a sum: the share of a change is the logarithm of its own ratio
over that of the whole. Shares along one order sum to 1. Changes of the number of GPUs are left out: what is shared is
the speed-up of one GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from speedlab.derived_ladders import ALONE, REMOVED, REORDERED
from speedlab.ladder import NINE_STEPS, SIX_STEPS, ladder_with_rungs_of

Row = dict[str, Any]

# The claim that is on trial sorts the changes of both ladders into three layers.
LAYERS: dict[str, tuple[str, ...]] = {
    "algorithm and precision": ("causal_mask", "tensor_cores", "bfloat16", "bfloat16_autocast", "flash_attention"),
    "fusion and compilation": ("fused_adamw", "native_layers", "merged_qkv", "torch_compile"),
    "alignment, batch and input": ("padded_vocab", "batch_size", "pinned_memory"),
}
# The ladders that stack changes one after another, each in an order of its own.
ORDERS = (NINE_STEPS.name, NINE_STEPS.name + REORDERED, SIX_STEPS.name)


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of one change. value: over the whole, None when the change could not be made or compared.

    ratio: tokens/s with the change over those without it. clear: whether that exceeds the spread. inert: the recipe
    there does not read the changed field, so its part is 0.
    """

    value: float | None
    ratio: float | None = None
    clear: bool | None = None
    inert: bool = False


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """All that the records of one device say. rows: one for each change of ladder nine-steps, in its order.

    Keys of a row: device, rung, layer; `along`, `alone`, `removed` (a `Share` each, None without such records);
    `orders` ({ladder: share}); low, high: the least and the largest of those. layers: the same sums for each layer:
    layer, along, alone, removed, orders, low, high. gaps: what is missing, one sentence each.
    """

    device: str
    rows: list[Row]
    layers: list[Row]
    gaps: list[str]


def attribute(rows: Iterable[Row]) -> list[Attribution]:
    """One `Attribution` for each device whose report rows hold an order of the changes, or each change apart.

    rows: as `report_rows` returns them. Shares of `alone` and `removed` are over the whole speed-up of ladder
    nine-steps, so they need not sum to 1: what is missing or too much there is what changes do to each other.
    """
    wanted = {*ORDERS, ALONE, REMOVED}
    found = []
    for device, group in groupby(sorted(rows, key=lambda row: row["device"]), key=lambda row: row["device"]):
        by_ladder: dict[str, list[Row]] = {}
        for row in group:
            if row["ladder"] in wanted:
                by_ladder.setdefault(row["ladder"], []).append(row)
        # The rows of several GPUs alone are no order of the changes.
        if any(row["contract"] == "reference" for ladder in by_ladder.values() for row in ladder):
            found.append(_attribution(device, by_ladder))
    return found


def shares_along(rows: list[Row]) -> tuple[dict[str, Share], float]:
    """The shares of the rungs of one stacked ladder, which sum to 1, and the logarithm of the whole speed-up.

    `ValueError` says why there are none: a rung without a record or a measurement breaks the chain.
    """
    ladder = ladder_with_rungs_of(rows[0]["ladder"])
    rungs = {row["rung"]: row for row in rows}
    lacking = [rung.key for rung in ladder if rung.stacked and _on_one_gpu(rung.key) and rung.key not in rungs]
    if lacking:
        raise ValueError(f"no record of {', '.join(lacking)}")
    stacked = [row for row in rows if _on_one_gpu(row["rung"]) and ladder.rung(row["rung"]).stacked]
    logs: dict[str, float] = {}
    for row in stacked:
        applied = row["status"] not in ("unavailable", "not_applicable")
        if applied and row["status"] != "measured":
            raise ValueError(f"{row['rung']} is {row['status'].replace('_', ' ')}")
        if applied and row["contract"] != "reference":
            if not row["speedup_step"]:
                raise ValueError(f"{row['rung']} has nothing to be compared with")
            logs[row["rung"]] = math.log(row["speedup_step"])
    total = sum(logs.values())
    if total <= 0:
        raise ValueError("all changes together give no speed-up that could be shared")
    return {row["rung"]: _share(row, total) for row in stacked if row["contract"] != "reference"}, total


def _attribution(device: str, by_ladder: dict[str, list[Row]]) -> Attribution:
    gaps: list[str] = []
    orders: dict[str, dict[str, Share]] = {}
    total = None
    for name in ORDERS:
        if name not in by_ladder:
            gaps.append(f"no records of ladder {name}")
            continue
        try:
            orders[name], log_of_whole = shares_along(by_ladder[name])
        except ValueError as reason:
            gaps.append(f"no shares along ladder {name}: {reason}")
            continue
        # Both orders of the same changes lead from the same start to the same top.
        if total is None and name != SIX_STEPS.name:
            total = log_of_whole
    apart: dict[str, dict[str, Share]] = {ALONE: {}, REMOVED: {}}
    for name, sign in ((ALONE, 1.0), (REMOVED, -1.0)):
        if name not in by_ladder:
            gaps.append(f"no records of ladder {name}")
        else:
            changing = [row for row in by_ladder[name] if row["contract"] != "reference"]
            apart[name] = {row["rung"]: _share(row, total and sign * total) for row in changing}
    if total is None:
        gaps.append("no whole speed-up of ladder nine-steps that shares could be parts of")
    rows = [
        {"device": device, "rung": key, "layer": layer_of(key)}
        | {"along": orders.get(NINE_STEPS.name, {}).get(key)}
        | {name: shares.get(key) for name, shares in apart.items()}
        | _spread({name: shares[key].value for name, shares in orders.items() if key in shares})
        for key in NINE_STEPS.keys[1:]
        if _on_one_gpu(key)
    ]
    return Attribution(device=device, rows=rows, layers=list(_layers(device, orders, apart)), gaps=gaps)


def layer_of(key: str) -> str:
    return next(layer for layer, keys in LAYERS.items() if key in keys)


def _layers(device: str, orders: dict[str, dict[str, Share]], apart: dict[str, dict[str, Share]]) -> Iterator[Row]:
    for layer, keys in LAYERS.items():
        row: Row = {"device": device, "layer": layer, "along": _sum(orders.get(NINE_STEPS.name, {}), keys)}
        row |= {name: _sum(shares, keys) for name, shares in apart.items()}
        yield row | _spread({name: _sum(shares, keys) for name, shares in orders.items()})


def _sum(shares: dict[str, Share], keys: Iterable[str]) -> float | None:
    values = [shares[key].value for key in keys if key in shares and shares[key].value is not None]
    return sum(values) if values else None


def _spread(orders: dict[str, float | None]) -> Row:
    known = {name: value for name, value in orders.items() if value is not None}
    return {"orders": known, "low": min(known.values(), default=None), "high": max(known.values(), default=None)}


def _share(row: Row, total: float | None) -> Share:
    """The share of one row of a ladder. A negative total is of a ladder whose rows lack the change."""
    if row["status"] == "not_applicable":
        return Share(value=0.0, inert=True)
    ratio = row["speedup_step"] if row["status"] == "measured" else None
    if not ratio:
        return Share(value=None)
    with_it = 1 / ratio if row["ladder"] == REMOVED else ratio
    return Share(
        value=None if total is None else math.log(ratio) / total, ratio=with_it, clear=row["speedup_step_clear"]
    )


def _on_one_gpu(key: str) -> bool:
    return not key.startswith("data_parallel")
