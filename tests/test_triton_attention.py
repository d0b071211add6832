"""Triton's attention against the tiled form in float64, which other tests hold against attention written out.

On a GPU the kernels are compiled; elsewhere they run in Triton's interpreter, where that is installed and asked for.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed: PyTorch brings it along on CUDA only", allow_module_level=True)
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU: set TRITON_INTERPRET=1 to run these kernels on the CPU", allow_module_level=True)

from speedlab.errors import BadInput
from speedlab.model.tiled_attention import tiled_attention
from speedlab.model.triton_attention import triton_attention

# Triton 3.5's interpreter turns arrays of one element into numbers, which NumPy 2.4 refuses: take an older one there.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# (batch, query heads, key/value heads, tokens, width, causal)
CASES = {
    "one tile": (1, 2, 2, 16, 16, True),
    "several tiles": (2, 2, 2, 128, 32, True),
    "odd size": (1, 2, 2, 77, 16, True),
    "one token": (1, 1, 1, 1, 16, True),
    "not causal": (1, 2, 2, 77, 16, False),
    "grouped queries": (2, 4, 2, 70, 16, True),
    "one key head": (1, 4, 1, 70, 64, True),
    "wide heads": (1, 1, 1, 40, 128, True),
}
# Products of 16-bit numbers are exact; what is rounded are the weights, and what goes in and out.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}
if DEVICE.type == "cuda":  # the interpreter computes with NumPy, which has no bfloat16
    TOLERANCES[torch.bfloat16] = 3e-2


def inputs(case: tuple, dtype: torch.dtype, layout: str = "heads first") -> list[torch.Tensor]:
    batch, heads, groups, tokens, width, _ = case
    found = []
    for seed, count in enumerate((heads, groups, groups)):
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, count, tokens, width) if layout == "heads first" else (batch, tokens, count, width)
        x = torch.randn(shape, generator=generator).to(DEVICE, dtype)
        found.append((x if layout == "heads first" else x.transpose(1, 2)).requires_grad_())
    return found


def compare(found: list[torch.Tensor], causal: bool, tolerance: float) -> None:
    exact = [x.detach().double().requires_grad_() for x in found]
    output = triton_attention(*found, causal=causal)
    expected = tiled_attention(*exact, causal=causal)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9)).to(DEVICE, output.dtype)
    one = torch.autograd.grad(output, found, weights)
    two = torch.autograd.grad(expected, exact, weights.double())
    assert output.dtype == found[0].dtype
    for got, true in ((output, expected), *zip(one, two, strict=True)):
        # Relative to the size of the tensor: sums of a row are rounded at the size of their terms.
        assert (got.double() - true).abs().max() <= tolerance * max(1.0, true.abs().max().item())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_output_and_gradients(case: tuple, dtype: torch.dtype) -> None:
    compare(inputs(case, dtype), case[-1], TOLERANCES[dtype])


def test_both_layouts_in_memory_give_the_same() -> None:
    compare(inputs(CASES["grouped queries"], torch.float32, "tokens first"), True, TOLERANCES[torch.float32])


def test_large_scores_stay_finite() -> None:
    q, k, v = (x.detach() for x in inputs(CASES["odd size"], torch.float32))
    output = triton_attention(60 * q, 60 * k, v)
    expected = tiled_attention(60 * q.double(), 60 * k.double(), v.double())
    torch.testing.assert_close(output.double(), expected, rtol=1e-2, atol=1e-2)


def test_a_width_without_a_tile_is_refused() -> None:
    q = torch.zeros(1, 1, 4, 24, device=DEVICE)
    with pytest.raises(BadInput, match="head width 24"):
        triton_attention(q, q, q)
