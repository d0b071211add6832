"""Each row of the report is recomputed here by hand from the samples it came from."""

from __future__ import annotations

import subprocess
import sys

import pytest
from records_helper import MACHINE_H200, MATMUL_FLOPS_PER_S, make_record, skipped_record

from speedlab.errors import BadInput
from speedlab.ladder import NINE_STEPS
from speedlab.records import rows, store

DESIGN_KEYS = {
    "device", "ladder", "rung", "status", "reason", "tokens_per_s", "tokens_per_s_q1", "tokens_per_s_q3",
    "step_ms_median", "peak_allocated_bytes", "peak_reserved_bytes", "compile_s", "speedup_step", "speedup_total",
    "mfu", "ceiling_fraction", "contract", "contract_verdict", "dtype", "substitutions", "attention_backend",
    "world_size", "scaling", "session", "machine_id", "method", "commit", "torch",
}  # fmt: skip


def by_rung(*records):
    return {row["rung"]: row for row in rows.report_rows(records)}


def test_ratios_stand_with_their_intervals_and_drift_with_its_sign():
    table = by_rung(make_record(drift_step_ms=[245.0] * 40), make_record("causal_mask", step_ms=125.0))
    row = table["causal_mask"]
    assert row["speedup_total_low"] < row["speedup_total"] == 2.0 < row["speedup_total_high"]
    assert (row["speedup_step_low"], row["speedup_step_high"]) == (row["speedup_total_low"], row["speedup_total_high"])
    assert table["baseline"]["drift"] == pytest.approx(-0.02) and row["drift"] is None
    assert table["baseline"]["speedup_step_low"] is None


def test_every_designed_key_is_in_every_row_measured_or_not():
    table = rows.report_rows([make_record(), skipped_record("bfloat16")])
    assert len(table) == 2
    for row in table:
        assert set(row) >= DESIGN_KEYS
    assert list(table[0]) == list(table[1])


def test_ratios_are_over_the_rung_below_and_over_the_first():
    table = by_rung(
        make_record("tensor_cores", step_ms=100.0),
        make_record("baseline", step_ms=250.0),
        make_record("causal_mask", step_ms=249.9),
    )
    assert list(table) == ["baseline", "causal_mask", "tensor_cores"]
    assert table["baseline"]["speedup_step"] is None and table["baseline"]["speedup_total"] == pytest.approx(1.0)
    assert table["tensor_cores"]["before"] == "causal_mask"
    assert table["tensor_cores"]["speedup_step"] == pytest.approx(2.499)
    assert table["tensor_cores"]["speedup_total"] == pytest.approx(2.5)
    assert table["tensor_cores"]["speedup_step_clear"] and not table["causal_mask"]["speedup_step_clear"]
    assert table["causal_mask"]["tokens_per_s_q1"] < table["causal_mask"]["tokens_per_s"]
    assert table["causal_mask"]["tokens_per_s"] < table["causal_mask"]["tokens_per_s_q3"]


def test_a_rung_that_could_not_be_applied_is_stepped_over_but_a_failed_or_missing_one_is_not():
    start, after = make_record("causal_mask", step_ms=250.0), make_record("fused_adamw", step_ms=200.0)
    stepped = by_rung(start, skipped_record("tensor_cores", status="unavailable"), after)["fused_adamw"]
    assert stepped["before"] == "causal_mask" and stepped["speedup_step"] == pytest.approx(1.25)
    failed = skipped_record("tensor_cores", status="out_of_memory")
    assert by_rung(start, failed, after)["fused_adamw"]["speedup_step"] is None
    assert by_rung(start, after)["fused_adamw"]["speedup_step"] is None
    assert by_rung(start, after)["fused_adamw"]["speedup_total"] is None


def test_a_row_that_is_not_stacked_is_not_what_the_next_one_is_compared_with():
    keys = ("bfloat16_autocast", "torch_compile", "torch_compile_max_autotune", "flash_attention")
    table = by_rung(*(make_record(key, ladder="six-steps", step_ms=100.0 - i) for i, key in enumerate(keys)))
    assert table["torch_compile_max_autotune"]["before"] == "torch_compile"
    assert table["flash_attention"]["before"] == "torch_compile"


def test_the_ladder_of_a_derived_experiment_says_itself_what_came_before():
    base = make_record("baseline").to_dict() | {"ladder": "alone"}
    alone = make_record("bfloat16", step_ms=125.0).to_dict() | {
        "ladder": "alone",
        "contract_detail": {"before": "baseline"},
    }
    table = by_rung(*(rows.Record.from_dict(values) for values in (base, alone)))
    assert table["bfloat16"]["before"] == "baseline" and table["bfloat16"]["speedup_step"] == pytest.approx(2.0)


def test_utilization_is_against_the_peak_of_the_format_that_ran():
    tokens_per_s = 8 * 1024 / 0.1
    # 12 layers of 12 x 768^2 weights, the head over 50,257 ids, and 12 L H T for attention.
    flops = 6 * (12 * 12 * 768**2 + 50_257 * 768) + 12 * 12 * 768 * 1024
    table = by_rung(*(make_record(key, step_ms=100.0) for key in ("tensor_cores", "bfloat16")))
    for rung, dtype, peak in (("tensor_cores", "tf32", 494.7e12), ("bfloat16", "bfloat16", 989.5e12)):
        assert table[rung]["dtype"] == dtype
        assert table[rung]["mfu"] == pytest.approx(flops * tokens_per_s / peak)
        assert table[rung]["ceiling_fraction"] == pytest.approx(flops * tokens_per_s / MATMUL_FLOPS_PER_S[dtype])


def test_no_utilization_where_the_peak_is_not_known():
    cpu = by_rung(make_record(device="cpu", step_ms=20.0))["baseline"]
    assert cpu["mfu"] is None and cpu["ceiling_fraction"] is None and cpu["tokens_per_s"] > 0
    foreign = make_record(device="nvidia-unheard-of", machine=MACHINE_H200 | {"gpu": "NVIDIA Unheard-of"})
    assert by_rung(foreign)["baseline"]["mfu"] is None
    turing = make_record("bfloat16", device="tesla-t4", machine=MACHINE_H200 | {"gpu": "Tesla T4"})
    assert by_rung(turing)["bfloat16"]["mfu"] is None  # no bfloat16 units there, so no peak


def test_a_rung_without_a_measurement_has_nulls_and_its_reason():
    row = by_rung(skipped_record("bfloat16"))["bfloat16"]
    absent = (
        "tokens_per_s", "tokens_per_s_q1", "step_ms_median", "peak_reserved_bytes", "speedup_step", "speedup_total",
        "mfu", "ceiling_fraction", "dtype", "attention_backend", "scaling",
    )  # fmt: skip
    assert {row[key] for key in absent} == {None}
    assert row["status"] == "unavailable" and row["reason"] == "no GPU here"


def test_a_failed_contract_shows_no_speed_even_when_there_are_times():
    record = make_record("bfloat16", status="contract_failed", contract_verdict="failed", reason="losses differ by 1")
    assert by_rung(make_record(), record)["bfloat16"]["tokens_per_s"] is None


@pytest.mark.parametrize(
    ("kinds", "backend"),
    [
        ([("attention, flash", 900.0), ("attention, efficient", 10.0)], "flash"),
        ([("attention, math", 5.0), ("matmul, ordinary", 50.0)], "math"),
        ([("matmul, Tensor Cores", 5.0)], None),  # asked for SDPA, but the table shows no attention kernel
    ],
)
def test_the_backend_is_the_one_whose_kernel_ran(kinds, backend):
    kernels = [{"name": kind, "kind": kind, "calls": 1.0, "time_us": time} for kind, time in kinds]
    assert rows.attention_backend(make_record("flash_attention", kernels=kernels)) == backend


def test_written_out_attention_is_plain_and_an_empty_table_says_nothing():
    assert rows.attention_backend(make_record("baseline")) == "plain"
    assert rows.attention_backend(make_record("baseline", kernels=[])) is None


def test_scaling_is_over_the_one_gpu_row_of_the_same_session():
    table = by_rung(
        make_record("data_parallel_1", device="nvidia-h200-x2", step_ms=100.0),
        make_record("data_parallel_2", device="nvidia-h200-x2", step_ms=104.0),
        make_record("batch_size", device="nvidia-h200", step_ms=200.0),
    )
    assert table["data_parallel_1"]["scaling"] == pytest.approx(1.0)
    assert table["data_parallel_2"]["scaling"] == pytest.approx(2 / 1.04)
    assert table["data_parallel_2"]["world_size"] == 2
    assert table["data_parallel_2"]["before"] == "data_parallel_1"
    assert table["batch_size"]["scaling"] is None
    # MFU counts the work of one GPU.
    assert table["data_parallel_2"]["mfu"] == pytest.approx(table["data_parallel_1"]["mfu"] / 1.04)


@pytest.mark.parametrize("changes", [{"session": "other"}, {"machine": MACHINE_H200 | {"machine_id": "f" * 12}}])
def test_one_table_never_mixes_sessions_or_machines(changes):
    with pytest.raises(BadInput, match="one table never mixes"):
        rows.report_rows([make_record(), make_record("tensor_cores", **changes)])


def test_rows_come_without_torch_pandas_numpy_or_pyplot(tmp_path):
    for rung in NINE_STEPS.keys[:6]:
        store.write_record(tmp_path, make_record(rung))
    program = (
        "import sys; from speedlab.records.store import read_records; from speedlab.records.rows import report_rows\n"
        "from speedlab.records.published import published_rows; from speedlab.publishing.tables import render\n"
        "from pathlib import Path; rows = report_rows(read_records(Path(sys.argv[1])))\n"
        "for name in ('table', 'markdown', 'csv', 'json'): assert 'tensor_cores' in render(rows, name)\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'matplotlib', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_prediction_stands_beside_the_measurement():
    row = by_rung(make_record(step_ms=250.0))["baseline"]
    assert row["predicted_step_ms"] == pytest.approx(200.0) and row["over_predicted"] == pytest.approx(1.25)
    assert row["predicted_bound_by"] == "arithmetic"
    without = by_rung(make_record(predicted=None), skipped_record("bfloat16"))
    assert [row["over_predicted"] for row in without.values()] == [None, None]
    assert without["baseline"]["predicted_bound_by"] is None
