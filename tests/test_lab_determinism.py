"""The rows of the lab on a toy; the process of its own is replaced by a call, and fails for real."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from speedlab.device import capabilities
from speedlab.labs import determinism as lab
from speedlab.measuring.workbench import Workbench
from speedlab.profile import SMOKE


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(SMOKE, capabilities())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "STEPS", 2)
    monkeypatch.setattr(lab, "REPEATS", 1)
    monkeypatch.setattr(lab, "TIMED_STEPS", 2)


def test_rungs_operations_warnings_and_costs_are_rows(bench: Workbench, small: None, monkeypatch) -> None:
    asked, real_run = [], subprocess.run

    def run(command, **options):
        if command[:3] != [sys.executable, "-m", "speedlab.labs.determinism"]:
            return real_run(command, **options)  # git, asked for the commit
        asked.append(options["env"]["CUBLAS_WORKSPACE_CONFIG"])
        lab.answer(*command[3:5], Path(command[5]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(lab.subprocess, "run", run)
    rows = list(lab.determinism(bench, lambda text: None))
    json.dumps(rows, allow_nan=False)
    rungs = {row["rung"]: row for row in rows if row["what"] == "rung" and row["mode"] == "ordinary"}
    assert rungs["baseline"]["losses_equal"] and rungs["baseline"]["weights_equal"]
    assert rungs["flash_attention"]["losses_equal"] and rungs["batch_size"]["status"] == "not_applicable"
    costs = {(row["rung"], row["mode"]): row for row in rows if row["what"] == "cost"}
    assert set(costs) == {("flash_attention", "ordinary"), ("flash_attention", "deterministic")}
    assert all(len(row["step_ms"]) == 2 for row in costs.values())
    assert {row["rung"] for row in rows if row["what"] == "warning"} == set(lab.WARNED)
    assert next(row for row in rows if row.get("operation") == "LayerNorm")["different"] == 0
    assert asked == [":4096:8"]


def test_a_process_that_fails_is_a_row_with_its_last_line(bench: Workbench, small: None, monkeypatch) -> None:
    monkeypatch.setattr(lab.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="deterministic mode failed: no message"):
        lab.in_own_process(bench)
    monkeypatch.setattr(lab, "rung_rows", lambda *args, **options: iter(()))
    monkeypatch.setattr(lab, "warnings_of", lambda bench, key: [])
    last = list(lab.determinism(bench, lambda text: None))[-1]
    assert last["what"] == "cost" and last["status"] == "error" and "deterministic mode failed" in last["reason"]
