"""Figures and sentences of the labs on precision, attention and the compiler, from made-up rows of a card."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from records_helper import MACHINE_H200

from speedlab.publishing import figures_of_labs_inside as figures
from speedlab.publishing import words_of_labs_inside as words
from speedlab.publishing.plotting import alt_text, svg_text
from speedlab.records.experiment import Experiment


def made(name: str, rows: list[dict[str, Any]], **more: Any) -> Experiment:
    return Experiment(
        name=name, session="0f1e2d3c4b5a", device="nvidia-h200", profile="full", machine=MACHINE_H200,
        source_hash="0" * 64, utc="2026-11-29T12:00:00+00:00",
        rows=[{"status": "measured", "reason": None} | row for row in rows], **more,
    )  # fmt: skip


def gradients(of: str, name: str, scale: float, zero: float, step: int = 7) -> dict[str, Any]:
    return {"what": "gradients", "of": of, "step": step, "format": name, "loss_scale": scale, "share_zero": zero,
            "share_subnormal": zero / 2, "share_above_largest": 0.0}  # fmt: skip


PRECISION = made(
    "precision_formats",
    [
        {"what": "histogram", "of": "logits", "step": 7, "lowest_exponent": -30, "counts": [1, 6, 2, 1], "zeros": 3},
        gradients("logits", "bfloat16", 1.0, 0.0),
        gradients("logits", "float16", 1.0, 0.4),
        gradients("logits", "float16", 65536.0, 0.01),
        gradients("logits", "float16", 1.0, 0.99, step=1),
        {"what": "updates", "of": "all", "format": "bfloat16", "share_lost": 0.25},
        {"what": "updates", "of": "all", "format": "float16", "share_lost": 0.1},
        {"what": "trajectory", "weight": "w[0]", "precision": "float32", "values": [1.0, 0.9995, 0.999]},
        {"what": "trajectory", "weight": "w[0]", "precision": "bfloat16", "values": [1.0, 1.0, 1.0]},
    ],
    ceilings={"matmul_flops_per_s": {"float32": 5e13, "bfloat16": 7.5e14}, "copy_bytes_per_s": 4e12,
              "utc": "2026-11-29T12:00:00+00:00"},
)  # fmt: skip


def attention(kind: str, context: int, ms: float, **more: Any) -> dict[str, Any]:
    return {"what": "context", "kind": kind, "context": context, "both_ms": [ms, ms, 99.0],
            "extra_peak_bytes": context * 2**20} | more  # fmt: skip


ATTENTION = made(
    "attention_sweep",
    [
        attention("plain", 256, 3.0), attention("plain", 512, 12.0), attention("sdpa_flash", 256, 2.0),
        attention("sdpa_flash", 512, 3.0), attention("sdpa_cudnn", 512, 2.0), attention("sdpa_math", 512, 0.1),
        {"what": "context", "kind": "plain", "context": 1024, "status": "out_of_memory", "reason": "too little"},
    ],
)  # fmt: skip


def mode(name: str, ms: float, compile_s: float | None) -> dict[str, Any]:
    return {"what": "mode", "recipe": "native", "mode": name, "step_ms": [ms] * 3, "compile_s": compile_s,
            "compile_cache": "cold" if compile_s else None}  # fmt: skip


def kernels(name: str, kinds: dict[str, tuple[float, float]]) -> dict[str, Any]:
    return {"what": "kernels", "recipe": "native", "mode": name, "calls": sum(c for c, _ in kinds.values()),
            "time_us": sum(t for _, t in kinds.values()),
            "kinds": {kind: {"calls": c, "time_us": t} for kind, (c, t) in kinds.items()}}  # fmt: skip


COMPILING = made(
    "compile_modes",
    [
        mode("off", 30.0, None), mode("default", 20.0, 15.0), mode("reduce-overhead", 31.0, 16.0),
        {"what": "warm", "first_step_s": 4.0, "compile_cache": "warm"},
        kernels("off", {"matmul": (100, 20_000.0), "element-wise": (300, 9_000.0)}),
        kernels("default", {"matmul": (100, 15_000.0), "fused": (60, 4_000.0)}),
        {"what": "bytes", "recipe": "native", "mode": "off", "bytes": 8 * 2**30},
        {"what": "bytes", "recipe": "native", "mode": "default", "bytes": 4 * 2**30},
    ],
)  # fmt: skip

FIGURES = [
    (figures.gradient_histogram, PRECISION, "most near 2^-29, 100.0 % below"),
    (figures.weight_trajectories, PRECISION, "w[0] in bfloat16: from 1 to 1, 1 different values"),
    (figures.attention_over_context, ATTENTION, "sdpa_cudnn 2.00 ms at 512"),
    (figures.break_even, COMPILING, "default: 15.0 s before 20.0 ms a step"),
    (figures.fused_kernels, COMPILING, "native, default: 19.0 ms in 160 launches"),
]


@pytest.mark.parametrize(("draw", "experiment", "said"), FIGURES, ids=lambda value: getattr(value, "__name__", None))
def test_each_figure_says_its_numbers_to_those_who_cannot_see_it(draw: Any, experiment: Experiment, said: str) -> None:
    figure = draw(experiment)
    assert said in alt_text(figure)
    assert svg_text(figure) == svg_text(draw(experiment))


@pytest.mark.parametrize(("draw", "experiment", "said"), FIGURES, ids=lambda value: getattr(value, "__name__", None))
def test_a_figure_without_rows_says_so(draw: Any, experiment: Experiment, said: str) -> None:
    assert "no row of this experiment" in alt_text(draw(made(experiment.name, [{"what": "other"}])))


def test_sentences_hold_what_the_rows_say() -> None:
    lost = words.gradients_lost(PRECISION)
    assert "step 7" in lost and "40.0 % become zero" in lost and "times 65,536, 1.0 %" in lost and "99" not in lost
    assert "all 25.0 %" in words.updates_lost(PRECISION) and "`w[0]` never moved" in words.updates_lost(PRECISION)
    assert "bfloat16 750 TFLOP/s (15.0x)" in words.matmul_rates(PRECISION)
    compared = words.attention_words(ATTENTION)
    assert "1.50x at 256 (sdpa_flash), 6.00x at 512 (sdpa_cudnn)" in compared and "plain at 1,024" in compared
    compiled = words.compile_words(COMPILING)
    assert "paid back after 1,500 steps" in compiled and "31.0 ms a step, 16.0 s to compile (cold), never" in compiled
    assert "warm cache takes 4.00 s" in compiled
    assert words.fused_words(COMPILING) == (
        "native: 400 launches become 160, 29.0 ms of kernels 19.0, and the model's counted traffic goes from 8.00 to "
        "4.00 GiB."
    )


@pytest.mark.parametrize(
    "say",
    [words.gradients_lost, words.updates_lost, words.matmul_rates, words.attention_words, words.compile_words,
     words.fused_words],
)  # fmt: skip
def test_without_its_rows_a_sentence_says_so(say: Any) -> None:
    assert say(made("toy_sweep", [{"what": "other"}])) == words.NOTHING_TO_SAY


def test_cells_are_dashes_where_a_row_has_no_value() -> None:
    cells = (words.milliseconds("a"), words.mebibytes("a"), words.share("a"), words.small("a"), words.seconds("a"),
             words.listed("a"))  # fmt: skip
    assert {cell({}) for cell in cells} == {"–"}  # noqa: RUF001
    assert words.milliseconds("a")({"a": [1.0, 3.0, 2.0]}) == "2.00" and words.listed("a")({"a": [1, 2]}) == "1, 2"


def test_the_table_of_formats_is_made_of_the_formats() -> None:
    table = words.formats_table()
    assert "| float16 | 1, 5, 10 | 6.55e+04 | 6.1e-05 | 5.96e-08 | 0.000977 |" in table
    assert len(table.splitlines()) == 2 + 6


def test_pages_of_these_labs_need_no_torch() -> None:
    code = "import sys, speedlab.publishing.figures_of_labs_inside; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
