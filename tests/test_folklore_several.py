"""Verdicts on several GPUs follow timelines, stopwatches and series; and what new labs add to older verdicts."""

from dataclasses import replace
from typing import Any

import pytest
from records_helper import MACHINE_H200, make_record
from test_folklore_labs import BY_KEY, experiment
from test_several_gpus_words import COMMUNICATION, SERIES, series_record, trial

from speedlab.folklore.claim import Verdict

PUBLISHED, PLAIN, _, _, TOTAL = SERIES


def judged(key: str, name: str, rows: list[dict[str, Any]], gpus: int = 2) -> Verdict:
    machine = MACHINE_H200 | {"gpus": gpus}
    made = experiment(name, *rows, device=f"nvidia-h200-x{gpus}", machine=machine)
    return BY_KEY[key].judge([], [made])


def timeline(key: str, exposed_ms: float) -> dict[str, Any]:
    times = {"span_ms": 70.0, "communication_ms": 4.0, "exposed_ms": exposed_ms, "first_exchange_ms": 40.0}
    return {"key": key, "communication": {"timeline": times}}


@pytest.mark.parametrize(
    ("cut", "uncut", "found"),
    [(0.4, 0.4, "refuted"), (0.4, 3.6, "depends"), (4.0, 4.0, "confirmed"), (0.4, None, "refuted")],
)
def test_the_exchange_is_judged_by_what_of_it_is_hidden(cut: float, uncut: float | None, found: str) -> None:
    rows = [timeline("tuned", cut)] + ([] if uncut is None else [timeline("whole_graph", uncut)])
    answer = judged("ddp_reduces_after_backward", "data_parallel_sweep", rows)
    assert answer.verdict == found and answer.evidence.startswith("Measured in one session on 2 x H200 SXM")
    assert "begins 40.0 ms after the update in a step of 70.0 ms" in answer.evidence


def test_a_sweep_without_timelines_decides_nothing() -> None:
    assert judged("ddp_reduces_after_backward", "data_parallel_sweep", [{"key": "tuned"}]).verdict == "not_decided"


@pytest.mark.parametrize(
    ("evaluation_ms", "several_ms", "found"),
    [(300.0, 61.0, "refuted"), (1.0, 90.0, "confirmed"), (30.0, 64.0, "depends")],
)
def test_on_four_gpus_what_is_lost_is_divided(evaluation_ms: float, several_ms: float, found: str) -> None:
    rows = trial(60.0, evaluation_ms, several_ms, 4)
    answer = judged("four_cards_communication", "data_parallel_stopwatch", rows, 4)
    assert answer.verdict == found, answer.evidence
    assert answer.needs and "cards that the figure was published for" in answer.needs


def test_two_gpus_say_how_it_goes_there_and_decide_nothing_of_four() -> None:
    rows = trial(60.0, 300.0, 66.0, 2)
    answer = judged("four_cards_communication", "data_parallel_stopwatch", rows)
    # 1.82x alone and 1.43x with evaluations: 0.57 lost, 0.39 of them to the stopwatch; 4 * 90 / 120 by formula.
    assert answer.verdict == "not_decided" and "shows 1.43x where training alone scales 1.82x" in answer.evidence
    assert "of 0.57 GPUs that seem lost the stopwatch takes 0.39" in answer.evidence
    assert "would show 3.00x" in answer.evidence and "Published, A100: 2.95x on 4 cards." in answer.evidence


@pytest.mark.parametrize(
    ("fixed_ms", "total_ms", "found"),
    [(61.0, 31.0, "confirmed"), (70.0, 35.0, "refuted"), (61.0, 35.0, "depends"), (70.0, 31.0, "depends")],
)
def test_scaling_is_judged_over_all_series_of_a_session(fixed_ms: float, total_ms: float, found: str) -> None:
    records = [series_record(series, 1, 60.0) for series in (PLAIN, TOTAL)]
    records += [series_record(PLAIN, 2, fixed_ms), series_record(TOTAL, 2, total_ms)]
    answer = BY_KEY["nvlink_over_90_percent"].judge(records)
    assert answer.verdict == found and "all-reduce alone at 250 GB/s" in answer.evidence
    assert f"{100 * 60 / fixed_ms:.1f} % on 2 ({PLAIN.title})" in answer.evidence
    if (fixed_ms, found) == (61.0, "depends"):
        assert answer.on_what == "the work: each GPU with a batch of its own, or one batch divided among them"


def test_a_link_that_may_be_pcie_says_nothing_of_nvlink() -> None:
    slow = COMMUNICATION | {"link": [{"bytes": 2**26, "ms": 3.0, "bus_bytes_per_s": 2.4e10}]}
    for communication in (None, slow):
        pair = [series_record(PLAIN, 1, 60.0), series_record(PLAIN, 2, 61.0, communication=communication)]
        answer = BY_KEY["nvlink_over_90_percent"].judge(pair)
        assert answer.verdict == "not_decided" and "does not show a faster link than PCIe" in answer.needs
    assert BY_KEY["nvlink_over_90_percent"].judge([]).verdict == "not_decided"


def test_a_warm_cache_and_other_shapes_stand_behind_the_price_of_compiling() -> None:
    pair = [
        make_record("merged_qkv", step_ms=200.0),
        replace(make_record("torch_compile", step_ms=100.0), compile_s=20.0),
    ]
    warm = {"what": "warm", "compile_cache": "warm", "first_step_s": 3.0, "step_ms": [20.0] * 5}
    shapes = {"what": "recompile", "dynamic": "False", "batches": [8, 4], "graphs": [1, 2]}
    before = BY_KEY["compile_free_lunch"].judge(pair, [])
    partly = BY_KEY["compile_free_lunch"].judge(pair, [experiment("compile_modes", warm)])
    both = BY_KEY["compile_free_lunch"].judge(pair, [experiment("compile_modes", warm, shapes)])
    assert before.verdict == partly.verdict == both.verdict == "depends"
    assert before.needs and partly.needs and both.needs is None
    assert "takes 3.00 s, 150 times a later one" in partly.evidence
    assert "for batches of 8, 4: 2 with dynamic=False" in both.evidence
    assert BY_KEY["compile_free_lunch"].judge([], [experiment("compile_modes", warm, shapes)]).needs, "undecided"


def test_updates_that_are_lost_are_counted_in_a_training() -> None:
    rows = [
        {"part": "numbers", "what": "updates", "of": "all", "format": "bfloat16", "step": 101, "share_lost": 0.862},
        {"what": "losses", "precision": "float32", "losses": [9.0] * 80 + [3.0] * 20},
        {"what": "losses", "precision": "bfloat16_master", "losses": [9.0] * 80 + [3.5] * 20},
    ]
    answer = BY_KEY["bfloat16_needs_no_care"].judge([], [experiment("precision_formats", *rows)])
    assert "86.2 % of all weights would not move" in answer.evidence
    assert "float32 3.000, bfloat16 with float32 masters 3.500" in answer.evidence


def test_batches_are_compared_at_the_lowest_loss_that_both_reach() -> None:
    def curve(rung: str, batch: int, losses: list[float]) -> dict[str, Any]:
        seconds = [float(index) for index in range(len(losses))]
        return {
            "rung": rung, "rate_factor": 1.0, "learning_rate": 5e-4, "micro_batch": batch, "validation_loss": losses,
            "seconds": seconds, "tokens": [second * 1e6 for second in seconds],
        }  # fmt: skip

    small, large = curve("padded_vocab", 8, [6.0, 5.0, 4.0, 3.0]), curve("batch_size", 32, [6.0, 5.5, 5.0, 4.5])
    pair = [make_record("padded_vocab"), make_record("batch_size")]
    answer = BY_KEY["steps_cost_no_correctness"].judge(pair, [experiment("loss_against_time", small, large)])
    assert "a validation loss of 4.5 takes 1.50 s and 1.50 million tokens with 8 sequences" in answer.evidence
    assert "3.00 s and 3.00 million tokens with 32 sequences" in answer.evidence and answer.needs is None
