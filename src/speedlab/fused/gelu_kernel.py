"""Bias and GELU as one Triton kernel, and its backward pass together with the column sums that are the bias gradient.

Only `gelu` calls it. N rows (tokens), F columns (inner width of the feed-forward part).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# 8 values of 2 bytes are one 16-byte access of a thread; 4 warps then span 1,024 columns.
BLOCK_COLUMNS = 1024
FORWARD_ROWS = 4
BACKWARD_ROWS = 2  # at a time; one program walks down ROWS_PER_PROGRAM of them and keeps its column sums
ROWS_PER_PROGRAM = 128
NUM_WARPS = 4
STAGES = 2  # rows that are on their way while others are worked on

TWO_ROOT_2_OVER_PI = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.044715)


@triton.jit
def gelu_forward_kernel(
    x_ptr, bias_ptr, h_ptr, num_rows, NUM_COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """h = z sigmoid(2 sqrt(2/pi) (z + 0.044715 z^3)) with z = x + bias: the tanh form, since (1 + tanh u)/2 is
    sigmoid(2u), with two fast instructions instead of a call of tanh and without its cancellation near -1."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows[:, None] < num_rows) & (columns[None, :] < NUM_COLUMNS)
    at = rows[:, None].to(tl.int64) * NUM_COLUMNS + columns[None, :]
    bias = tl.load(bias_ptr + columns, mask=columns < NUM_COLUMNS, other=0.0).to(tl.float32)
    z = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) + bias[None, :]
    h = z / (1.0 + tl.exp(-TWO_ROOT_2_OVER_PI * (z + CUBIC * z * z * z)))
    tl.store(h_ptr + at, h.to(h_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gelu_backward_kernel(
    dh_ptr, x_ptr, bias_ptr, dx_ptr, sums_ptr, num_rows,
    NUM_COLUMNS: tl.constexpr, ROWS: tl.constexpr, ROWS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """dx = dh gelu'(x + bias); sums[program] = column sums of its rows of dx, in float32."""
    first = tl.program_id(0) * ROWS_PER_PROGRAM
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < NUM_COLUMNS
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in tl.range(0, ROWS_PER_PROGRAM, ROWS, num_stages=STAGES):
        rows = first + start + tl.arange(0, ROWS)
        mask = (rows[:, None] < num_rows) & inside[None, :]
        at = rows[:, None].to(tl.int64) * NUM_COLUMNS + columns[None, :]
        z = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) + bias[None, :]
        dh = tl.load(dh_ptr + at, mask=mask, other=0.0).to(tl.float32)
        share = 1.0 / (1.0 + tl.exp(-TWO_ROOT_2_OVER_PI * (z + CUBIC * z * z * z)))
        slope = TWO_ROOT_2_OVER_PI * (1.0 + 3.0 * CUBIC * z * z)
        dx = dh * share * (1.0 + z * (1.0 - share) * slope)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        sums += dx
    total = tl.sum(sums, axis=0)
    tl.store(sums_ptr + tl.program_id(0).to(tl.int64) * NUM_COLUMNS + columns, total, mask=inside)


def forward(x_NF: Tensor, bias_F: Tensor) -> Tensor:
    h_NF = torch.empty_like(x_NF)
    rows, columns = x_NF.shape
    block = min(BLOCK_COLUMNS, triton.next_power_of_2(columns))
    grid = (triton.cdiv(rows, FORWARD_ROWS), triton.cdiv(columns, block))
    gelu_forward_kernel[grid](
        x_NF, bias_F, h_NF, rows, NUM_COLUMNS=columns, ROWS=FORWARD_ROWS, BLOCK=block, num_warps=NUM_WARPS
    )
    return h_NF


def backward(dh_NF: Tensor, x_NF: Tensor, bias_F: Tensor) -> tuple[Tensor, Tensor]:
    """(gradient of x (N, F), gradient of the bias (F,) in float32)."""
    dx_NF = torch.empty_like(x_NF)
    rows, columns = x_NF.shape
    block = min(BLOCK_COLUMNS, triton.next_power_of_2(columns))
    programs = triton.cdiv(rows, ROWS_PER_PROGRAM)
    sums = torch.empty(programs, columns, dtype=torch.float32, device=x_NF.device)
    gelu_backward_kernel[(programs, triton.cdiv(columns, block))](
        dh_NF, x_NF, bias_F, dx_NF, sums, rows, NUM_COLUMNS=columns, ROWS=BACKWARD_ROWS,
        ROWS_PER_PROGRAM=ROWS_PER_PROGRAM, BLOCK=block, STAGES=STAGES, num_warps=NUM_WARPS,
    )  # fmt: skip
    return dx_NF, sums.sum(dim=0)
