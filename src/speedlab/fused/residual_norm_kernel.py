"""Residual addition, bias and LayerNorm as one Triton kernel, and one for all of their gradients.

Only `residual_norm` calls it. N rows (tokens), C columns (embedding width).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FORWARD_ROWS = 4
BACKWARD_ROWS = 1
NUM_WARPS = 4
STAGES = 3  # rows that are on their way while others are worked on
# Programs of the backward pass on each multiprocessor: enough loads in flight, few enough sums to add in the end.
PROGRAMS_PER_MULTIPROCESSOR = 8


@triton.jit
def residual_norm_forward_kernel(
    x_ptr, delta_ptr, bias_ptr, weight_ptr, shift_ptr, z_ptr, y_ptr, mean_ptr, scale_ptr, num_rows, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """z = x + delta + bias; y = (z - mean(z)) / sqrt(var(z) + eps) * weight + shift. Statistics are of z as stored."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    mask = (rows[:, None] < num_rows) & inside[None, :]
    at = rows[:, None].to(tl.int64) * WIDTH + columns[None, :]
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    z += tl.load(delta_ptr + at, mask=mask, other=0.0).to(tl.float32) + bias[None, :]
    stored = z.to(z_ptr.dtype.element_ty)
    tl.store(z_ptr + at, stored, mask=mask)
    z = stored.to(tl.float32)
    mean = tl.sum(z, axis=1) / WIDTH
    centred = tl.where(inside[None, :], z - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)
    tl.store(mean_ptr + rows, mean, mask=rows < num_rows)
    tl.store(scale_ptr + rows, scale, mask=rows < num_rows)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    y = centred * scale[:, None] * weight[None, :] + shift[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def residual_norm_backward_kernel(
    dz_ptr, dy_ptr, z_ptr, weight_ptr, mean_ptr, scale_ptr, dx_ptr, sums_ptr, num_rows,
    HAS_DZ: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ROWS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """dx = dz + gradient of the norm; sums[program] = column sums for the norm's weight, its shift and the bias."""
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    for_weight = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for_shift = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for_bias = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in tl.range(0, ROWS_PER_PROGRAM, ROWS, num_stages=STAGES):
        rows = tl.program_id(0) * ROWS_PER_PROGRAM + start + tl.arange(0, ROWS)
        there = rows < num_rows
        mask = there[:, None] & inside[None, :]
        at = rows[:, None].to(tl.int64) * WIDTH + columns[None, :]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        z = tl.load(z_ptr + at, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + rows, mask=there, other=0.0)
        scale = tl.load(scale_ptr + rows, mask=there, other=0.0)
        # Asked for before it is needed: the sums along the rows below would hold it up.
        dz = tl.load(dz_ptr + at, mask=mask, other=0.0).to(tl.float32) if HAS_DZ else 0.0
        normed = tl.where(mask, (z - mean[:, None]) * scale[:, None], 0.0)
        weighted = dy * weight[None, :]
        along = tl.sum(weighted * normed, axis=1) / WIDTH
        level = tl.sum(weighted, axis=1) / WIDTH
        dx = (weighted - normed * along[:, None] - level[:, None]) * scale[:, None] + dz
        dx = tl.where(mask, dx, 0.0)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        for_weight += dy * normed
        for_shift += dy
        for_bias += dx
    sums_ptr += tl.program_id(0) * 3 * WIDTH
    tl.store(sums_ptr + columns, tl.sum(for_weight, axis=0), mask=inside)
    tl.store(sums_ptr + WIDTH + columns, tl.sum(for_shift, axis=0), mask=inside)
    tl.store(sums_ptr + 2 * WIDTH + columns, tl.sum(for_bias, axis=0), mask=inside)


def forward(
    x_NC: Tensor, delta_NC: Tensor, bias_C: Tensor, weight_C: Tensor, shift_C: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(z, y, mean (N,), 1/standard deviation (N,))."""
    rows, width = x_NC.shape
    z_NC, y_NC = torch.empty_like(x_NC), torch.empty_like(delta_NC)
    mean_N = torch.empty(rows, dtype=torch.float32, device=x_NC.device)
    scale_N = torch.empty_like(mean_N)
    residual_norm_forward_kernel[(triton.cdiv(rows, FORWARD_ROWS),)](
        x_NC, delta_NC, bias_C, weight_C, shift_C, z_NC, y_NC, mean_N, scale_N, rows, eps,
        WIDTH=width, ROWS=FORWARD_ROWS, BLOCK=triton.next_power_of_2(width), num_warps=NUM_WARPS,
    )  # fmt: skip
    return z_NC, y_NC, mean_N, scale_N


def backward(
    dz_NC: Tensor | None, dy_NC: Tensor, z_NC: Tensor, weight_C: Tensor, mean_N: Tensor, scale_N: Tensor
) -> tuple[Tensor, Tensor]:
    """(gradient of x and of delta (N, C) in the dtype of z, the three column sums (3, C) in float32)."""
    rows, width = z_NC.shape
    dx_NC = torch.empty_like(z_NC)
    pieces = triton.cdiv(rows, _multiprocessors(z_NC) * PROGRAMS_PER_MULTIPROCESSOR)
    rows_per_program = triton.cdiv(pieces, BACKWARD_ROWS) * BACKWARD_ROWS
    programs = triton.cdiv(rows, rows_per_program)
    sums = torch.empty(programs, 3, width, dtype=torch.float32, device=z_NC.device)
    residual_norm_backward_kernel[(programs,)](
        dy_NC if dz_NC is None else dz_NC, dy_NC, z_NC, weight_C, mean_N, scale_N, dx_NC, sums, rows,
        HAS_DZ=dz_NC is not None, WIDTH=width, ROWS=BACKWARD_ROWS, ROWS_PER_PROGRAM=rows_per_program,
        BLOCK=triton.next_power_of_2(width), STAGES=STAGES, num_warps=NUM_WARPS,
    )  # fmt: skip
    return dx_NC, sums.sum(dim=0)


def _multiprocessors(tensor: Tensor) -> int:
    if not tensor.is_cuda:
        return 1  # Triton's interpreter
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count
