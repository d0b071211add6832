"""The gradients of query, key and value copied side by side as one Triton kernel that adds up their columns on the way.

Only `qkv` calls it. N rows (tokens), C columns of each part.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4  # at a time; one program walks down ROWS_PER_PROGRAM of them and keeps its column sums
ROWS_PER_PROGRAM = 128
NUM_WARPS = 4


@triton.jit
def _join_part(
    part_ptr, joined_ptr, sums_ptr, num_rows,
    PART: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ROWS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    first = tl.program_id(0) * ROWS_PER_PROGRAM
    for start in range(0, ROWS_PER_PROGRAM, ROWS):
        rows = first + start + tl.arange(0, ROWS)
        mask = (rows[:, None] < num_rows) & inside[None, :]
        rows = rows[:, None].to(tl.int64)
        values = tl.load(part_ptr + rows * WIDTH + columns[None, :], mask=mask, other=0.0)
        tl.store(joined_ptr + rows * (3 * WIDTH) + PART * WIDTH + columns[None, :], values, mask=mask)
        sums += values.to(tl.float32)
    sums_ptr += tl.program_id(0) * (3 * WIDTH) + PART * WIDTH
    tl.store(sums_ptr + columns, tl.sum(sums, axis=0), mask=inside)


@triton.jit
def join_kernel(
    q_ptr, k_ptr, v_ptr, joined_ptr, sums_ptr, num_rows,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, ROWS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """joined = [q | k | v]; sums[program] = column sums of its rows, in float32."""
    if tl.program_id(1) == 0:
        _join_part(q_ptr, joined_ptr, sums_ptr, num_rows, 0, WIDTH, ROWS, ROWS_PER_PROGRAM, BLOCK)
    elif tl.program_id(1) == 1:
        _join_part(k_ptr, joined_ptr, sums_ptr, num_rows, 1, WIDTH, ROWS, ROWS_PER_PROGRAM, BLOCK)
    else:
        _join_part(v_ptr, joined_ptr, sums_ptr, num_rows, 2, WIDTH, ROWS, ROWS_PER_PROGRAM, BLOCK)


def join(q_NC: Tensor, k_NC: Tensor, v_NC: Tensor) -> tuple[Tensor, Tensor]:
    """([q | k | v] of shape (N, 3C), its column sums (3C,) in float32); the three parts are contiguous."""
    rows, width = q_NC.shape
    joined = torch.empty(rows, 3 * width, dtype=q_NC.dtype, device=q_NC.device)
    programs = triton.cdiv(rows, ROWS_PER_PROGRAM)
    sums = torch.empty(programs, 3 * width, dtype=torch.float32, device=q_NC.device)
    join_kernel[(programs, 3)](
        q_NC, k_NC, v_NC, joined, sums, rows, WIDTH=width, ROWS=ROWS, ROWS_PER_PROGRAM=ROWS_PER_PROGRAM,
        BLOCK=triton.next_power_of_2(width), num_warps=NUM_WARPS,
    )  # fmt: skip
    return joined, sums.sum(dim=0)
