"""Verdicts from experiments of the labs follow their rows; toys, CPUs and other rows decide nothing."""

from __future__ import annotations

from typing import Any

import pytest
from records_helper import MACHINE_CPU, MACHINE_H200

from speedlab.folklore.claim import Verdict
from speedlab.folklore.claims import CLAIMS
from speedlab.publishing.folklore_page import folklore_section
from speedlab.records.experiment import Experiment

BY_KEY = {claim.key: claim for claim in CLAIMS}
OVER_LABS = [claim for claim in CLAIMS if claim.evidence_kind == "experiments"]


def experiment(name: str, *rows: dict[str, Any], **changes: Any) -> Experiment:
    measured = [{"status": "measured", "reason": None, **row} for row in rows]
    values = {
        "name": name, "session": "0f1e2d3c4b5a", "device": "nvidia-h200", "profile": "full", "rows": measured,
        "machine": MACHINE_H200, "source_hash": "a" * 64, "utc": "2026-11-29T12:00:00Z",
    }  # fmt: skip
    return Experiment(**values | changes)


def verdict(key: str, name: str, *rows: dict[str, Any]) -> Verdict:
    return BY_KEY[key].judge([], [experiment("another", {"what": "x"}), experiment(name, *rows)])


def judge(key: str, name: str, *rows: dict[str, Any]) -> str:
    return verdict(key, name, *rows).verdict


@pytest.mark.parametrize("claim", OVER_LABS, ids=lambda claim: claim.key)
def test_without_its_rows_a_claim_is_undecided_and_says_what_would_decide_it(claim: Any) -> None:
    names = ("attention_sweep", "batch_probe", "checkpointing", "data_pipeline", "folklore_host", "folklore_micro",
             "folklore_training", "loss_against_time", "compile_modes", "precision_formats", "data_parallel_sweep",
             "data_parallel_stopwatch")  # fmt: skip
    nothing = [experiment(name, {"what": "x", "kind": "x", "seconds": [0.0]}) for name in names]
    assert claim.judge([], nothing) == claim.judge([], [])
    without = claim.judge([], [])
    assert without.needs and (
        without.verdict == "not_decided" or without.evidence.startswith(("By formula", "By arithmetic"))
    )
    assert claim.experiment_words.endswith((".", "?"))


def test_a_toy_or_a_cpu_decides_nothing_and_the_largest_run_does() -> None:
    row = {"what": "autocast", "operation": "softmax", "answers_in": "float32"}
    toy = experiment("folklore_micro", row, profile="smoke")
    cpu = experiment("folklore_micro", row, profile="smoke", device="cpu", machine=MACHINE_CPU)
    claim = BY_KEY["autocast_all_in_16_bits"]
    assert claim.judge([], [toy, cpu]).verdict == "not_decided"
    more = experiment("folklore_micro", row | {"answers_in": "bfloat16"}, row | {"operation": "linear"})
    found = claim.judge([], [experiment("folklore_micro", row), more])
    assert found.verdict == "refuted" and "in float32: linear; in 16 bits: softmax" in found.evidence
    assert found.evidence.startswith("Measured in one session on H200 SXM (experiment folklore_micro):")


def test_rows_that_failed_are_no_evidence() -> None:
    failed = {"what": "utilization", "work": "one number", "status": "unavailable", "reason": "not told"}
    assert judge("gpu_util_is_share_of_card", "folklore_micro", failed) == "not_decided"


@pytest.mark.parametrize(
    ("full", "found"), [((2.0, 2.0), "confirmed"), ((1.0, 1.1), "refuted"), ((1.3, 1.9), "depends")]
)
def test_causal_calls_are_compared_with_full_ones(full: tuple[float, ...], found: str) -> None:
    rows = []
    for context, times in zip((1024, 16_384), full, strict=True):
        for causal, ms in ((True, 1.0), (False, times)):
            both_ms = [ms, ms, 9.0]
            rows.append(
                {"what": "causal", "kind": "sdpa_flash", "context": context, "causal": causal, "both_ms": both_ms}
            )
    assert judge("is_causal_halves_work", "attention_sweep", *rows) == found


@pytest.mark.parametrize(("error", "found"), [(4e-3, "refuted"), (1e-6, "confirmed")])
def test_the_difference_is_that_of_the_16_bit_kernel(error: float, found: str) -> None:
    flash = {"what": "accuracy", "kind": "sdpa_flash", "dtype": "bfloat16", "output_error": error}
    plain = {"what": "accuracy", "kind": "plain", "dtype": "float32", "output_error": 2e-7}
    answer = verdict("flash_differs_1e_6", "attention_sweep", flash, plain)
    assert answer.verdict == found and "plain attention in float32 by 2.0e-07" in answer.evidence


def repeated(setting: str, gradients: bool) -> dict[str, Any]:
    return {"what": "deterministic", "kind": "sdpa_flash", "setting": setting, "output_repeats": True,
            "gradients_repeat": gradients, "both_ms": [2.0 if setting == "deterministic" else 1.0]}  # fmt: skip


@pytest.mark.parametrize(("off", "on", "found"), [(False, False, "refuted"), (True, True, "refuted"), (True, False, "confirmed")])  # fmt: skip  # noqa: E501
def test_tf32_makes_consistent_only_what_repeats_without_it_alone(off: bool, on: bool, found: str) -> None:
    rows = repeated("as it is", off), repeated("TF32 allowed", on), repeated("deterministic", True)
    answer = verdict("allow_tf32_consistent", "attention_sweep", *rows)
    assert answer.verdict == found and "a call takes 2.00 times as long" in answer.evidence


@pytest.mark.parametrize(("plain", "found"), [(30.0, "confirmed"), (14.0, "refuted")])
def test_a_layer_of_7b_is_timed_both_ways(plain: float, found: str) -> None:
    rows = [{"what": "layer_7b", "kind": kind, "context": 4096, "both_ms": [ms]} for kind, ms in
            (("plain", plain), ("sdpa", 10.0))]  # fmt: skip
    assert judge("flash_3x_7b", "attention_sweep", *rows) == found


@pytest.mark.parametrize(("gaps", "found"), [((0.05, 0.04, 0.06), "confirmed"), ((0.01, -0.01, 0.0), "refuted"), ((0.05, 0.04), "not_decided")])  # fmt: skip  # noqa: E501
def test_regularising_takes_a_lower_loss_at_every_seed(gaps: tuple[float, ...], found: str) -> None:
    rows = []
    for seed, gap in enumerate(gaps):
        for kind, loss in (("plain", 6.0 + gap), ("sdpa_flash", 6.0)):
            rows.append({"what": "attention", "kind": kind, "seed": seed, "steps": 300, "validation_loss": loss})
    assert judge("flash_regularises", "folklore_training", *rows) == found


def sweep(**step_ms: float) -> list[dict[str, Any]]:
    times = {batch: float(batch) for batch in (24, 28, 31, 32, 33, 48)} | {int(k[1:]): v for k, v in step_ms.items()}
    return [
        {"kind": "batch", "compile": "off", "micro_batch": batch, "context_length": 1024, "step_ms": [ms] * 3}
        for batch, ms in times.items()
    ]


def test_a_batch_must_be_a_power_of_two_only_if_all_others_are_slower() -> None:
    assert judge("batch_power_of_two", "batch_probe", *sweep()) == "refuted"
    assert judge("batch_power_of_two", "batch_probe", *sweep(b33=40.0)) == "depends"
    slow = {f"b{batch}": 1.3 * batch for batch in (24, 28, 31, 33, 48)}
    assert judge("batch_power_of_two", "batch_probe", *sweep(**slow)) == "confirmed"


@pytest.mark.parametrize(
    ("gap", "chance", "found"),
    [(0.1, 1e-9, "confirmed"), (0.001, 1e-9, "refuted"), (0.001, 1e-5, "depends"), (-0.1, 1e-5, "depends")],
)
def test_padded_logits_are_judged_by_the_loss_and_by_their_chance(gap: float, chance: float, found: str) -> None:
    rows = [
        {"what": "padding", "padded": padded, "true_losses": [10.8, 9.0 + extra], "padded_ids": 47,
         "padded_probability": {"1": 9e-4, "2": last}}
        for padded, extra, last in (("counted", gap, chance), ("left out", 0.0, 2e-3))
    ]  # fmt: skip
    answer = verdict("padded_logits_need_masks", "folklore_training", *rows)
    assert answer.verdict == found and "from 9.0e-04 to" in answer.evidence and "it is 2.0e-03" in answer.evidence


def way(name: str, ms: float, compile: str = "off", context: int = 1024, peak: int = 2**30) -> dict[str, Any]:
    return {"kind": "variant", "way": name, "compile": compile, "context_length": context, "step_ms": [ms],
            "peak_allocated_bytes": peak}  # fmt: skip


@pytest.mark.parametrize(("eager", "compiled", "found"), [(130.0, 66.0, "confirmed"), (120.0, 55.0, "refuted"), (130.0, 55.0, "depends")])  # fmt: skip  # noqa: E501
def test_the_cost_of_checkpoints_is_asked_with_and_without_a_compiler(
    eager: float, compiled: float, found: str
) -> None:
    rows = [way("off", 100.0), way("every_block", eager), way("off", 50.0, "default"),
            way("every_block", compiled, "default"), way("every_block", 900.0, context=4096)]  # fmt: skip
    assert judge("checkpointing_costs_30_percent", "checkpointing", *rows) == found


def test_larger_groups_and_the_older_form_are_compared_with_every_block() -> None:
    rows = [way("every_block", 130.0), way("groups_of_2", 131.0), way("groups_of_12", 129.0)]
    assert judge("per_layer_is_slow", "checkpointing", *rows) == "refuted"
    assert judge("per_layer_is_slow", "checkpointing", *rows[:2], way("groups_of_12", 100.0)) == "confirmed"
    for old, found in ((2**30, "refuted"), (2**29, "confirmed")):
        assert judge("non_reentrant_needs_more", "checkpointing", rows[0], way("reentrant", 130.0, peak=old)) == found


@pytest.mark.parametrize(
    ("peaks", "times", "found"),
    [
        ((8, 6, 4), (100.0, 110.0, 120.0), "confirmed"),
        ((8, 9, 12), (100.0, 100.0, 101.0), "refuted"),
        ((8, 6, 4), (100.0, 100.0, 100.0), "depends"),
    ],
)
def test_fewer_checkpoints_are_judged_by_memory_and_time(peaks: tuple, times: tuple, found: str) -> None:
    ways = ("every_block", "groups_of_3", "groups_of_12")
    rows = [way(name, ms, peak=peak * 2**30) for name, ms, peak in zip(ways, times, peaks, strict=True)]
    assert judge("fewer_checkpoints_save_more", "checkpointing", *rows) == found
    assert "By formula" not in verdict("fewer_checkpoints_save_more", "checkpointing", *rows).evidence


def test_what_is_cheap_to_recompute_is_shown_beside_the_count() -> None:
    rows = way("off", 100.0, peak=8 * 2**30), way("selective", 104.0, peak=5 * 2**30), way("every_block", 130.0)
    answer = verdict("skip_layer_norm", "checkpointing", *rows)
    assert answer.verdict == "refuted" and "By formula" in answer.evidence
    assert "5.00 GiB and 104 ms (all but matmuls and attention)" in answer.evidence


@pytest.mark.parametrize(("long_ms", "found"), [(130.0, "refuted"), (101.0, "confirmed")])
def test_long_and_many_sequences_are_compared_at_equal_tokens(long_ms: float, found: str) -> None:
    rows = [
        {"kind": "grid", "compile": "off", "micro_batch": batch, "context_length": context, "step_ms": [ms]}
        for batch, context, ms in ((64, 256, 100.0), (4, 4096, long_ms))
    ]
    answer = verdict("context_or_batch", "batch_probe", *rows)
    assert answer.verdict == found and "64 x 256: 163,840" in answer.evidence


@pytest.mark.parametrize(("small", "large", "found"), [(9.0, 9.0, "confirmed"), (11.0, 10.0, "refuted"), (11.0, 8.0, "depends")])  # fmt: skip  # noqa: E501
def test_the_loss_in_chunks_is_timed_against_all_logits_at_once(small: float, large: float, found: str) -> None:
    rows = []
    for batch, chunks in ((8, small), (32, large)):
        for kind, ms in (("apart", 10.0), ("in chunks", chunks)):
            peak = 2**31 if kind == "apart" else 2**29
            rows.append({"what": "loss", "kind": kind, "batch": batch, "both_ms": [ms], "peak_allocated_bytes": peak})
    answer = verdict("fused_cross_entropy_faster", "folklore_micro", *rows)
    assert answer.verdict == found and "peak 2.00 and 0.50 GiB" in answer.evidence


def curve(rung: str, rate: float, losses: list[float], tokens: int) -> dict[str, Any]:
    return {"rung": rung, "learning_rate": rate, "seconds": [0.0, 1.0, 2.0], "tokens": [0, tokens, 2 * tokens],
            "validation_loss": losses}  # fmt: skip


@pytest.mark.parametrize(
    ("small", "large", "found"),
    [
        ([10.8, 7.0, 6.0], [10.8, 9.0, 7.5], "refuted"),
        ([10.8, 9.0, 7.5], [10.8, 7.0, 6.0], "confirmed"),
        ([10.8, 6.6, 6.4], [10.8, 8.0, 5.4], "depends"),
    ],
)
def test_speed_is_held_against_the_seconds_to_a_loss(small: list[float], large: list[float], found: str) -> None:
    rows = curve("padded_vocab", 5e-4, small, 400_000), curve("batch_size", 5e-4, large, 480_000)
    answer = verdict("tokens_per_s_matter", "loss_against_time", *rows)
    assert answer.verdict == found and "480,000" in answer.evidence


def feed(source: str, workers: int, ms: float) -> dict[str, Any]:
    return {"source": source, "carried": "pinned_non_blocking", "workers": workers, "step_ms": [ms]}


@pytest.mark.parametrize(("mapped", "parsed", "found"), [(70.0, 80.0, "refuted"), (70.0, 200.0, "refuted"), (90.0, 200.0, "depends")])  # fmt: skip  # noqa: E501
def test_workers_are_judged_by_what_a_sample_costs(mapped: float, parsed: float, found: str) -> None:
    rows = [feed("memory_mapped", 0, mapped), feed("memory_mapped", 4, 70.0), feed("tokenised_online", 0, parsed),
            feed("tokenised_online", 4, 79.0)]  # fmt: skip
    answer = verdict("worker_rules", "data_pipeline", *rows)
    assert answer.verdict == found
    assert ("None is needed" in answer.evidence) == (parsed == 80.0)


@pytest.mark.parametrize(("grown", "found"), [(80 * 2**20, "refuted"), (1_000, "confirmed")])
def test_a_list_that_grows_although_workers_are_kept_refutes_the_cure(grown: int, found: str) -> None:
    rows = [
        {"what": "worker", "held": held, "persistent": persistent, "samples": 1_000_000, "first_bytes": [10 * 2**20],
         "last_bytes": [10 * 2**20 + (grown if held == "a list" else 0)]}
        for held in ("a list", "an array") for persistent in (True, False)
    ]  # fmt: skip
    assert judge("persistent_workers_cure_leaks", "folklore_host", *rows) == found


@pytest.mark.parametrize(("percent", "found"), [(99, "refuted"), (12, "refuted"), (1, "confirmed")])
def test_the_counter_is_read_while_one_number_is_added_to(percent: int, found: str) -> None:
    row = {"what": "utilization", "work": "one number", "busy_percent": percent}
    answer = verdict("gpu_util_is_share_of_card", "folklore_micro", row)
    assert answer.verdict == found and "in one of 132 multiprocessors, which is 0.8 % of the card" in answer.evidence


@pytest.mark.parametrize(("launches", "found"), [(60, "refuted"), (1_500, "confirmed")])
def test_the_default_optimizer_is_judged_by_its_launches(launches: int, found: str) -> None:
    rows = [
        {"what": "launches", "implementation": name, "tensors": 160, "launches": count}
        for name, count in (("for_loop", 2_000), ("default", launches), ("foreach", 60), ("fused", 9))
    ]
    answer = verdict("adamw_default_loops", "folklore_micro", *rows)
    assert answer.verdict == found and "for_loop 2,000" in answer.evidence


@pytest.mark.parametrize(("large_ms", "found"), [(1.5, "confirmed"), (3.0, "refuted")])
def test_a_fused_update_is_compared_at_two_sizes(large_ms: float, found: str) -> None:
    rows = [
        {"what": "optimizer", "size": size, "weights": weights, "implementation": name, "update_ms": [ms]}
        for size, weights, name, ms in (
            ("124M", 163_000_000, "default", 2.0), ("124M", 163_000_000, "fused", 1.0),
            ("350M", 400_000_000, "default", 6.0), ("350M", 400_000_000, "fused", large_ms),
        )
    ]  # fmt: skip
    answer = verdict("fused_gains_with_size", "folklore_micro", *rows)
    assert answer.verdict == found and "2.00x at 163 M weights" in answer.evidence


@pytest.mark.parametrize(("error", "found"), [(None, "refuted"), ("Expected to have finished", "confirmed")])
def test_ddp_is_judged_by_the_error_of_cat(error: str | None, found: str) -> None:
    rows = [{"what": "ddp", "case": "torch.cat", "error": error}, {"what": "ddp", "case": "unused layer", "error": "E"}]
    answer = verdict("finished_reduction_torch_cat", "folklore_host", *rows)
    assert answer.verdict == found and 'unused layer: "E"' in answer.evidence


def test_the_page_shows_what_an_experiment_decides() -> None:
    row = {"what": "utilization", "work": "one number", "busy_percent": 100}
    page = folklore_section([], [experiment("folklore_micro", row)])
    assert "the counter says 100 % while one thread adds one to one number" in page
    assert "the counter says" not in folklore_section([])
