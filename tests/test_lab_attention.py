"""The attention lab: every implementation under one signature, its rows on a CPU, and Nsight Compute's output."""

from __future__ import annotations

import os
import stat
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend

from speedlab.errors import NotAvailable
from speedlab.labs import attention, attention_kinds, dram_traffic
from speedlab.labs.attention_kinds import (
    KINDS,
    LAYOUTS,
    Shape,
    forward_backward,
    get_attention,
    make_inputs,
    time_attention,
)
from speedlab.measuring.experiments import run_experiment
from speedlab.model.tiled_attention import tiled_attention
from speedlab.records.experiment import Experiment

CPU = torch.device("cpu")
SHAPE = Shape(batch=2, context=12, heads=4, head_width=8, dtype=torch.float32)
ELSEWHERE = ("triton", "flash_attn", "flex", "sdpa_cudnn", "sdpa_efficient")
HERE = [kind for kind in KINDS if kind not in ELSEWHERE and kind != "plain_compiled"]


# The plain form of the model has as many key heads as query heads.
PAIRS = [(kind, heads) for kind in HERE for heads in (4, 2, 1) if kind != "plain" or heads == 4]


@pytest.mark.parametrize(("kind", "key_value_heads"), PAIRS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_kind_is_the_same_function(kind: str, layout: str, key_value_heads: int) -> None:
    shape = Shape(**vars(SHAPE) | {"layout": layout, "key_value_heads": key_value_heads})
    qkv = make_inputs(shape, CPU)
    assert [tuple(x.shape) for x in qkv] == [(2, 4, 12, 8), (2, key_value_heads, 12, 8), (2, key_value_heads, 12, 8)]
    gradient = torch.randn_like(qkv[0])
    exact = tuple(x.detach().double().requires_grad_() for x in qkv)
    expected = forward_backward(lambda q, k, v, c: tiled_attention(q, k, v, causal=c), exact, gradient.double(), True)
    for found, true in zip(forward_backward(get_attention(kind, CPU), qkv, gradient, True), expected, strict=True):
        torch.testing.assert_close(found.double(), true, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in HERE if kind != "plain"])
def test_without_causal_every_query_meets_every_key(kind: str) -> None:
    qkv = make_inputs(SHAPE, CPU)
    gradient = torch.randn_like(qkv[0])

    def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, dim=-1) @ v

    exact = tuple(x.detach().double().requires_grad_() for x in qkv)
    expected = forward_backward(written_out, exact, gradient.double(), False)
    for found, true in zip(forward_backward(get_attention(kind, CPU), qkv, gradient, False), expected, strict=True):
        torch.testing.assert_close(found.double(), true, rtol=1e-4, atol=1e-5)


def test_layouts_hold_the_same_shape_in_another_order_of_memory() -> None:
    strides = {layout: make_inputs(Shape(**vars(SHAPE) | {"layout": layout}), CPU)[1].stride() for layout in LAYOUTS}
    assert strides["heads first"] == (4 * 12 * 8, 12 * 8, 8, 1)
    assert strides["tokens first"] == (12 * 4 * 8, 8, 4 * 8, 1)
    assert strides["one projection"] == (12 * 3 * 4 * 8, 8, 3 * 4 * 8, 1)


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_cannot_run_on_a_cpu_says_so_in_one_line(kind: str) -> None:
    with pytest.raises(NotAvailable) as error:
        time_attention(kind, SHAPE, CPU)
    assert "\n" not in str(error.value) and len(str(error.value)) > 20


def test_the_same_tokens_at_every_context() -> None:
    for context in (3, 6, 12, 24):
        changed = SHAPE.with_context(context)
        assert changed.batch * changed.context == SHAPE.batch * SHAPE.context
    assert SHAPE.with_context(1000).batch == 1


def test_timing_gives_samples_and_no_memory_on_a_cpu() -> None:
    row = time_attention("sdpa", SHAPE, CPU, repeats=4)
    assert [len(row[name]) for name in ("forward_ms", "both_ms")] == [4, 4] and row["extra_peak_bytes"] is None


# What PyTorch 2.11 says, each line a warning of its own, where a kernel is insisted on that cannot run.
SAID = (
    "Memory efficient kernel not used because: (Triggered internally at /pytorch/sdp_utils.cpp:915.)",
    "Memory Efficient attention has been runtime disabled. (Triggered internally at /pytorch/sdp_utils_cpp.h:552.)",
    "Flash attention kernel not used because: (Triggered internally at /pytorch/sdp_utils.cpp:917.)",
    "Expected query, key and value to all be of dtype: {Half, BFloat16}. (Triggered internally at /pytorch/x.cpp:1.)",
    "cuDNN attention kernel not used because: (Triggered internally at /pytorch/sdp_utils.cpp:919.)",
    "cuDNN SDPA is not deterministic. (Triggered internally at /pytorch/sdp_utils.cpp:5.)",
)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("sdpa_flash", "here: Expected query, key and value to all be of dtype: {Half, BFloat16}."),
        ("sdpa_cudnn", "here: cuDNN SDPA is not deterministic."),
        ("sdpa_efficient", "here: Memory Efficient attention has been runtime disabled."),
    ],
)
def test_a_kernel_that_is_refused_gives_its_own_reason(kind: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        for line in SAID:
            warnings.warn(line, stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(attention_kinds.F, "scaled_dot_product_attention", refuse)
    with pytest.raises(NotAvailable) as error:
        get_attention(kind, CPU)(*make_inputs(SHAPE, CPU), True)
    assert str(error.value).endswith(reason)


def test_a_reason_without_a_heading_is_taken_where_it_names_the_kernel() -> None:
    why = partial(attention_kinds.why_not, SDPBackend.FLASH_ATTENTION)
    assert why(["Flash attention needs 16 bits.", "something else"]) == "Flash attention needs 16 bits."
    assert why(["something else"]) == why([]) == ""


@pytest.fixture(scope="module")
def toy() -> Experiment:
    return run_experiment("attention_sweep", profile="smoke")


def test_the_toy_sweep_has_a_row_for_everything_and_no_error(toy: Experiment) -> None:
    assert {row["status"] for row in toy.rows} == {"measured", "unavailable"}
    assert {row["what"] for row in toy.rows} == {
        "context", "accuracy", "causal", "heads", "layout", "copies", "deterministic", "layer_7b",
    }  # fmt: skip
    reasons = {row["kind"]: row["reason"] for row in toy.rows if row["status"] == "unavailable"}
    assert set(reasons) <= set(ELSEWHERE)
    swept = [(row["kind"], row["context"]) for row in toy.measured if row["what"] == "context"]
    assert set(swept) == {(kind, context) for kind in HERE for context in attention.TOY_SIZES.contexts}


def test_the_toy_sweep_found_every_kind_accurate_and_repeatable(toy: Experiment) -> None:
    accuracy = [row for row in toy.measured if row["what"] == "accuracy"]
    assert {row["kind"] for row in accuracy} == set(HERE)
    assert all(0 < row["output_error"] < 1e-5 and row["k_gradient_error"] < 1e-4 for row in accuracy)
    repeats = [row for row in toy.measured if row["what"] == "deterministic"]
    assert repeats and all(row["output_repeats"] for row in repeats)
    assert {row["setting"] for row in repeats} == {"as it is", "TF32 allowed", "deterministic"}
    assert not torch.are_deterministic_algorithms_enabled()


def test_fewer_key_heads_need_fewer_bytes(toy: Experiment) -> None:
    sizes = {row["key_value_heads"]: row["key_value_bytes"] for row in toy.measured if row["what"] == "heads"}
    assert sizes[2] == 2 * sizes[1] == 2 * 2 * 64 * 2 * 32 * 4  # k and v, batch, tokens, heads, width, float32


def fake_ncu(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An `ncu` on the search path that does what the script says with its log file, the fifth argument."""
    program = folder / "ncu"
    program.write_text(f"#!/bin/sh\nlog=$5\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


SIZES = {"batch": 1, "context": 64, "heads": 2, "head_width": 16}
CSV = """==PROF== Connected to process 7
"ID","Process ID","Host Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","somewhere","softmax(float, int)","Command line profiler metrics","dram__bytes_read.sum","byte","1,024"
"0","7","somewhere","softmax(float, int)","Command line profiler metrics","dram__bytes_write.sum","byte","512"
"1","7","somewhere","gemm","Command line profiler metrics","dram__bytes_read.sum","byte","100"
"1","7","somewhere","gemm","Command line profiler metrics","dram__bytes_write.sum","byte","28.0"
"""


def test_nsight_computes_table_becomes_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").write_text(CSV)
    fake_ncu(tmp_path, monkeypatch, f'cp {tmp_path}/table "$log"')
    found = dram_traffic.measured_traffic("plain", **SIZES)
    assert (found["read_bytes"], found["written_bytes"], found["bytes"]) == (1124, 540, 1664)
    assert found["kernels"][0] == {"name": "softmax(float, int)", "read_bytes": 1024, "written_bytes": 512}
    assert "somewhere" not in str(found)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('echo "==ERROR== ERR_NVGPUCTRPERM - no permission" > "$log"; exit 1', "administrators"),
        ("exit 9", "ended with 9"),
        (": > $log", "0 kernels"),
        ("exec sleep 60", "more than"),
    ],
)
def test_nsight_compute_without_numbers_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(dram_traffic, "TIME_LIMIT_S", 0.5 if "sleep" in script else 60)
    fake_ncu(tmp_path, monkeypatch, script)
    with pytest.raises(NotAvailable, match=reason):
        dram_traffic.measured_traffic("plain", **SIZES)


def test_without_nsight_compute_the_formula_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dram_traffic.shutil, "which", lambda name: None)
    bench = SimpleNamespace(scaled=lambda recipe: recipe, device=torch.device("cuda"))
    rows = list(dram_traffic.attention_traffic(bench, lambda text: None))
    assert [row["status"] for row in rows] == ["measured", "measured", "unavailable"]
    # Four passes over the scores, which every head of every sequence has, and over q, k, v and the output.
    scores, vectors = 8 * 12 * 1024 * 1024 * 2, 8 * 12 * 1024 * 64 * 2
    assert rows[0]["bytes"] == 4 * scores + 4 * vectors
    assert rows[1]["bytes"] < rows[0]["bytes"] / 5


def test_a_toy_counts_by_formula_and_says_that_there_are_no_counters() -> None:
    rows = run_experiment("attention_traffic", profile="smoke").rows
    assert [row["status"] for row in rows] == ["measured", "measured", "unavailable"]
    assert rows[-1]["reason"] == "the counters are those of a GPU, and there is none here"
