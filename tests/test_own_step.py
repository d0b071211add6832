"""`speedlab.measure` on a training loop of plain PyTorch, and on steps whose time and memory are known."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import speedlab
from speedlab.errors import BadInput, NotAvailable
from speedlab.measuring import variant


def test_a_loop_of_plain_pytorch_is_measured_and_trains_as_often_as_promised() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(16, 32), torch.randint(8, (16,))
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    found = speedlab.measure(step, tokens_per_step=16, steps=6, warmup_steps=2, device="cpu")
    assert len(losses) == 1 + 2 + 6 + 2 and losses[-1] < losses[0]
    assert len(found.step_ms) == 6 and min(found.step_ms) > 0 and found.first_step_s > 0
    assert found.tokens_per_s == pytest.approx(16e3 / sorted(found.step_ms)[2], rel=0.5)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes, found.energy_j) == (None, None, None)
    assert any("mm" in kernel["name"] for kernel in found.kernels)
    values = json.loads(found.to_json())
    assert values == json.loads(json.dumps(found.as_dict()))
    assert {"schema", "method", "step_ms", "tokens_per_step", "kernels", "machine", "utc"} <= set(values)
    assert "tokens/s: a step takes" in str(found)


def test_speed_is_tokens_over_the_median_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    samples = [9.0, 10.0, 10.0, 11.0, 500.0]  # one slow step moves no median
    monkeypatch.setattr(variant, "time_steps", lambda step, batches, device, steps, watcher: samples)
    found = speedlab.measure(lambda: calls.append(1), tokens_per_step=1_000, steps=5, kernels=False, device="cpu")
    assert found.tokens_per_s == pytest.approx(100_000.0) and found.kernels == []
    assert len(calls) == 1 + 5


def test_memory_and_energy_are_shown_where_a_card_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from speedlab.measuring import memory, power

    class Watcher:
        energy_j, notes = 5.0, ["clocks throttled"]
        __enter__ = __exit__ = lambda *_: None

    monkeypatch.setattr(
        memory, "read_peak", lambda device: SimpleNamespace(allocated_bytes=2**30, reserved_bytes=2**31)
    )
    monkeypatch.setattr(power, "watch", lambda device: Watcher())
    text = str(speedlab.measure(lambda: None, tokens_per_step=1_000, steps=5, kernels=False, device="cpu"))
    assert "2.00 GiB reserved, 1.00 GiB of it filled" in text
    assert "energy: 1000 J per million" in text and text.endswith("clocks throttled")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"step": None, "tokens_per_step": 1}, "step is None: give a function without arguments"),
        ({"step": int, "tokens_per_step": 0}, "tokens_per_step is 0: it must be a whole number of at least 1"),
        ({"step": int, "tokens_per_step": 1.5}, "tokens_per_step is 1.5"),
        ({"step": int, "tokens_per_step": 1, "steps": 0}, "steps is 0"),
        ({"step": int, "tokens_per_step": 1, "warmup_steps": -1}, "warmup_steps is -1"),
        ({"step": int, "tokens_per_step": 1, "device": "tpu"}, "device is 'tpu': choose cpu or cuda"),
        ({"step": int, "tokens_per_step": 1, "device": "cuda:x"}, "device is 'cuda:x'"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_before_anything_runs(arguments: dict, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        speedlab.measure(arguments.pop("step"), **arguments)


def test_a_gpu_that_is_not_there_is_named_and_a_torch_device_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(NotAvailable, match="device is 'cuda:3', but PyTorch sees 1 GPU"):
        speedlab.measure(int, tokens_per_step=1, device="cuda:3")
    found = speedlab.measure(int, tokens_per_step=1, steps=1, kernels=False, device=torch.device("cpu"))
    assert len(found.step_ms) == 1


def test_what_the_step_raises_passes_through() -> None:
    def step() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        speedlab.measure(step, tokens_per_step=1, device="cpu")


def test_importing_the_package_loads_nothing_heavy_and_other_names_are_unknown() -> None:
    code = (
        "import sys, speedlab\nassert 'torch' not in sys.modules\nassert callable(speedlab.measure)\n"
        "print([name for name in ('torch', 'matplotlib', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = speedlab.nonsense
