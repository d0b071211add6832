"""Words and tables of the chapter past the ladder, from rows that are made up here."""

from dataclasses import replace

import pytest
from records_helper import MACHINE_H200, make_record

from speedlab.beyond import FASTEST, PLAIN_COMPILED
from speedlab.publishing import beyond_tables as tables
from speedlab.publishing import beyond_words as words
from speedlab.publishing.figure_of_beyond import parts_of_steps
from speedlab.publishing.plotting import alt_text, svg_text
from speedlab.records.experiment import Experiment


def experiment(rows):
    return Experiment(
        name="beyond_x", session="0f1e2d3c4b5a", device="nvidia-h200", profile="full", machine=MACHINE_H200,
        rows=[{"status": "measured", "reason": None} | row for row in rows], source_hash="0" * 64,
        utc="2026-11-29T12:00:00+00:00",
    )  # fmt: skip


def curve(name, seed, end):
    losses = [11.0 - (11.0 - end) * step / 89 for step in range(90)] + [end] * 10
    return {
        "curve": name, "seed": seed, "losses": losses, "steps": 1_000, "tokens_per_step": 16_384, "passes": 0.5
    }  # fmt: skip


def test_without_records_the_predictions_stand_alone():
    text = words.ladder_section([])
    assert text.startswith("Nothing recorded yet") and "not measured yet" in text


def test_with_records_there_is_a_table_for_the_device_and_its_lab_book():
    records = [
        make_record("plain_compiled", ladder="beyond", step_ms=126.0),
        make_record("bfloat16_master", ladder="beyond", step_ms=121.4),
        make_record("baseline", step_ms=200.0),
    ]
    text = words.ladder_section(records)
    assert text.startswith("**The goals, and what bfloat16 weights, float32 masters reached.** H200 SXM")
    assert "| bfloat16 weights, float32 masters | +4.6 | +4.6 | as predicted |" in text
    assert "Plain compiled autocast" in text and "Baseline" not in text


def test_curves_are_judged_by_the_distance_of_two_seeds():
    plain = [curve("plain compiled autocast", seed, end) for seed, end in ((1, 5.000), (2, 5.010))]
    near = words.curve_words(experiment([*plain, curve("fastest", 1, 5.004), curve("fastest", 2, 5.007)]))
    assert "0.0100 nats apart" in near and "+0.0040 nats" in near and "inside that spread" in near
    assert "1,000 steps of 16,384 tokens, 0.5 passes" in near
    far = words.curve_words(experiment([*plain, curve("fastest", 1, 5.004), curve("fastest", 2, 5.1)]))
    assert "outside that spread" in far
    assert "nothing to compare" in words.curve_words(experiment(plain[:1]))


def test_compilation_is_paid_back_after_the_steps_that_it_cost():
    def row(preset, ms, compile_s):
        return {"size": "124M", "preset": preset, "step_ms": [ms] * 30, "compile_s": compile_s, "tokens_per_step": 8}

    def said(ms, compile_s):
        return words.break_even_words(
            experiment([row("plain compiled", 126.0, 20.0), row("fastest", ms, compile_s)])
        )  # fmt: skip

    assert "16 s longer, paid back after 1,000 steps" in said(110.0, 36.0)
    assert "ahead at once" in said(110.0, 15.0)
    assert "no faster" in said(126.0, 36.0)
    assert "Both presets" in words.break_even_words(experiment([row("fastest", 1.0, 1.0)]))


def test_cells_hold_medians_and_rates():
    row = {"step_ms": [100.0, 125.0, 125.0], "tokens_per_step": 65_536, "peak_reserved_bytes": 2**30}
    assert (words.step_ms(row), words.rate(row), words.gib(row)) == ("125.0", "524,288", "1.00")


CEILINGS = {
    "matmul_flops_per_s": {name: 800e12 for name in ("float32", "tf32", "bfloat16", "float16")},
    "copy_bytes_per_s": 4e12, "utc": "2026-11-29T12:00:00Z",
}  # fmt: skip


def kernels(candidate, recipe, **ms):
    """A row of kernels named as profilers name them, with milliseconds for each."""
    names = {"matmul": "nvjet_sm90_tst_256x128", "loss": "triton_red_fused__log_softmax_backward",
             "fused": "gelu_forward_kernel", "norm": "residual_norm_forward_kernel",
             "other": "Memset (Device)"}  # fmt: skip
    found = [{"name": names[key], "kind": "fused", "calls": 1.0, "time_us": 1e3 * value} for key, value in ms.items()]
    return {"candidate": candidate, "recipe": recipe.as_dict(), "kernels": found, "busy_ms": sum(ms.values())}


STEPS = [kernels("fast", FASTEST, matmul=60.0, loss=5.0, fused=7.0, norm=5.0, other=1.0),
         kernels("plain", PLAIN_COMPILED, matmul=60.5, loss=9.0, fused=9.0, norm=5.5, other=3.0)]  # fmt: skip


def test_a_kernel_belongs_to_the_part_that_its_name_says():
    parts = {
        "triton_red_fused__log_softmax__unsafe_view": "loss", "cross_entropy_kernel": "loss",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop": "attention", "gelu_backward_kernel": "GELU and its bias",
        "triton_red_fused_gelu_gelu_backward_sum_view_6": "GELU and its bias", "adamw_kernel": "optimizer",
        "cublasLt::splitKreduce_kernel<32, 16>": "matmuls", "join_kernel": "q/k/v gradients joined",
        "triton_per_fused_add_embedding_dense_backward_native_layer_norm": "embeddings",
        "triton_per_fused_add_native_layer_norm_view_4": "residuals and norms", "Memset (Device)": tables.REST,
    }  # fmt: skip
    assert {name: tables.part_of(name) for name in parts} == parts


def test_a_step_is_shown_part_by_part_before_and_after():
    (table,) = tables.parts_tables(experiment(STEPS))
    assert table.columns == ("part", "plain", "fast", "first less last", "fewest bytes")
    lines = {line[0]: line[1:] for line in table.cells}
    assert lines["loss"][:3] == ("9.00", "5.00", "+4.00") and lines["all kernels"][:3] == ("87.0", "78.0", "+9.0")
    said = tables.parts_sentence(experiment(STEPS))
    assert "87.0 ms of a step with plain and 78.0 with fast: 4.0 ms in loss, 2.0 ms in" in said
    assert "840,205 tokens a second; 76.9 % of it is matmuls" in said
    assert tables.parts_tables(experiment([])) == [] and "needed" in tables.parts_sentence(experiment(STEPS[:1]))
    figure = parts_of_steps(experiment(STEPS))
    assert "plain: matmuls 60.5, attention 0.00, loss 9.00" in alt_text(figure)
    assert svg_text(figure) == svg_text(parts_of_steps(experiment(STEPS)))


def test_the_fewest_bytes_are_those_of_the_predictions():
    unit = 65_536 * 768 * 2 / 3.8e12 * 1e3
    found = tables.fewest_bytes_ms(FASTEST)
    assert found["residuals and norms"] == pytest.approx(200 * unit) and found["GELU and its bias"] == pytest.approx(
        240 * unit
    )
    assert found["loss"] == pytest.approx(2 * 65_536 * 50_304 * 2 / 3.8e12 * 1e3)


def test_goals_are_met_or_not_by_the_fastest_kept_rung():
    def ladder(ms, gib):
        sizes = {"ladder": "beyond", "ceilings": CEILINGS}
        return [
            make_record("plain_compiled", step_ms=120.0, peak_reserved_bytes=30 * 2**30, **sizes),
            make_record("one_pass_adamw", step_ms=ms, peak_reserved_bytes=gib * 2**30, **sizes),
            make_record("double_batch", step_ms=200.0, **sizes),  # faster, but no rung that is kept
        ]

    reached = {line[0]: line[1:] for line in tables.goals_table(ladder(108.0, 25)).cells}
    assert reached["tokens a second"] == ("600,000", "606,815", "yes")
    assert reached["nominal FLOPs over the machine's own matmul rate"] == ("0.65", "0.648", "no")  # 854.6 MFLOP a token
    assert reached["GiB reserved, no more than plain compiled"] == ("30.0", "25.0", "yes")
    assert reached["ms saved for 65,536 tokens, as predicted"][:2] == ("14.2", "12.0")
    missed = {line[0]: line[1:] for line in tables.goals_table(ladder(110.0, 31)).cells}
    assert missed["tokens a second"][2] == missed["GiB reserved, no more than plain compiled"][2] == "no"
    assert tables.goals_table([]) is None


def test_goals_are_said_as_a_time_and_as_the_rate_of_the_machine():
    found = replace(experiment(STEPS), ceilings=CEILINGS)
    said = tables.goal_words(found)
    assert "109.2 ms for 65,536 tokens" in said and "800 TFLOP/s" in said and "608,4" in said
    assert "TFLOP/s" not in tables.goal_words(experiment(STEPS))


def test_the_budget_is_the_sum_of_the_quickest_forms():
    rows = [
        {"part": "head", "way": "forward", "variant": name, "time_us": [us]} for name, us in (("a", 9e3), ("b", 8e3))
    ]
    (table,) = tables.budget_tables(experiment(rows))
    lines = {line[0]: line[1:] for line in table.cells}
    assert lines["head"] == ("8.00", "100.0 %") and lines["sum"] == ("8.0", "8,192,000 tokens/s")
    assert tables.budget_tables(experiment([])) == []
