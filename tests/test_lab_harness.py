"""What the harness costs: on blocks whose times are known, then for real on a toy."""

import pytest

from speedlab.device import capabilities
from speedlab.labs import harness
from speedlab.labs.harness import harness_overhead, overhead
from speedlab.measuring.workbench import Workbench
from speedlab.profile import SMOKE


def blocks(on_ms: list[float], off_ms: list[float]) -> list[dict]:
    rows = []
    for pair, (on, off) in enumerate(zip(on_ms, off_ms, strict=True)):
        for which, block_ms in (("on", on), ("off", off)):
            rows.append({"harness": which, "pair": pair, "steps": 10, "block_ms": block_ms, "status": "measured"})
    return rows


def test_the_overhead_is_the_ratio_of_all_blocks_and_its_interval_holds_it() -> None:
    on, off = [101.0, 102.0, 103.0, 102.0] * 3, [100.0, 101.0, 99.0, 100.0] * 3
    found = overhead(blocks(on, off))
    assert found.share == pytest.approx(0.02) and 0.01 < found.low < 0.02 < found.high < 0.03
    assert found.idle_share is None
    assert overhead(blocks(on, off)) == found, "the same rows give the same interval"
    same = overhead(blocks(off, off))
    assert (same.share, same.low, same.high) == (0.0, 0.0, 0.0)


def test_a_drift_that_both_share_is_no_overhead_but_an_interval_shows_what_they_do_not() -> None:
    drifting = [100.0 + pair for pair in range(12)]
    assert overhead(blocks([1.01 * ms for ms in drifting], drifting)).share == pytest.approx(0.01)
    noisy = overhead(blocks([90.0, 110.0] * 6, [110.0, 90.0] * 6))
    assert noisy.low < 0 < noisy.high


def test_blocks_that_failed_leave_their_pair_out_and_idle_time_stands_apart() -> None:
    rows = blocks([110.0, 500.0], [100.0, 100.0])
    rows[3] = rows[3] | {"status": "error", "reason": "RuntimeError: x"}
    profiled = {"harness": "profiled", "kernel_ms": 9.0, "step_ms": 10.0, "status": "measured"}
    found = overhead([*rows, profiled])
    assert found.share == pytest.approx(0.10) and found.idle_share == pytest.approx(0.10)
    assert overhead(rows[2:]) is None and overhead([]) is None
    overlapping = overhead([*rows, profiled | {"kernel_ms": 11.0}])
    assert overlapping.idle_share == 0.0


def test_a_toy_steps_in_turns_and_both_blocks_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "PAIRS", 2)
    monkeypatch.setattr(harness, "STEPS", 3)
    bench = Workbench(SMOKE, capabilities())
    rows = list(harness_overhead(bench, lambda text: None))
    assert [(row["harness"], row["pair"]) for row in rows] == [("on", 0), ("off", 0), ("off", 1), ("on", 1)]
    assert all(row["status"] == "measured" and row["block_ms"] > 0 and row["steps"] == 3 for row in rows)
    assert overhead(rows) is not None
