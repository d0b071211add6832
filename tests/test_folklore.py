"""Folklore on trial: all groups are there, each experiment judges, verdicts follow the records."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from records_helper import make_record

from speedlab.errors import BadInput
from speedlab.folklore.claim import GROUPS, Claim, Verdict, pending
from speedlab.folklore.claims import CLAIMS, THEMES
from speedlab.folklore.evidence import find
from speedlab.ladder import NINE_STEPS
from speedlab.publishing.folklore_page import WORDS
from speedlab.records.record import Record
from speedlab.records.store import committed_root, read_records

BY_KEY = {claim.key: claim for claim in CLAIMS}
COMMITTED = read_records(committed_root())


def judge(key: str, *records: Record) -> str:
    return BY_KEY[key].judge(list(records)).verdict


def kernel(name: str, kind: str, calls: float = 1.0, time_us: float = 100.0) -> dict[str, Any]:
    return {"name": name, "kind": kind, "calls": calls, "time_us": time_us}


def test_every_group_is_covered_and_every_key_is_its_own() -> None:
    assert {claim.group for claim in CLAIMS} == set(GROUPS) == set(range(1, 33))
    assert [key for key, count in Counter(claim.key for claim in CLAIMS).items() if count > 1] == []
    assert [text for text, count in Counter(claim.claim for claim in CLAIMS).items() if count > 1] == []
    groups = [claim.group for claims in THEMES.values() for claim in claims]
    assert groups == sorted(groups), "the page reads in the order of the groups"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_every_experiment_judges_the_committed_records_and_none(claim: Claim) -> None:
    assert claim.judge(COMMITTED).verdict in WORDS
    without = claim.judge([])
    assert "Measured" not in without.evidence
    if claim.evidence_kind == "experiments" and without.verdict != "not_decided":
        assert without.evidence.startswith(("By formula", "By arithmetic"))
    elif claim.evidence_kind in ("records", "experiments", "nothing yet"):
        assert without.verdict == "not_decided"
        assert without.needs
    else:
        assert without.verdict != "not_decided"
        assert without == claim.judge(COMMITTED), "records have no part in it"


def test_a_toy_on_a_cpu_decides_nothing() -> None:
    toys = [make_record(rung, device="cpu", step_ms=40.0) for rung in NINE_STEPS.keys[:-1]]
    for claim in CLAIMS:
        assert claim.judge(toys) == claim.judge([]), claim.key


def test_judging_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from speedlab.publishing.folklore_page import folklore_section\n"
        "from speedlab.records.store import committed_root, read_records\n"
        "folklore_section(read_records(committed_root()))\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Verdicts follow the records: key, records that refute or undo it, records that turn it.


def test_tf32_follows_the_measured_rates() -> None:
    def with_rates(tf32: float) -> Record:
        record = make_record("tensor_cores")
        rates = record.ceilings["matmul_flops_per_s"] | {"tf32": tf32}
        return replace(record, ceilings=record.ceilings | {"matmul_flops_per_s": rates})

    assert judge("tf32_nearly_float16", with_rates(350e12)) == "refuted"
    assert judge("tf32_nearly_float16", with_rates(690e12)) == "confirmed"


@pytest.mark.parametrize(("dtype", "verdict"), [("c10::B…", "refuted"), ("float, float>", "confirmed")])
def test_mixed_precision_follows_the_optimizers_format(dtype: str, verdict: str) -> None:
    name = f"multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<{dtype}"
    assert judge("to_bfloat16_is_mixed", make_record("bfloat16", kernels=[kernel(name, "optimizer")])) == verdict
    assert judge("to_bfloat16_is_mixed", make_record("bfloat16")) == "not_decided"


def test_halved_parameters_follow_the_memory() -> None:
    def pair(after: int) -> list[Record]:
        return [
            make_record("pinned_memory", peak_allocated_bytes=2**30, peak_reserved_bytes=26 * 2**30),
            make_record("bfloat16", peak_allocated_bytes=2**30, peak_reserved_bytes=after),
        ]

    assert judge("bfloat16_halves_parameters", *pair(13 * 2**30)) == "refuted"
    assert judge("bfloat16_halves_parameters", *pair(25 * 2**30)) == "confirmed"


def test_float32_follows_the_kind_of_its_matmuls() -> None:
    assert judge("float32_partly_tensor_cores", make_record("baseline")) == "refuted"
    tensor = [kernel("sm80_xmma_gemm_tf32", "matmul, Tensor Cores")]
    assert judge("float32_partly_tensor_cores", make_record("baseline", kernels=tensor)) == "confirmed"


def test_autocast_follows_the_matmuls_and_the_optimizer() -> None:
    def under_autocast(*names: str) -> Record:
        kernels = [kernel(name, "matmul, Tensor Cores", calls=50) for name in names]
        return make_record("bfloat16_autocast", ladder="six-steps", kernels=kernels)

    half, wide = (
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT",
        "cutlass_80_tensorop_s1688gemm_128x256_32x3_nt_align1",
    )
    assert judge("autocast_gradients_float32", under_autocast(half, half, half)) == "refuted"
    assert judge("autocast_gradients_float32", under_autocast(half, wide, wide)) == "confirmed"
    fused = [kernel("multi_tensor_apply_kernel<FusedAdamMathFunctor<float, float>", "optimizer")]
    assert judge("amp_halves_gradients", make_record("fused_adamw", ladder="six-steps", kernels=fused)) == "refuted"


def test_stored_masks_are_counted() -> None:
    def pair(masks: int) -> list[Record]:
        peaks = (10 * 2**30, 10 * 2**30 - masks * 4 * 2**20)
        return [make_record(r, peak_allocated_bytes=p) for r, p in zip(("baseline", "causal_mask"), peaks, strict=True)]

    assert judge("stored_mask_is_one", *pair(12)) == "refuted"
    assert judge("stored_mask_is_one", *pair(1)) == "confirmed"


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("attention, flash", "confirmed"), ("attention, cudnn", "depends"), ("element-wise", "not_decided")],
)
def test_the_backend_is_read_from_the_kernels(kind: str, verdict: str) -> None:
    assert judge("sdpa_is_flash", make_record("flash_attention", kernels=[kernel("some", kind)])) == verdict


def test_the_largest_saver_follows_the_memory() -> None:
    def climb(**gib: float) -> list[Record]:
        sizes = {"pinned_memory": 26.0, "bfloat16": 13.0, "native_layers": 11.0, "flash_attention": 6.0} | gib
        return [
            make_record(rung, peak_allocated_bytes=1, peak_reserved_bytes=int(size * 2**30))
            for rung, size in sizes.items()
        ]

    assert judge("flash_saves_most", *climb()) == "refuted"
    assert judge("flash_saves_most", *climb(native_layers=26.0, bfloat16=26.0)) == "confirmed"


@pytest.mark.parametrize(("step_ms", "verdict"), [(60.0, "refuted"), (50.0, "depends"), (30.0, "confirmed")])
def test_the_gain_of_flash_follows_the_steps(step_ms: float, verdict: str) -> None:
    pair = make_record("native_layers", step_ms=100.0), make_record("flash_attention", step_ms=step_ms)
    assert judge("flash_training_2_to_4x", *pair) == verdict


def test_power_follows_the_energy_counter() -> None:
    def pair(after_j: float) -> list[Record]:
        return [make_record("native_layers", energy_j=5000.0), make_record("flash_attention", energy_j=after_j)]

    assert judge("flash_lowers_power", *pair(5200.0)) == "refuted"
    assert judge("flash_lowers_power", *pair(3000.0)) == "confirmed"
    assert judge("flash_lowers_power", *map(make_record, ("native_layers", "flash_attention"))) == "not_decided"
    longer = replace(pair(9600.0)[1], energy_steps=80)  # twice the timed steps
    assert judge("flash_lowers_power", pair(0.1)[0], longer) == "confirmed"


def test_launches_decide_on_adamw() -> None:
    lists = "multi_tensor_apply_kernel<TensorListMetadata<4>>"
    assert judge("adamw_default_loops", make_record("tensor_cores", kernels=[kernel(lists, "optimizer", 72)])) == (
        "refuted"
    )
    loop = [kernel("vectorized_elementwise_kernel<addcdiv>", "optimizer", 161 * 9)]
    assert judge("adamw_default_loops", make_record("tensor_cores", kernels=loop)) == "confirmed"
    for launches, verdict in ((9, "refuted"), (1, "confirmed")):
        fused = [kernel("multi_tensor_apply_kernel<FusedAdamMathFunctor<float>", "optimizer", launches)]
        assert judge("adamw_fused_one_kernel", make_record("fused_adamw", kernels=fused)) == verdict


@pytest.mark.parametrize(("norms", "gelus", "verdict"), [(25, 12, "refuted"), (24, 24, "confirmed"), (0, 12, None)])
def test_layer_norm_and_gelu_are_counted(norms: int, gelus: int, verdict: str | None) -> None:
    kernels = [
        kernel("vectorized_layer_norm_kernel<c10::BFloat16>", "normalization", norms),
        kernel("layer_norm_grad_input_kernel_vectorized<c10::BFloat16>", "normalization", 25),
        kernel("vectorized_elementwise_kernel<8, GeluCUDAKernelImpl(at::TensorIteratorBase&", "element-wise", gelus),
        kernel("vectorized_elementwise_kernel<8, GeluBackwardCUDAKernelImpl(at", "element-wise", 12),
    ]
    assert judge("norm_gelu_48_calls", make_record("native_layers", kernels=kernels)) == (verdict or "not_decided")


def test_compiling_is_weighed_against_the_steps() -> None:
    def pair(after_ms: float, compile_s: float) -> list[Record]:
        after = make_record("torch_compile", step_ms=after_ms, compile_s=compile_s)
        return [make_record("merged_qkv", step_ms=30.0), after]

    assert judge("compile_free_lunch", *pair(20.0, 15.0)) == "depends"
    assert judge("compile_free_lunch", *pair(31.0, 15.0)) == "refuted"
    assert "1,500 steps" in BY_KEY["compile_free_lunch"].judge(pair(20.0, 15.0)).evidence, "15 s / 10 ms"
    assert judge("first_run_2_to_10x", *pair(20.0, 15.0)) == "refuted"
    assert judge("first_run_2_to_10x", *pair(20.0, 0.2)) == "confirmed"


def test_the_published_stopwatch_is_judged_by_the_window() -> None:
    def pair(evaluation_ms: float) -> list[Record]:
        ours = make_record("baseline", step_ms=[250.0] * 30)
        records = [replace(ours, ladder="published-stopwatch", rung="training_only")]
        with_evaluation = [250.0 + (evaluation_ms if index % 15 == 0 else 0.0) for index in range(30)]
        return [*records, replace(records[0], rung="evaluation_inside", step_ms=with_evaluation)]

    assert judge("later_step_is_clean", *pair(400.0)) == "refuted"
    assert judge("later_step_is_clean", *pair(1.0)) == "confirmed"


def test_padding_is_judged_by_alignment_and_traffic() -> None:
    head = kernel("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1", "matmul, Tensor Cores", 3, 15_000.0)
    other = kernel("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT", "matmul, Tensor Cores", 140, 8_000.0)

    def trio(before: dict[str, Any], after: dict[str, Any]) -> list[Record]:
        kernels = {"merged_qkv": [before, other], "torch_compile": [other], "padded_vocab": [after, other]}
        return [make_record(rung, kernels=table) for rung, table in kernels.items()]

    assert judge("padding_for_bandwidth", *trio(head, other)) == "refuted"
    assert judge("padding_for_bandwidth", *trio(head, head)) == "confirmed"
    assert judge("padding_for_bandwidth", *trio(head | {"time_us": 700.0}, other)) == "confirmed", "at full bandwidth"
    assert judge("padding_for_bandwidth", *trio(other, other)) == "not_decided"


@pytest.mark.parametrize(("tile", "verdict"), [("192x128", "refuted"), ("16x16", "confirmed")])
def test_tiles_are_read_from_kernel_names(tile: str, verdict: str) -> None:
    kernels = [kernel(f"nvjet_sm90_tst_{tile}_64x5_1x2_h_bz_coopB_NNT", "matmul, Tensor Cores")]
    assert judge("tiles_8_16_32", make_record("padded_vocab", kernels=kernels)) == verdict


@pytest.mark.parametrize(("step_ms", "verdict"), [(98.0, "refuted"), (104.0, "confirmed")])
def test_pinned_memory_is_a_duty_only_when_it_gains(step_ms: float, verdict: str) -> None:
    pair = make_record("fused_adamw", step_ms=110.0), make_record("pinned_memory", step_ms=step_ms)
    slower = make_record("fused_adamw", step_ms=100.0), make_record("pinned_memory", step_ms=98.0)
    assert judge("pinned_is_mandatory", *(slower if verdict == "refuted" else pair)) == verdict


def test_pinned_memory_is_visible_beyond_the_spread() -> None:
    assert judge("pinned_is_invisible", *map(make_record, ("fused_adamw", "pinned_memory"))) == "confirmed"
    pair = make_record("fused_adamw", step_ms=110.0), make_record("pinned_memory", step_ms=100.0)
    assert judge("pinned_is_invisible", *pair) == "refuted"


def test_a_busy_card_is_judged_by_what_it_does() -> None:
    def at(step_ms: float) -> Record:
        busy = [kernel("gemm", "matmul, Tensor Cores", 1, 1e3 * step_ms)]
        return make_record("baseline", step_ms=step_ms, kernels=busy)

    assert judge("gpu_util_shows_saturation", at(1000.0)) == "refuted"
    assert judge("gpu_util_shows_saturation", at(150.0)) == "confirmed", "MFU above the bound"


def climb(**step_ms: float) -> list[Record]:
    """Ladder nine-steps on one GPU, each rung as slow as the one below it unless given."""
    records, current = [], 400.0
    for rung in NINE_STEPS.keys[:-1]:
        current = step_ms.get(rung, current)
        records.append(make_record(rung, step_ms=current))
    return records


def test_the_share_of_three_is_counted_both_ways() -> None:
    refuted = climb(tensor_cores=300.0, bfloat16=250.0, flash_attention=200.0, torch_compile=100.0, batch_size=200.0)
    assert judge("three_gave_80_percent", *refuted) == "refuted"
    # The three make 8x, and the batch the rest of 8 ** (1 / 0.8); its step holds four times the tokens.
    top = 4 * 50.0 * 8 ** (-0.25)
    confirmed = climb(tensor_cores=200.0, bfloat16=100.0, flash_attention=50.0, batch_size=top)
    verdict = BY_KEY["three_gave_80_percent"].judge(confirmed)
    assert "80.0 % by logarithms" in verdict.evidence
    assert verdict.verdict == "depends", "by added tokens/s it is another share"


def test_accounts_that_disagree_depend() -> None:
    pair = make_record("merged_qkv", step_ms=30.0), make_record("torch_compile", step_ms=25.0)
    assert judge("compile_gives_1_2x", *pair) == "depends", "ours is as claimed, the published ones are not"
    six = [
        make_record("bfloat16_autocast", ladder="six-steps", step_ms=300.0),
        make_record("torch_compile", ladder="six-steps", step_ms=120.0),
    ]
    found = BY_KEY["compile_gives_1_2x"].judge([*pair, *six])
    assert "ladder six-steps): 2.50x" in found.evidence and found.needs is None


def test_find_takes_the_device_with_most_rungs_and_leaves_failures_out() -> None:
    lone = make_record("baseline", device="nvidia-h100")
    pair = [make_record("baseline"), make_record("causal_mask")]
    assert find([lone, *pair], "baseline")["baseline"].device == "nvidia-h200"
    assert find([lone, *pair], "baseline", device="nvidia-h100")["baseline"] is lone
    assert find([lone, *pair], "baseline", "bfloat16") is None
    assert find([make_record("baseline", kernels=[])], "baseline", kernels=True) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"verdict": "maybe", "evidence": "x"}, "maybe"),
        ({"verdict": "depends", "evidence": "x"}, "on_what"),
        ({"verdict": "refuted", "evidence": "x", "on_what": "y"}, "on_what"),
        ({"verdict": "not_decided"}, "needs"),
        ({"verdict": "confirmed"}, "evidence"),
    ],
)
def test_a_verdict_says_what_it_must(values: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Verdict(**values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"group": 33}, "group 33"), ({"evidence_kind": "hearsay"}, "hearsay"), ({"figures": ("nobody",)}, "nobody")],
)
def test_a_claim_says_what_it_must(changes: dict[str, Any], words: str) -> None:
    values = {
        "key": "some", "group": 1, "claim": "Some.", "expectation": "None.", "evidence_kind": "nothing yet",
        "experiment": pending("a run"),
    }  # fmt: skip
    assert Claim(**values).judge([]).needs == "a run"
    with pytest.raises(BadInput, match=words):
        Claim(**(values | changes))
