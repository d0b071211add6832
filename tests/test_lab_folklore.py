"""The experiments behind claims: on a toy, with the faults that they are about caused for real."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from speedlab.device import capabilities
from speedlab.labs import folklore_host as host
from speedlab.labs import folklore_micro as micro
from speedlab.labs import folklore_training as training
from speedlab.labs.ddp_errors import CASES, error_of
from speedlab.measuring import power
from speedlab.measuring.workbench import Workbench
from speedlab.profile import SMOKE


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(SMOKE, capabilities())


def quiet(text: str) -> None:
    pass


def test_single_operations_are_rows_on_a_cpu_too(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "REPEATS", 2)
    rows = list(micro.folklore_micro(bench, quiet))
    json.dumps(rows, allow_nan=False)
    assert [row for row in rows if row["status"] != "measured"] == []
    updates = {row["implementation"]: row for row in rows if row["what"] == "optimizer"}
    assert set(updates) == set(micro.IMPLEMENTATIONS) and len({row["weights"] for row in updates.values()}) == 1
    assert all(len(row["update_ms"]) == 2 for row in updates.values())
    launches = {row["implementation"]: row["launches"] for row in rows if row["what"] == "launches"}
    assert launches["fused"] < launches["for_loop"]
    answers = {row["operation"]: row["answers_in"] for row in rows if row["what"] == "autocast"}
    assert answers["linear"] == "bfloat16" and answers["residual addition"] == "float32"
    assert not [row for row in rows if row["what"] == "utilization"], "a CPU has no such counter"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_in_chunks_has_the_loss_and_gradients_of_all_logits_at_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 8, generator=generator).to(dtype) for rows in (37, 50))
    targets = torch.randint(50, (37,), generator=generator)
    exact = micro.apart(x.double(), weight.double(), targets)
    found = micro.in_chunks(x, weight, targets, chunk_rows=10)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2  # of the format that gradients are rounded to
    for one, two in zip(exact, found, strict=True):
        assert one.shape == two.shape and torch.allclose(one, two.double(), atol=tolerance, rtol=tolerance)


def test_the_busy_counter_is_read_at_the_end_of_the_work(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "BUSY_S", 0.01)
    monkeypatch.setattr(power, "busy_percent", lambda device: 98)
    row = micro._busy(bench, micro._one_number)
    assert row["busy_percent"] == 98 and row["steps"] >= 1 and row["additions_per_step"] == 1_000
    monkeypatch.setattr(power, "busy_percent", lambda device: None)
    with pytest.raises(micro.NotAvailable, match="how busy"):
        micro._busy(bench, micro._one_number)


def test_nvml_is_asked_for_the_card_by_its_id_and_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    fake = SimpleNamespace(
        nvmlInit=lambda: opened.append(1), nvmlShutdown=opened.pop,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-8d41": "card"}[uuid],
        nvmlDeviceGetUtilizationRates=lambda card: SimpleNamespace(gpu=97, memory=40),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="8d41"))
    assert power.busy_percent(torch.device("cuda", 0)) == 97 and opened == []
    assert power.busy_percent(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="other"))
    assert power.busy_percent(torch.device("cuda", 0)) is None and opened == []


def test_padded_logits_take_part_in_the_loss_or_not(bench: Workbench) -> None:
    rows = {row.get("padded", row.get("kind")): row for row in training.folklore_training(bench, quiet)}
    json.dumps(rows, allow_nan=False)
    assert [row for row in rows.values() if row["status"] != "measured"] == []
    counted, left_out, drawn = (rows[name] for name in training.PADDED)
    assert counted["padded_ids"] == 1_024 - 1_001
    assert counted["true_losses"][0] == left_out["true_losses"][0], "the same start"
    assert counted["true_losses"][-1] != left_out["true_losses"][-1]
    # Rows of zeros give logits of zero: each padded id is as likely as any other of an untrained model.
    assert counted["padded_probability"]["1"] == pytest.approx(23 / 1_024, rel=0.02)
    assert counted["padded_probability"]["4"] < counted["padded_probability"]["1"]
    assert drawn["padded_probability"]["1"] != counted["padded_probability"]["1"]
    assert {rows[kind]["seed"] for kind in ("plain", "sdpa_flash")} == {1}
    assert rows["plain"]["validation_loss"] == pytest.approx(rows["sdpa_flash"]["validation_loss"], abs=0.02)


@pytest.mark.skipif(not host.PROCESS_MEMORY.is_file(), reason="needs Linux")
def test_a_list_grows_in_a_loader_process_and_an_array_does_not() -> None:
    grown = {}
    for held in host.HOLDERS:
        row = host._worker_bytes(held, True, 100_000)
        assert row["processes"] == 1 and len(row["last_bytes"]) == host.EPOCHS
        grown[held] = row["last_bytes"][-1] - row["first_bytes"][0]
    assert grown["a list"] > 4 * 2**20 > 2 * grown["an array"]  # 100,000 strings of some 65 bytes


@pytest.mark.parametrize("persistent", [True, False])
def test_processes_are_kept_or_started_anew(persistent: bool) -> None:
    assert host._worker_bytes("an array", persistent, 1_000)["processes"] == (1 if persistent else host.EPOCHS)


@pytest.fixture(scope="module")
def cases() -> dict:
    return {row["case"]: row["error"] for row in host.ddp_cases()}


def test_ddp_complains_of_unused_weights_and_reentrant_checkpoints_and_not_of_cat(cases: dict) -> None:
    assert set(cases) == set(CASES)
    assert cases["torch.cat"] is None and cases["layer checkpointed twice, non-reentrant"] is None
    assert "Expected to have finished reduction" in cases["unused layer"]
    assert cases["unused layer, find_unused_parameters"] is None
    assert "ready only once" in cases["layer checkpointed twice, reentrant"]


def test_a_case_process_that_fails_is_one_line(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "HOLDERS", {})
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\n\nRuntimeError: no gloo\n")
    monkeypatch.setattr(host.subprocess, "run", lambda *args, **options: failed)
    [row] = host.folklore_host(bench, quiet)
    assert row["status"] == "error" and row["reason"].endswith("RuntimeError: no gloo")
    with pytest.raises(ValueError, match="process group"):
        error_of(CASES["torch.cat"][0], {})
