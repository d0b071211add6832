"""The machine's own ceilings: the matmul rate of each number format and the copy bandwidth, measured here and now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import Any

import torch

from speedlab.device import Capabilities
from speedlab.measuring.memory import free_everything
from speedlab.measuring.stopwatch import Stopwatch, synchronize
from speedlab.recipe import Recipe
from speedlab.training.precision import matmul_precision

# Formats by the type of the operands and the float32 switch.
FORMATS = {
    "float32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "bfloat16": (torch.bfloat16, "highest"),
    "float16": (torch.float16, "highest"),
}


def measure_ceilings(machine: Capabilities, *, repeats: int = 20) -> dict[str, Any]:
    """FLOP/s of a square matmul on random data per format that the machine has units for, and copy bytes/s.

    The median of `repeats`, at most five on a CPU. A copy counts its bytes twice, once read and once written. About
    2 s on a fast GPU.
    """
    device = torch.device(machine.device_type)
    on_gpu = device.type == "cuda"
    side, copy_bytes = (8192, 2**30) if on_gpu else (512, 2**26)
    repeats = repeats if on_gpu else min(repeats, 5)
    formats = ["float32"]
    if on_gpu:
        formats += ["tf32"] * machine.tf32 + ["bfloat16"] * machine.native_bfloat16 + ["float16"]
    rates = {name: 2.0 * side**3 / _matmul_seconds(name, side, device, repeats) for name in formats}
    source = torch.empty(copy_bytes // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    seconds = _median_seconds(partial(target.copy_, source), device, repeats)
    del source, target
    free_everything(device)
    return {
        "matmul_flops_per_s": rates,
        "copy_bytes_per_s": 2.0 * copy_bytes / seconds,
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _matmul_seconds(name: str, side: int, device: torch.device, repeats: int) -> float:
    dtype, switch = FORMATS[name]
    one = torch.randn(side, side, dtype=torch.float32, device=device).to(dtype)
    two = torch.randn(side, side, dtype=torch.float32, device=device).to(dtype)
    with matmul_precision(Recipe(matmul_precision=switch)):
        return _median_seconds(lambda: one @ two, device, repeats)


def _median_seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    for _ in range(3):
        call()
    synchronize(device)
    watch = Stopwatch(device)
    watch.mark()
    for _ in range(repeats):
        call()
        watch.mark()
    return median(watch.step_ms()) / 1e3
