"""A record refuses every value that cannot have been measured, and names the field."""

from __future__ import annotations

import dataclasses
import math

import pytest
from data_helper import one_line_error
from records_helper import MACHINE_CPU, MACHINE_H200, make_record, skipped_record, spread

from speedlab.errors import BadInput
from speedlab.records.record import CHECKS, KERNEL_KINDS, METHOD, METHODS, SCHEMA, Record
from speedlab.records.store import committed_root, read_record, record_text

DESIGN_KEYS = [
    "schema", "method", "session", "device", "ladder", "rung", "profile", "status", "reason", "recipe",
    "contract_recipe", "substitutions", "step_ms", "tokens_per_step", "compile_s", "compile_cache",
    "peak_allocated_bytes", "peak_reserved_bytes", "losses", "contract", "contract_verdict", "kernels",
    "ceilings", "predicted", "machine", "corpus", "source_hash", "commit", "utc",
]  # fmt: skip


def test_a_record_survives_the_way_to_json_and_back():
    record = make_record("torch_compile")
    assert Record.from_dict(record.to_dict()) == record


def test_every_field_has_a_check_and_every_designed_key_is_there():
    assert set(CHECKS) == {field.name for field in dataclasses.fields(Record)}
    assert set(DESIGN_KEYS) <= set(make_record().to_dict())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_ms[3]", {"step_ms": [250.0] * 3 + [math.nan] + [250.0] * 30}),
        ("step_ms[0]", {"step_ms": [math.inf] + [250.0] * 30}),
        ("step_ms[0]", {"step_ms": [0.0] + [250.0] * 30}),
        ("step_ms[1]", {"step_ms": [250.0, -1.0] + [250.0] * 30}),
        ("step_ms[0]", {"step_ms": ["250"] + [250.0] * 30}),
        ("step_ms[0]", {"step_ms": [True] + [250.0] * 30}),
        ("step_ms holds 29", {"step_ms": [250.0] * 29}),
        ("step_ms holds 0", {"step_ms": []}),
        ("tokens_per_step", {"tokens_per_step": None}),
        ("tokens_per_step", {"tokens_per_step": 8 * 1024 * 4}),  # a factor of accumulation too many
        ("tokens_per_step", {"tokens_per_step": 8192.0}),
        ("losses[1]", {"losses": [10.9, math.nan]}),
        ("losses[0]", {"losses": [-0.5]}),
        ("compile_s", {"compile_s": -1.0}),
        ("compile_cache", {"compile_cache": "lukewarm"}),
        ("peak_allocated_bytes", {"peak_allocated_bytes": 0}),
        ("peak_allocated_bytes", {"peak_allocated_bytes": 2**34, "peak_reserved_bytes": 2**33}),
        ("peak_reserved_bytes", {"peak_reserved_bytes": 10**12}),
        ("status", {"status": "done"}),
        ("reason", {"status": "error"}),
        ("contract_verdict", {"contract_verdict": "failed"}),
        ("contract_verdict", {"status": "contract_failed", "reason": "losses differ"}),
        ("contract_verdict", {"contract_verdict": "maybe"}),
        ("contract_detail.note[0]", {"contract_detail": {"note": [math.inf]}}),
        ("contract", {"contract": "close"}),
        ("profile", {"profile": "huge"}),
        ("recipe", {"recipe": {"attention": "magic"}}),
        ("recipe", {"recipe": {"colour": "red"}}),
        ("contract_recipe", {"contract_recipe": {"micro_batch": 0}}),
        ("substitutions[0].reason", {"substitutions": [{"field": "precision", "asked": "b", "used": "c"}]}),
        ("kernels[0].kind", {"kernels": [{"name": "k", "kind": "quick", "calls": 1, "time_us": 1.0}]}),
        ("kernels[0].time_us", {"kernels": [{"name": "k", "kind": "other", "calls": 1, "time_us": -1.0}]}),
        (
            "ceilings.launch_s",
            {
                "ceilings": {
                    "matmul_flops_per_s": {}, "copy_bytes_per_s": 1e12, "utc": "2026-01-01T00:00:00Z", "launch_s": 0
                }
            },
        ),
        ("ceilings.copy_bytes_per_s", {"ceilings": {"matmul_flops_per_s": {}, "utc": "2026-01-01T00:00:00Z"}}),
        ("predicted.step_ms", {"predicted": {"step_ms": math.nan, "bound_by": "bytes", "parts_ms": {}}}),
        ("machine.machine_id", {"machine": MACHINE_H200 | {"machine_id": "workstation"}}),
        ("machine.hostname", {"machine": MACHINE_H200 | {"hostname": "workstation"}}),
        ("machine.torch", {"machine": {k: v for k, v in MACHINE_H200.items() if k != "torch"}}),
        ("device", {"machine": MACHINE_CPU}),
        ("device", {"device": "../../outside"}),
        ("rung", {"rung": "a/b"}),
        ("corpus.sha256", {"corpus": {"name": "x", "sha256": "abc", "tokens": 10}}),
        ("recompiles", {"recompiles": -1}),
        ("drift_step_ms[0]", {"drift_step_ms": [math.nan]}),
        ("source_hash", {"source_hash": "a" * 40}),
        ("commit", {"commit": "HEAD"}),
        ("utc", {"utc": "2026-11-29T12:00:00"}),
        ("utc", {"utc": "2026-11-29T12:00:00+02:00"}),
        ("utc", {"utc": "yesterday"}),
        ("session", {"session": "a b"}),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_by_name(field, value):
    with pytest.raises(BadInput) as caught:
        make_record(**value)
    message = str(caught.value)
    assert f"record field {field}" in message
    assert "\n" not in message


def test_a_utilization_above_one_is_refused_and_one_below_is_not():
    # 1/4 ms a step would be 33 M tokens/s: a hundred times what an H200 can do in float32.
    with pytest.raises(BadInput, match=r"field step_ms is impossible: .* MFU of \d+"):
        make_record(step_ms=0.25)
    # The same time on a card that has no data sheet here cannot be judged, and on the CPU neither.
    machine = MACHINE_H200 | {"gpu": "NVIDIA Unheard-of"}
    assert make_record(step_ms=0.25, machine=machine, device="nvidia-unheard-of").status == "measured"
    assert make_record(step_ms=0.25, device="cpu").status == "measured"


def test_cpu_memory_is_null_never_a_number():
    with pytest.raises(BadInput, match=r"record field peak_reserved_bytes .* null on a CPU"):
        make_record(device="cpu", peak_reserved_bytes=4096)


def test_a_cpu_needs_fewer_samples_than_a_gpu():
    assert len(make_record(device="cpu", step_ms=spread(20.0, count=9)).step_ms) == 9


def test_a_row_that_was_not_measured_says_why():
    assert skipped_record("bfloat16").reason == "no GPU here"
    with pytest.raises(BadInput, match="record field reason"):
        skipped_record("bfloat16", reason=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values | {"schema": 2}, "record field schema is 2: it must be 1"),
        (lambda values: values | {"schema": True}, "record field schema is True"),
        (lambda values: values | {"method": 99}, "record field method is 99"),
        (lambda values: values | {"speed": 9}, "record field speed is unknown"),
        (lambda values: {k: v for k, v in values.items() if k != "machine"}, "record field machine is missing"),
        (lambda values: {k: v for k, v in values.items() if k != "schema"}, "record field schema is None"),
        (lambda values: [values], "a record is a JSON object, not list"),
    ],
)
def test_from_dict_names_the_file_and_the_field(change, message):
    with pytest.raises(BadInput) as caught:
        Record.from_dict(change(make_record().to_dict()), source="runs/x.json")
    assert str(caught.value).startswith(f"runs/x.json: {message}")


def test_energy_came_later_and_may_be_absent():
    without = make_record().to_dict()
    assert "energy_j" not in without and Record.from_dict(without).energy_j is None
    assert Record.from_dict(without | {"energy_j": None}).to_dict() == without
    record = make_record(energy_j=1_234.5)
    assert record.to_dict()["energy_j"] == 1_234.5 and Record.from_dict(record.to_dict()) == record
    for wrong in (-1.0, 0, float("nan"), "much", True):
        with pytest.raises(BadInput, match="record field energy_j"):
            make_record(energy_j=wrong)


@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("energy_steps", 200, (0, -1, 2.5, True)),
        ("skipped_steps", {"contract": 1, "window": 0, "curve": 2}, (3, {"window": -1}, {"window": None})),
    ],
)
def test_what_method_2_counts_may_be_absent(field, value, wrong):
    without = make_record().to_dict()
    assert field not in without and getattr(Record.from_dict(without), field) is None
    record = make_record(**{field: value})
    assert record.to_dict()[field] == value and Record.from_dict(record.to_dict()) == record
    for bad in wrong:
        with pytest.raises(BadInput, match=f"record field {field}"):
            make_record(**{field: bad})


def test_records_of_an_older_method_are_read_and_say_which():
    assert Record.from_dict(make_record(method=1).to_dict()).method == 1
    assert make_record().method == METHOD == 2 and set(METHODS) == {1, 2}


def test_every_committed_record_loads_and_is_written_back_as_it_was():
    paths = sorted(path for path in committed_root().glob("*/*/*.json"))
    assert len(paths) > 10
    assert [path for path in paths if record_text(read_record(path)) != path.read_text(encoding="utf-8")] == []


def test_an_absurdly_large_number_is_refused_not_a_crash():
    with pytest.raises(BadInput, match="record field compile_s"):
        make_record(compile_s=10**400)


def test_schema_and_kinds_are_what_the_tables_expect():
    assert SCHEMA == 1
    assert len(set(KERNEL_KINDS)) == len(KERNEL_KINDS)


def test_a_passed_contract_whose_losses_differ_too_much_is_impossible():
    detail = {"before": "baseline", "losses_before": [1.0], "tolerance": 0.01, "largest_difference": 0.02, "note": None}
    with pytest.raises(BadInput, match="contract_verdict"):
        make_record(contract="rounding", contract_verdict="passed", contract_detail=detail)


COMMUNICATION = {
    "backend": "nccl", "gradient_bytes": 4, "ring_bytes": 4.0, "ring_ms": None, "link": [], "timeline": None,
}  # fmt: skip


def test_communication_is_optional_and_what_it_holds_is_checked():
    record = make_record(communication=COMMUNICATION | {"timeline": {"exposed_ms": 1.0, "wait_ms": None}})
    assert Record.from_dict(record.to_dict()) == record
    assert "communication" not in make_record().to_dict()
    for name, value in (
        ("gradient_bytes", 0),
        ("ring_bytes", -1.0),
        ("timeline", {"exposed_ms": "1"}),
        ("backend", ""),
    ):
        one_line_error(BadInput, lambda n=name, v=value: make_record(communication=COMMUNICATION | {n: v}), name)
    one_line_error(BadInput, lambda: make_record(communication=COMMUNICATION | {"rank": 1}), "rank")
