"""Made-up experiments of a card for the pages of the labs on precision, attention and the compiler."""

from __future__ import annotations

from typing import Any

from records_helper import MACHINE_H200

from speedlab.records.experiment import Experiment


def made(name: str, rows: list[dict[str, Any]], **more: Any) -> Experiment:
    return Experiment(
        name=name, session="0f1e2d3c4b5a", device="nvidia-h200", profile="full", machine=MACHINE_H200,
        source_hash="0" * 64, utc="2026-11-29T12:00:00+00:00",
        rows=[{"status": "measured", "reason": None} | row for row in rows], **more,
    )  # fmt: skip


def gradients(of: str, name: str, scale: float, zero: float, *, step: int = 7, above: float = 0.0) -> dict[str, Any]:
    return {"what": "gradients", "of": of, "step": step, "format": name, "loss_scale": scale, "share_zero": zero,
            "share_subnormal": zero / 2, "share_above_largest": above}  # fmt: skip


def mode(name: str, ms: float, compile_s: float | None) -> dict[str, Any]:
    return {"what": "mode", "recipe": "native", "mode": name, "step_ms": [ms] * 3, "compile_s": compile_s,
            "compile_cache": "cold" if compile_s else None, "tokens_per_step": 8192, "peak_reserved_bytes": 2**30,
            "losses": [10.8, 10.0 + (ms / 1e3 if compile_s else 0)]}  # fmt: skip


def kernels(
    name: str, kinds: dict[str, tuple[float, float]], *, fused: list[tuple[str, float]] | None = None
) -> dict[str, Any]:
    return {"what": "kernels", "recipe": "native", "mode": name, "calls": sum(c for c, _ in kinds.values()),
            "time_us": sum(t for _, t in kinds.values()),
            "kinds": {kind: {"calls": c, "time_us": t} for kind, (c, t) in kinds.items()},
            "longest_fused": [{"name": one, "calls": 1.0, "time_us": time} for one, time in fused or []]}  # fmt: skip
