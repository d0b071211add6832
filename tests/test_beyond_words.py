"""Words and tables of the chapter past the ladder, from rows that are made up here."""

from records_helper import MACHINE_H200, make_record

from speedlab.publishing import beyond_words as words
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
    assert "**H200" in text and "| bfloat16 weights, float32 masters | +4.6 | +4.6 | as predicted |" in text
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
    part = {"time_us": [10.0, 30.0, 20.0]}
    assert words.part_us(part) == "20" and words.part_rate(part) == words.NOTHING
    assert words.part_rate(part | {"flops": 14e9}) == "700 TFLOP/s"
    assert words.part_rate(part | {"bytes": 80e6}) == "4.00 TB/s"


def test_kernel_tables_name_the_longest_first():
    rows = [{"name": f"k{n}", "kind": "fused", "calls": 12.0, "time_us": 100.0 - n} for n in range(20)]
    text = words.kernels_table(experiment([{"candidate": "fastest", "kernels": rows, "busy_ms": 104.2}]), most=3)
    assert "fastest: 104.2 ms" in text and "| `k2` | fused | 12 | 98 |" in text and "`k3`" not in text
