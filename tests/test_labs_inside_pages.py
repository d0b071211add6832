"""Pages of the labs on precision and the compiler, and what they share with attention: from made-up rows of a card."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from labs_inside_helper import gradients, kernels, made, mode
from records_helper import make_record

from speedlab.publishing import figures_of_labs_inside as figures
from speedlab.publishing import words_of_compiler as compiler
from speedlab.publishing import words_of_labs_inside as words
from speedlab.publishing import words_of_precision as precision
from speedlab.publishing.plotting import alt_text, svg_text
from speedlab.publishing.tables import Table
from speedlab.records.experiment import Experiment

PRECISION = made(
    "precision_formats",
    [
        {"what": "histogram", "of": "logits", "step": 7, "lowest_exponent": -30, "counts": [1, 6, 2, 1], "zeros": 3},
        gradients("logits", "bfloat16", 1.0, 0.0),
        gradients("logits", "float16", 1.0, 0.4),
        gradients("logits", "float16", 65536.0, 0.01, above=0.2),
        gradients("logits", "float16", 1.0, 0.99, step=1),
        gradients("logits", "float16", 65536.0, 0.0, step=1),
        gradients("logits", "float8_e5m2", 65536.0, 0.3),
        gradients("logits", "float8_e4m3", 65536.0, 0.9999, above=0.5),
        *(
            {"what": "updates", "step": 8, "of": of, "format": name, "share_lost": lost, "mean_weight": 0.02,
             "mean_update": 1e-5}
            for of, name, lost in (("all", "bfloat16", 0.25), ("all", "float16", 0.1), ("norms", "bfloat16", 0.5),
                                   ("norms", "float16", 0.0))
        ),
        {"what": "trajectory", "weight": "w[0]", "precision": "float32", "values": [1.0, 0.9995, 0.999]},
        {"what": "trajectory", "weight": "w[0]", "precision": "bfloat16", "values": [1.0, 1.0, 1.0]},
        {"what": "trajectory", "weight": "w[0]", "precision": "bfloat16_master", "values": [1.0, 0.992, 0.992]},
    ],
    ceilings={"matmul_flops_per_s": {"float32": 5e13, "bfloat16": 7.5e14}, "copy_bytes_per_s": 4e12,
              "utc": "2026-11-29T12:00:00+00:00"},
)  # fmt: skip

COMPILING = made(
    "compile_modes",
    [
        mode("off", 30.0, None), mode("default", 20.0, 15.0), mode("reduce-overhead", 31.0, 16.0),
        {"what": "warm", "first_step_s": 4.0, "compile_cache": "warm"},
        kernels("off", {"matmul, Tensor Cores": (100, 20_000.0), "copy": (300, 9_000.0)}),
        kernels("default", {"matmul, Tensor Cores": (100, 8_000.0), "copy": (10, 9_500.0), "fused": (60, 4_000.0)},
                fused=[("triton_poi_fused_mm_t_view_0", 700.0), ("triton_poi_fused_gelu_view_4", 300.0)]),
        *({"what": "bytes", "recipe": recipe, "mode": how, name: count, "bytes": gib * 2**30}
          for recipe, how, name, count, gib in (("native", "off", "operators", 348, 8),
                                                ("native", "default", "graphs", 2, 9),
                                                ("handwritten", "off", "operators", 999, 20),
                                                ("handwritten", "default", "graphs", 2, 9))),
        *({"what": "graph_break", "interruption": name, "graphs": graphs, "reasons": reasons, "step_ms": step_ms}
          for name, graphs, reasons, step_ms in (
              ("nothing", 1, [], [8.0, 8.1, 8.2] * 10), ("print", 3, ["it prints"], [8.04, 8.14, 8.24] * 10),
              (".item()", 3, ["it asks"], [9.0, 9.1, 9.2] * 9 + [9.0, 9.1, 99.0]))),
        *({"what": "recompile", "dynamic": dynamic, "batches": [8, 4], "graphs": graphs, "call_s": call_s,
           "backend": "inductor"}
          for dynamic, graphs, call_s in (("False", [1, 2], [2.0, 2.5]), ("True", [1, 1], [4.0, 0.0015]))),
    ],
)  # fmt: skip

FIGURES = [
    (figures.gradient_histogram, PRECISION, "most near 2^-29, 100.0 % below"),
    (figures.weight_trajectories, PRECISION, "w[0] in bfloat16: from 1 to 1, 1 different values"),
    (figures.break_even, COMPILING, "default: 15.0 s before 20.0 ms a step"),
    (figures.fused_kernels, COMPILING, "native, default: 21.5 ms in 170 launches"),
]


@pytest.mark.parametrize(("draw", "experiment", "said"), FIGURES, ids=lambda value: getattr(value, "__name__", None))
def test_each_figure_says_its_numbers_to_those_who_cannot_see_it(draw: Any, experiment: Experiment, said: str) -> None:
    figure = draw(experiment)
    assert said in alt_text(figure)
    assert svg_text(figure) == svg_text(draw(experiment))


@pytest.mark.parametrize(("draw", "experiment", "said"), FIGURES, ids=lambda value: getattr(value, "__name__", None))
def test_a_figure_without_rows_says_so(draw: Any, experiment: Experiment, said: str) -> None:
    assert "no row of this experiment" in alt_text(draw(made(experiment.name, [{"what": "other"}])))


def lines(table: Table) -> dict[str, tuple[str, ...]]:
    """The cells of a table by its first column."""
    return {line[0]: line[1:] for line in table.cells}


def test_float16_is_held_against_itself_with_a_loss_scale() -> None:
    (table,) = precision.in_float16(PRECISION)
    assert table.cells == (
        ("logits", "1", "99.0 %", "49.5 %", "none", "none", "none"),
        ("logits", "7", "40.0 %", "20.0 %", "1.0 %", "0.5 %", "20.0 %"),
    )
    assert table.notes == ("in bfloat16 none become zero or subnormal, whichever of these gradients",)
    (table,) = precision.in_eight_bits(PRECISION)
    assert table.cells == (("logits", "7", "30.0 %", "none", "> 99.9 %", "50.0 %"),)


def test_sentences_on_gradients_count_what_a_scale_lifts_too_high() -> None:
    lost = precision.gradients_lost(PRECISION)
    assert "of logits 99.0 % at step 1 and 40.0 % at step 7." in lost and "at most 1.0 %" in lost
    assert "lifts 2 of 10 gradients of logits" in lost  # a fifth of the histogram's ten


def test_updates_and_watched_weights() -> None:
    (table,) = precision.updates(PRECISION)
    assert table.columns[-2:] == ("lost in bfloat16", "lost in float16") and "step 8" in table.title
    assert list(lines(table)) == ["norms", "all"]  # the sum of all groups comes last
    assert lines(table)["all"] == ("0.020", "1.0e-05", "25.0 %", "10.0 %")
    said = precision.weights_watched(PRECISION)
    assert "in float32 it ends at 0.999 after 2 moves, the last at step 2" in said
    assert "in pure bfloat16 it never moves; with master weights it ends at 0.992 after 1 moves" in said
    assert "bfloat16 750 TFLOP/s (15.0x)" in precision.matmul_rates(PRECISION)


def trained(rung: str, before: float, after: float, **more: Any) -> Any:
    """A rung of ladder precisions whose curve ends at `after`, beside one of the reference that ends at `before`."""
    curves = {name: {"tokens": [1000, 2000], "losses": [5.0, end]}
              for name, end in (("curve_before", before), ("curve", after))}  # fmt: skip
    detail = {"before": "baseline", "gap": after - before, **curves}
    return make_record(rung, ladder="precisions", contract_detail=detail, **more)


TRAININGS = [
    trained("bfloat16", 4.0, 4.3), trained("bfloat16_master", 4.1, 4.05), trained("bfloat16_autocast", 4.0, 3.8),
    trained("float16_autocast", 4.0, 4.0, skipped_steps={"contract": 1, "window": 0, "curve": 3}),
]  # fmt: skip


def test_losses_are_held_against_what_the_reference_gave_each_time() -> None:
    repeats = precision.reference_tails(TRAININGS)
    assert repeats == [4.0, 4.1, 4.0, 4.0]
    said = precision.gap_words(TRAININGS, repeats)
    assert "4 times, ended between 4.000 and 4.100" in said
    assert "Above all of these: Pure bfloat16 at 4.300, by 0.200." in said
    assert "Among them: bfloat16 with float32 masters at 4.050; float16 autocast and scaler at 4.000." in said
    assert "Below all of these: bfloat16 autocast at 3.800, by 0.200." in said
    assert "left 3 of the curve's steps without an update" in said
    assert precision.gap_words(TRAININGS[:1], [4.0]) == words.NOTHING_TO_SAY


def test_the_figure_of_gaps_starts_from_the_mean_of_the_repeats() -> None:
    said = alt_text(figures.precision_gaps(TRAININGS))
    assert "Pure bfloat16 ends +0.275" in said and "bfloat16 autocast ends -0.225" in said
    assert "no row of this experiment" in alt_text(figures.precision_gaps(TRAININGS[:1]))


def test_modes_say_when_they_have_paid_for_themselves() -> None:
    (table,) = compiler.modes(COMPILING)
    found = {line[1]: line for line in table.cells}
    column = table.columns.index("paid back after")
    assert [found[name][column] for name in ("off", "default", "reduce-overhead")] == ["–", "1,500 steps", "never"]  # noqa: RUF001
    assert found["default"][table.columns.index("ms in kernels")] == "21.5"
    assert "warm cache on disk takes 4.00 s for its first step, where the first one took 15.0 s" in compiler.warm_words(
        COMPILING
    )


def test_faster_matmuls_are_told_from_fusion() -> None:
    said = compiler.matmul_words(COMPILING)
    assert "400 launches become 170; matmuls go from 20.0 to 8.00 ms, all the rest from 9.00 to 13.5 ms" in said
    # What the padding kernel and the copies add is taken off the rest: 13.5 - 0.7 - 0.5.
    assert "take 0.70 ms a step, and copies +0.50 ms; without both, the rest would be 12.3 ms" in said
    plain = made("compile_modes", [kernels(name, {"matmul": (9, 9e3)}) for name in ("off", "default")])
    assert "pads" not in compiler.matmul_words(plain)
    (table,) = compiler.kernel_kinds(COMPILING)
    assert lines(table)["fused"] == ("–", "4.00") and lines(table)["together"] == ("29.0", "21.5")  # noqa: RUF001


def test_a_count_that_rises_is_explained_and_one_that_falls_is_not() -> None:
    (table,) = compiler.counted(COMPILING)
    assert lines(table)["native"] == ("8.00", "348", "9.00", "2")
    said = compiler.counted_words(COMPILING)
    assert "-11.0 GiB, with native ones by +1.0" in said
    assert "reads and writes 1.53 GiB" in said  # 2 x 8,192 x 50,257 x 2 bytes
    fallen = [row | {"bytes": 2**30} if row.get("mode") == "default" else row for row in COMPILING.rows]
    assert "padded" not in compiler.counted_words(made("compile_modes", fallen))


def test_only_clear_differences_of_a_break_are_shown() -> None:
    (table,) = compiler.breaks(COMPILING)
    found = lines(table)
    assert found["nothing"] == ("1", "8.10", "8.20", "–", "–")  # noqa: RUF001
    assert found["print"][3] == "no clear difference" and found[".item()"][2:] == ("99.0", "1.12x", "it asks")


def test_recompiles_say_which_call_made_a_graph_and_that_an_old_record_shared_its_cache() -> None:
    (table,) = compiler.recompiles(COMPILING)
    assert table.cells == (
        ("False", "2.00 s, new graph", "2.50 s, new graph"), ("True", "4.00 s, new graph", "1.50 ms"),
    )  # fmt: skip
    assert "shared a cache" in table.notes[0]
    cold = [row | {"compile_cache": "cold"} for row in COMPILING.rows if row["what"] == "recompile"]
    assert compiler.recompiles(made("compile_modes", cold))[0].notes == ()


def test_losses_are_held_against_the_same_layers_without_the_compiler() -> None:
    (table,) = compiler.losses(COMPILING)
    assert [line[-1] for line in table.cells] == ["–", "0.0200", "0.0310"]  # noqa: RUF001


def test_a_reason_is_said_once_and_without_a_heading_that_lost_its_text() -> None:
    why = "PyTorch's FLASH_ATTENTION does not take these inputs here: Flash attention kernel not used because:"
    rows = [
        {"kind": "a", "status": "unavailable", "reason": why}, {"kind": "b", "status": "unavailable", "reason": why},
        {"kind": "a", "status": "unavailable", "reason": why}, {"kind": "c", "status": "out_of_memory", "reason": "x"},
        {"kind": "d", "status": "error", "reason": "it is not there"},
    ]  # fmt: skip
    assert words.absent(rows) == (
        "a, b: PyTorch's FLASH_ATTENTION does not take these inputs here (this record lacks PyTorch's reason)",
        "d: it is not there",
    )


SAYINGS = (precision.gradients_lost, precision.weights_watched, precision.matmul_rates, compiler.warm_words,
           compiler.matmul_words, compiler.counted_words)  # fmt: skip


@pytest.mark.parametrize("say", SAYINGS)
def test_without_its_rows_a_sentence_says_so(say: Any) -> None:
    assert say(made("toy_sweep", [{"what": "other"}])) == words.NOTHING_TO_SAY


MAKERS = (precision.in_eight_bits, precision.updates, compiler.counted, compiler.recompiles, compiler.longest_fused)


@pytest.mark.parametrize("make", MAKERS)
def test_without_its_rows_there_is_no_table(make: Any) -> None:
    assert make(made("toy_sweep", [{"what": "other"}])) == []


def test_small_numbers_and_spans() -> None:
    assert [words.small(value) for value in (None, 0.0, 0.00771, 8.27e-7)] == ["–", "0", "0.0077", "8.3e-07"]  # noqa: RUF001
    assert words.span([2.0, 1.5, 1.7]) == "1.50x to 2.00x" and words.span([1.001, 1.002]) == "1.00x"


def test_the_table_of_formats_is_made_of_the_formats() -> None:
    table = precision.formats_table()
    assert "| float16 | 1, 5, 10 | 6.55e+04 | 6.1e-05 | 5.96e-08 | 0.000977 |" in table
    assert sum(line.startswith("|") for line in table.splitlines()) == 2 + 6


def test_pages_of_these_labs_need_no_torch() -> None:
    names = ("figures_of_labs_inside", "words_of_attention", "words_of_attention_traffic", "words_of_precision")
    modules = ", ".join(f"speedlab.publishing.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
