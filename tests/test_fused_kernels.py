"""Triton's kernels against float64: interpreted on a CPU where Triton is installed, compiled where there is a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
# A stored value keeps 24 or 8 bits; a step of it, and a few more bits for sums and fast exponentials.
LARGEST_ERROR = {"float32": 5e-6, "bfloat16": 2.0**-7}  # the interpreter cuts off where a GPU rounds


def errors(device: str) -> dict[str, dict[str, float]]:
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {})
    worker = Path(__file__).parent / "fused_worker.py"
    ran = subprocess.run(
        [sys.executable, str(worker), device], env=environment, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed; PyTorch for CUDA brings it")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_kernel_gives_what_its_formula_gives(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("compiled kernels need a GPU")
    found = errors(device)
    assert len(found) == 17
    for what, values in found.items():
        for name, value in values.items():
            assert value <= LARGEST_ERROR["bfloat16" if "bfloat16" in what else "float32"], (what, name, value)
