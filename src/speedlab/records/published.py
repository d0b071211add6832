"""Figures that others published, each with its source. It knows nothing of our records: the two are never mixed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from speedlab.errors import BadInput
from speedlab.ladder import get_ladder

# The published name of a row -> our rung, where they differ, for each source. The published FlashAttention program of
# ladder A has the joined q/k/v as well, which is our next rung; one account of ladder B compiles with max-autotune.
_IN_SIX_STEPS = {
    "fp32": "baseline",
    "tf32": "tensor_cores",
    "bf16_autocast": "bfloat16_autocast",
    "compile_flash_padded": "padded_vocab",
}
_RUNGS = {
    "raschka": {"flash_attention": "merged_qkv"},
    "six_steps": _IN_SIX_STEPS | {"torch_compile": "torch_compile_max_autotune"},
    "karpathy": _IN_SIX_STEPS,
}
# Source -> {card: (entry of the file, micro-batch)} for ladders that are published in ms per step.
_SIX_STEPS_ENTRIES = {
    "six_steps": {"A100": ("ladder_b_a100_ms", 16), "T4": ("ladder_b_t4_ms", 4)},
    "karpathy": {"A100": ("karpathy_a100_ms", 16)},
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Who measured, on what, and which statistic the figure is; parts that were not stated are None."""

    key: str
    title: str
    hardware: str
    statistic: str | None
    url: str | None
    torch: str | None
    compile_mode: str | None


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One published figure of one rung. tokens_per_s: over all GPUs; reserved_gib: GiB on each."""

    ladder: str
    rung: str
    published_name: str  # of the row in its source
    card: str
    gpus: int
    tokens_per_s: float
    step_ms: float | None
    reserved_gib: float | None
    source: Source

    @property
    def label(self) -> str:
        return f"published, {self.gpus} x {self.card}" if self.gpus > 1 else f"published, {self.card}"


def load() -> dict[str, Any]:
    """The whole file, as it is. For figures that belong to no rung; label them published where they are shown."""
    return json.loads(resources.files("speedlab.records").joinpath("published.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def sources() -> dict[str, Source]:
    """All sources by their key."""
    return {
        key: Source(
            key=key,
            title=values["title"],
            hardware=values["hardware"],
            statistic=values.get("statistic"),
            url=values.get("url"),
            torch=values.get("torch"),
            compile_mode=values.get("compile_mode"),
        )
        for key, values in load()["sources"].items()
    }


@lru_cache(maxsize=16)
def published_rows(ladder: str, *, card: str = "A100", source: str | None = None) -> tuple[PublishedRow, ...]:
    """The published figures of a ladder, in its order: "nine-steps" on "A100", "six-steps" on "A100" or "T4".

    source: "six_steps" (default) or "karpathy" for ladder six-steps. Ladders that nobody published give no rows.
    """
    if ladder == "nine-steps" and card == "A100" and source in (None, "raschka"):
        return tuple(
            PublishedRow(
                ladder=ladder,
                rung=_rung(ladder, entry["rung"], "raschka"),
                published_name=entry["rung"],
                card=card,
                gpus=entry.get("gpus", 1),
                tokens_per_s=float(entry["tokens_per_s"]),
                step_ms=None,
                reserved_gib=entry["reserved_gib"],
                source=sources()["raschka"],
            )
            for entry in load()["ladder_a_a100"]
        )
    key = source or "six_steps"
    entry = _SIX_STEPS_ENTRIES.get(key, {}).get(card) if ladder == "six-steps" else None
    if entry is None:
        return ()
    name, micro_batch = entry
    tokens = micro_batch * get_ladder(ladder).start.context_length
    return tuple(
        PublishedRow(
            ladder=ladder,
            rung=_rung(ladder, published_name, key),
            published_name=published_name,
            card=card,
            gpus=1,
            tokens_per_s=tokens * 1e3 / step_ms,
            step_ms=float(step_ms),
            reserved_gib=None,
            source=sources()[key],
        )
        for published_name, step_ms in load()[name]
    )


def published_row(ladder: str, rung: str, *, card: str = "A100", source: str | None = None) -> PublishedRow | None:
    """The published figure of one rung, or None."""
    return next((row for row in published_rows(ladder, card=card, source=source) if row.rung == rung), None)


def _rung(ladder: str, published_name: str, source: str) -> str:
    rung = _RUNGS[source].get(published_name, published_name)
    if rung not in get_ladder(ladder).keys:
        raise BadInput(f"published.json: {published_name!r} is no rung of ladder {ladder}")
    return rung
