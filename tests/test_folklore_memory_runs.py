"""Verdicts that read recorded experiments follow their rows, and say nothing without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from records_helper import MACHINE_CPU, MACHINE_H200

from speedlab.folklore import experiments as module
from speedlab.folklore.claims import CLAIMS
from speedlab.records.experiment import Experiment, write_experiment

BY_KEY = {claim.key: claim for claim in CLAIMS}
GIB = 2**30


def variant(way: str, ms: float, gib: float, mode: str = "off", context: int = 1024, runs: int = 24) -> dict[str, Any]:
    return {
        "kind": "variant", "way": way, "compile": mode, "micro_batch": 8, "context_length": context,
        "status": "measured", "reason": None, "step_ms": [ms * 0.99, ms, ms * 1.02], "tokens_per_step": 8192,
        "peak_allocated_bytes": int(gib * GIB), "peak_reserved_bytes": int(gib * GIB * 1.1), "feed_forward_runs": runs,
    }  # fmt: skip


def batch(size: int, tokens_per_s: float, mode: str = "off", **changes: Any) -> dict[str, Any]:
    tokens = 1024 * size
    return {
        "kind": "batch", "micro_batch": size, "compile": mode, "context_length": 1024, "status": "measured",
        "reason": None, "step_ms": [1e3 * tokens / tokens_per_s], "tokens_per_step": tokens, **changes,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "committed_experiments", lambda: tmp_path)
    return tmp_path


def record(folder: Path, name: str, rows: list[dict[str, Any]], device: str = "nvidia-h200") -> None:
    write_experiment(folder, Experiment(
        name=name, session="0f1e2d3c4b5a", device=device, profile="smoke" if device == "cpu" else "full",
        machine=MACHINE_CPU if device == "cpu" else MACHINE_H200, rows=rows, source_hash="0" * 64,
        utc="2026-11-29T12:00:00+00:00",
    ))  # fmt: skip


def judge(key: str):
    return BY_KEY[key].judge([])


OURS = ("checkpointing_costs_30_percent", "per_layer_is_slow", "non_reentrant_needs_more", "batch_power_of_two")


@pytest.mark.parametrize("key", OURS)
def test_nothing_is_decided_without_a_record_with_a_toy_or_with_a_row_missing(folder: Path, key: str) -> None:
    assert judge(key).verdict == "not_decided" and "experiment" in judge(key).needs
    rows = [variant("off", 30, 4), variant("every_block", 39, 2), batch(31, 1e5), batch(32, 1e5)]
    for name in ("checkpointing", "batch_probe"):
        record(folder, name, rows, device="cpu")
    assert judge(key).verdict == "not_decided"
    for name in ("checkpointing", "batch_probe"):
        record(folder, name, rows[:1])
    assert judge(key).verdict == "not_decided" and "Measured" not in judge(key).evidence


@pytest.mark.parametrize(
    ("eager", "compiled", "verdict"), [(39, 26, "confirmed"), (36, 22, "refuted"), (39, 22, "depends")]
)
def test_the_cost_of_checkpointing_follows_the_times(folder: Path, eager: float, compiled: float, verdict: str) -> None:
    record(folder, "checkpointing", [
        variant("off", 30, 4), variant("every_block", eager, 2), variant("off", 20, 4, "default"),
        variant("every_block", compiled, 2, "default"), variant("off", 50, 4, context=4096),
    ])  # fmt: skip
    found = judge("checkpointing_costs_30_percent")
    assert found.verdict == verdict
    assert f"{eager / 30 - 1:.0%}".rstrip("%") in found.evidence and "H200" in found.evidence


@pytest.mark.parametrize(("larger", "verdict"), [(39.0, "refuted"), (36.0, "confirmed"), (41.0, "refuted")])
def test_slow_single_layers_follow_the_times_of_groups(folder: Path, larger: float, verdict: str) -> None:
    groups = [variant(f"groups_of_{size}", larger, 2 + size / 10) for size in (2, 3, 4, 6, 12)]
    record(folder, "checkpointing", [variant("every_block", 39, 2), *groups])
    assert judge("per_layer_is_slow").verdict == verdict
    assert "3.12" in judge("fewer_checkpoints_save_more").evidence or "3.20" in (
        judge("fewer_checkpoints_save_more").evidence
    ), "the peak of one group of 12 stands behind the formula"
    assert judge("fewer_checkpoints_save_more").verdict == "refuted"


@pytest.mark.parametrize(("gib", "verdict"), [(2.0, "refuted"), (2.5, "confirmed"), (1.5, "refuted")])
def test_the_non_reentrant_form_follows_the_peaks(folder: Path, gib: float, verdict: str) -> None:
    record(folder, "checkpointing", [variant("reentrant", 39, 2), variant("every_block", 39, gib)])
    assert judge("non_reentrant_needs_more").verdict == verdict


@pytest.mark.parametrize(
    ("odd", "compiled", "verdict"), [(1.0e5, 1.0e5, "refuted"), (0.9e5, 0.9e5, "confirmed"), (1.0e5, 0.9e5, "depends")]
)
def test_powers_of_two_follow_their_neighbours(folder: Path, odd: float, compiled: float, verdict: str) -> None:
    rows = [batch(size, 1e5) for size in (8, 16, 32)] + [batch(size, odd) for size in (7, 15, 17, 31, 33)]
    record(folder, "batch_probe", [*rows, batch(31, compiled, "default"), batch(32, 1e5, "default")])
    found = judge("batch_power_of_two")
    assert found.verdict == verdict and "32 over 33" in found.evidence and "By formula" in found.evidence


def test_measured_sentences_stand_behind_formulas_and_only_then(folder: Path) -> None:
    assert "Measured" not in judge("skip_layer_norm").evidence + judge("context_or_batch").evidence
    record(folder, "checkpointing", [variant("off", 30, 4), variant("selective", 32, 3), variant("every_block", 39, 2)])
    grid = [batch(size, 4e5 / (16 / size), context_length=16384 // size, kind="grid") for size in (64, 16, 4)]
    record(folder, "batch_probe", grid)
    assert "32.0 ms" in judge("skip_layer_norm").evidence and judge("skip_layer_norm").verdict == "refuted"
    assert "4 x 4,096 100 k" in judge("context_or_batch").evidence


def test_the_device_with_most_measured_rows_speaks(folder: Path) -> None:
    record(folder, "checkpointing", [variant("off", 30, 4)], device="nvidia-h100")
    record(folder, "checkpointing", [variant("off", 30, 4), variant("every_block", 39, 2)])
    assert module.recorded("checkpointing").device == "nvidia-h200"
    assert module.recorded("batch_probe") is None
