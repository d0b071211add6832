"""What the parts of a step, each measured alone, say together: one line for each, and a sum of the fastest."""

from __future__ import annotations

from statistics import median
from typing import Any

# How often a part is in a step: per layer, or once.
PER_LAYER = {"qkv": 1, "out": 1, "up": 1, "down": 1, "attention": 1, "gelu": 1, "residual_norm": 2, "join q/k/v": 1}
ONCE = {"head": 1, "loss": 1, "embedding": 1, "AdamW": 1}
# Rows that are no way to do the whole of a part: a pass that a fused kernel makes superfluous, another mathematics.
NO_WHOLE = ("bias gradient", "scaling by one", "fused, bfloat16 alone", "fused, float32", "sdpa_flash")


def budget_ms(rows: list[dict[str, Any]], layers: int) -> dict[str, float]:
    """Milliseconds of a step by part, if each took what its fastest variant takes alone."""
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        if row["status"] == "measured" and not any(word in (row["way"], row["variant"]) for word in NO_WHOLE):
            key, found = (row["part"], row["way"]), median(row["time_us"]) / 1e3
            best[key] = min(found, best.get(key, found))
    times = {part: n * layers for part, n in PER_LAYER.items()} | ONCE
    return {part: n * sum(ms for (of, _), ms in best.items() if of == part) for part, n in times.items()}


def in_words(row: dict[str, Any]) -> str:
    """One line for whoever watches: the median of the samples, and the rate that goes with it."""
    name = f"{row['part']}, {row['way']}, {row['variant']}"
    if row["status"] != "measured":
        return f"{name}: {row['reason']}"
    middle_us = median(row["time_us"])
    rates = {"flops": (1e6, "TFLOP/s"), "bytes": (1e6, "TB/s")}
    rate = "".join(
        f", {row[count] / middle_us / unit:.3g} {word}" for count, (unit, word) in rates.items() if row.get(count)
    )
    return f"{name}: {middle_us:,.0f} us{rate}"
