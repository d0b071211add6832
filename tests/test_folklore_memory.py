"""Verdicts on levers of memory and on batches follow the rows of the memory labs, and no missing field breaks them."""

from __future__ import annotations

from typing import Any

import pytest
from records_helper import MACHINE_CPU, MACHINE_H200, make_record

from speedlab.folklore.claim import Verdict
from speedlab.folklore.claims import CLAIMS
from speedlab.folklore.evidence import Lab, from_experiment
from speedlab.records.experiment import Experiment, MissingField

BY_KEY = {claim.key: claim for claim in CLAIMS}
OVER_LABS = [claim for claim in CLAIMS if claim.evidence_kind == "experiments"]
GIB = 2**30


def variant(way: str, ms: float, gib: float, mode: str = "off", context: int = 1024, runs: int = 24) -> dict[str, Any]:
    return {
        "kind": "variant", "way": way, "compile": mode, "micro_batch": 8, "context_length": context,
        "step_ms": [ms * 0.99, ms, ms * 1.02], "tokens_per_step": 8192,
        "peak_allocated_bytes": int(gib * GIB), "peak_reserved_bytes": int(gib * GIB * 1.1), "feed_forward_runs": runs,
    }  # fmt: skip


def batch(size: int, tokens_per_s: float, mode: str = "off", **changes: Any) -> dict[str, Any]:
    tokens = changes.get("context_length", 1024) * size
    return {
        "kind": "batch", "micro_batch": size, "compile": mode, "context_length": 1024,
        "step_ms": [1e3 * tokens / tokens_per_s], "tokens_per_step": tokens, **changes,
    }  # fmt: skip


def micro_steps(count: int, tokens_per_s: float) -> dict[str, Any]:
    tokens = 8192 * count
    return {"kind": "micro_steps", "accumulation": count, "compile": "off", "tokens_per_step": tokens,
            "step_ms": [1e3 * tokens / tokens_per_s]}  # fmt: skip


def experiment(name: str, rows: list[dict[str, Any]], device: str = "nvidia-h200") -> Experiment:
    return Experiment(
        name=name, session="0f1e2d3c4b5a", device=device, profile="smoke" if device == "cpu" else "full",
        machine=MACHINE_CPU if device == "cpu" else MACHINE_H200, source_hash="0" * 64,
        rows=[{"status": "measured", "reason": None, **row} for row in rows], utc="2026-11-29T12:00:00+00:00",
    )  # fmt: skip


def judge(key: str, *experiments: Experiment) -> Verdict:
    return BY_KEY[key].judge([], experiments)


OURS = ("checkpointing_costs_30_percent", "per_layer_is_slow", "non_reentrant_needs_more", "batch_power_of_two")


@pytest.mark.parametrize("key", OURS)
def test_nothing_is_decided_without_a_record_with_a_toy_or_with_a_row_missing(key: str) -> None:
    rows = [variant("off", 30, 4), variant("every_block", 39, 2), batch(31, 1e5), batch(32, 1e5)]
    names = ("checkpointing", "batch_probe")
    for experiments in ([], [experiment(name, rows, "cpu") for name in names],
                        [experiment(name, rows[:1]) for name in names]):  # fmt: skip
        found = judge(key, *experiments)
        assert found.verdict == "not_decided" and found.needs and "Measured" not in found.evidence


def test_each_setting_has_its_own_cost_of_checkpointing() -> None:
    rows = [variant("off", 30, 4), variant("every_block", 39, 2), variant("off", 20, 4, "default"),
            variant("every_block", 22, 2, "default"), variant("off", 50, 4, context=4096)]  # fmt: skip
    found = judge("checkpointing_costs_30_percent", experiment("checkpointing", rows))
    assert found.verdict == "depends" and "H200" in found.evidence and "4,096" not in found.evidence
    assert "30.0 % without a compiler at context 1,024, 10.0 % compiled at context 1,024" in found.evidence
    rows = [*rows[:2], rows[-1], variant("every_block", 60, 2, context=4096)]
    found = judge("checkpointing_costs_30_percent", experiment("checkpointing", rows))
    assert found.verdict == "depends" and "20.0 % without a compiler at context 4,096" in found.evidence


@pytest.mark.parametrize(("larger", "verdict"), [(39.0, "refuted"), (36.0, "confirmed"), (41.0, "refuted")])
def test_slow_single_layers_follow_the_times_of_groups(larger: float, verdict: str) -> None:
    groups = [variant(f"groups_of_{size}", larger, 2 + size / 10) for size in (12, 2, 3, 4, 6)]
    recorded = experiment("checkpointing", [variant("every_block", 39, 2), *groups])
    found = judge("per_layer_is_slow", recorded)
    assert found.verdict == verdict and "Each runs 24 feed-forward parts" in found.evidence
    fewer = judge("fewer_checkpoints_save_more", recorded)
    assert "2.00 GiB and 39.0 ms at 1, 2.20" in fewer.evidence and "at 6, 3.20 GiB" in fewer.evidence
    assert fewer.verdict == ("depends" if larger == 41.0 else "refuted"), "memory rises; time may as well"


@pytest.mark.parametrize(("gib", "verdict"), [(2.0, "refuted"), (2.5, "confirmed"), (1.5, "refuted")])
def test_the_non_reentrant_form_follows_the_peaks(gib: float, verdict: str) -> None:
    recorded = experiment("checkpointing", [variant("reentrant", 39, 2), variant("every_block", 38, gib)])
    found = judge("non_reentrant_needs_more", recorded)
    assert found.verdict == verdict and "38.0 and 39.0 ms per step" in found.evidence


@pytest.mark.parametrize(
    ("below", "above", "compiled", "verdict"),
    [
        (1.0e5, 1.0e5, 1.0e5, "refuted"),
        (0.9e5, 1.0e5, 1.0e5, "refuted"),  # one sequence more made the power faster, as it would any number
        (0.9e5, 0.9e5, 0.9e5, "confirmed"),
        (1.0e5, 0.9e5, 1.0e5, "depends"),
        (1.0e5, 1.0e5, 0.9e5, "depends"),
    ],
)
def test_powers_of_two_follow_their_neighbours(below: float, above: float, compiled: float, verdict: str) -> None:
    rows = [batch(size, 1e5) for size in (8, 16, 32)]
    rows += [batch(size, below) for size in (7, 15, 31)] + [batch(size, above) for size in (17, 33)]
    rows += [batch(31, compiled, "default"), batch(32, 1e5, "default")]
    found = judge("batch_power_of_two", experiment("batch_probe", rows))
    assert found.verdict == verdict and "32 over 33" in found.evidence and "By formula" in found.evidence


def test_accumulation_is_shown_beside_the_bound_and_only_where_it_was_measured() -> None:
    claim = BY_KEY["memory_levers_2_to_3x"]
    kernels = [{"name": "gemm", "kind": "matmul, Tensor Cores", "calls": 1.0, "time_us": 20_000.0}]
    records = [make_record("padded_vocab", step_ms=25.0, kernels=kernels)]
    recorded = experiment("accumulation", [micro_steps(1, 1.0e5), micro_steps(16, 1.25e5)])
    bare = claim.judge(records)
    assert bare.verdict == "refuted" and "16 micro-batches" not in bare.evidence
    both = claim.judge(records, [recorded])
    assert both.evidence == f"{bare.evidence} {both.evidence[len(bare.evidence) + 1 :]}"
    assert "1.25x the tokens/s" in both.evidence and both.verdict == bare.verdict
    assert claim.judge(records, [experiment("accumulation", [micro_steps(1, 1.0e5)])]) == bare


def test_levers_alone_and_ways_to_carry_a_batch_are_sentences_behind_the_verdict() -> None:
    claim = BY_KEY["memory_levers_2_to_3x"]
    said = claim.judge([], [experiment("accumulation", FULL["accumulation"]), experiment("together", FULL["together"])])
    assert "16 micro-batches" in said.evidence
    assert said.evidence.endswith("checkpointing alone makes 0.91x, pipeline alone makes 1.01x the tokens/s.")
    pair = [make_record("fused_adamw", step_ms=100.0), make_record("pinned_memory", step_ms=98.0)]
    for key in ("pinned_is_mandatory", "pinned_is_invisible"):
        bare = BY_KEY[key].judge(pair, [])
        more = BY_KEY[key].judge(pair, [experiment("data_pipeline", FULL["data_pipeline"])])
        assert more.verdict == bare.verdict and more.evidence.startswith(bare.evidence)
        assert more.evidence.endswith("ms of a shorter step: 71.0 pageable, 70.0 pinned non blocking.")
        assert BY_KEY[key].judge(pair, [experiment("data_pipeline", FULL["data_pipeline"][:1])]) == bare


# A measured row of each kind that some claim reads.
FULL: dict[str, list[dict[str, Any]]] = {
    "checkpointing": [
        variant(way, 30 + place, 4 - place / 10) for place, way in
        enumerate(("off", "every_block", "selective", "groups_of_2", "groups_of_3", "groups_of_12", "reentrant"))
    ],
    "batch_probe": [
        *(batch(size, 1e5) for size in (7, 8, 15, 16, 17, 31, 32, 33)),
        *(batch(size, 1e5, kind="grid", context_length=16384 // size) for size in (64, 16, 4)),
    ],
    "accumulation": [micro_steps(1, 1e5), micro_steps(16, 1e5)],
    "loss_against_time": [
        {"rung": rung, "rate_factor": 1.0, "learning_rate": 5e-4, "micro_batch": 8, "seconds": [0.0, 1.0, 2.0],
         "tokens": [0, 400_000, 800_000],
         "validation_loss": losses}
        for rung, losses in (("padded_vocab", [10.8, 7.0, 6.0]), ("batch_size", [10.8, 9.0, 6.5]))
    ],
    "data_pipeline": [
        {"source": "memory_mapped", "carried": "pageable", "workers": 0, "step_ms": [71.0]},
        *({"source": source, "carried": "pinned_non_blocking", "workers": workers, "step_ms": [70.0]}
          for source in ("memory_mapped", "tokenised_online") for workers in (0, 4)),
    ],
    "together": [
        {"what": "whole", "variant": variant, "step_ms": [ms]}
        for variant, ms in (("baseline", 90.0), ("checkpointing", 99.0), ("pipeline", 89.0))
    ],
    "folklore_host": [
        *({"what": "worker", "held": held, "persistent": kept, "samples": 1000, "first_bytes": [1], "last_bytes": [9]}
          for held in ("a list", "an array") for kept in (True, False)),
        *({"what": "ddp", "case": case, "error": "words"} for case in ("torch.cat", "unused layer")),
    ],
    "folklore_micro": [
        {"what": "autocast", "operation": "softmax", "answers_in": "float32"},
        *({"what": "utilization", "work": work, "busy_percent": 99} for work in ("one number", "baseline")),
        *({"what": "launches", "implementation": name, "tensors": 160, "launches": 9}
          for name in ("for_loop", "default", "foreach")),
        *({"what": "optimizer", "size": size, "weights": weights, "implementation": name, "update_ms": [1.0]}
          for size, weights in (("124M", 1), ("350M", 2)) for name in ("default", "fused")),
        *({"what": "loss", "kind": kind, "batch": 8, "both_ms": [9.0], "peak_allocated_bytes": GIB}
          for kind in ("apart", "in chunks")),
    ],
    "folklore_training": [
        *({"what": "attention", "kind": kind, "seed": seed, "steps": 300, "validation_loss": 6.0}
          for kind in ("plain", "sdpa_flash") for seed in range(3)),
        *({"what": "padding", "padded": padded, "true_losses": [9.0], "padded_ids": 47,
           "padded_probability": {"1": 9e-4}} for padded in ("counted", "left out", "counted, rows drawn")),
    ],
    "compile_modes": [
        {"what": "warm", "compile_cache": "warm", "first_step_s": 3.0, "step_ms": [20.0]},
        {"what": "recompile", "dynamic": "False", "batches": [8, 4], "graphs": [1, 2]},
    ],
    "precision_formats": [
        {"what": "updates", "of": "all", "format": "bfloat16", "step": 101, "share_lost": 0.8},
        {"what": "losses", "precision": "float32", "losses": [9.0, 8.0]},
    ],
    "data_parallel_sweep": [
        {"key": key, "communication": {"timeline": {
            "span_ms": 70.0, "communication_ms": 4.0, "exposed_ms": 1.0, "first_exchange_ms": 40.0}}}
        for key in ("tuned", "whole_graph")
    ],
    "data_parallel_stopwatch": [
        {"key": key, "gpus": gpus, "evaluate_every": every, "tokens_per_step": 1000 * gpus, "steps": 30,
         "window_ms": 1800.0}
        for gpus in (1, 4) for key, every in (("training_only", 0), ("evaluation_every_10", 10),
                                              ("evaluation_every_5", 5), ("persistent_workers", 5))
    ],
    "attention_sweep": [
        *({"what": "causal", "kind": "sdpa_flash", "context": 1024, "causal": causal, "both_ms": [1.0]}
          for causal in (True, False)),
        *({"what": "accuracy", "kind": kind, "dtype": "bfloat16", "output_error": 1e-3}
          for kind in ("sdpa_flash", "plain")),
        *({"what": "deterministic", "kind": "sdpa_flash", "setting": setting, "output_repeats": True,
           "gradients_repeat": True, "both_ms": [1.0]} for setting in ("as it is", "TF32 allowed", "deterministic")),
        *({"what": "layer_7b", "kind": kind, "context": 4096, "both_ms": [9.0]} for kind in ("plain", "sdpa")),
    ],
}  # fmt: skip


def test_the_rows_below_let_every_claim_over_labs_use_them() -> None:
    nothing = {
        claim.key
        for claim in OVER_LABS
        if claim.judge([], [experiment(name, rows) for name, rows in FULL.items()]) == claim.judge([], [])
    }
    assert not nothing


@pytest.mark.parametrize("name", FULL)
def test_a_field_that_an_older_program_did_not_write_is_no_crash(name: str) -> None:
    for field in sorted({field for row in FULL[name] for field in row}):
        everywhere = [{key: value for key, value in row.items() if key != field} for row in FULL[name]]
        for rows in (everywhere, [everywhere[0], *FULL[name][1:]], [*FULL[name][:-1], everywhere[-1]]):
            for claim in OVER_LABS:
                found = claim.judge([], [experiment(name, rows)])
                assert found.verdict != "not_decided" or found.needs


def test_a_missing_field_is_named_in_one_line_outside_of_verdicts() -> None:
    recorded = experiment("batch_probe", [{"kind": "batch"}])
    with pytest.raises(MissingField) as error:
        recorded.measured[0]["step_ms"]
    assert "experiment batch_probe on nvidia-h200: a row has no field step_ms" in str(error.value)
    assert "\n" not in str(error.value) and recorded.measured[0].get("step_ms") is None
    assert Experiment.from_dict(recorded.to_dict(), source="x.json") == recorded

    @from_experiment("batch_probe", needs="another run")
    def reads_it(lab: Lab) -> Verdict:
        """Read a field."""
        return Verdict(verdict="confirmed", evidence=str(lab.row(kind="batch")["step_ms"]))

    assert reads_it([], [recorded]) == Verdict(verdict="not_decided", needs="another run")
