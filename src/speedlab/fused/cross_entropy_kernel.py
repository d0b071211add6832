"""Cross-entropy as one Triton kernel: a row of logits is read, and its gradient is written over it.

Two forms of it, of which the faster on the card at hand is taken. Only `cross_entropy` calls it. N rows, V columns.
"""

import functools
from itertools import pairwise
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Form(NamedTuple):
    """held: the row stays in registers. block: columns at a time, of the other form. stages: of the pipeline."""

    held: bool
    block: int
    num_warps: int
    stages: int


# Looped: one program for each row; a row of 50,304 bfloat16 values is 100 kB, so the second reading of it comes from
# the L2 cache as long as the rows in flight fit there. Held: one program for each multiprocessor reads the next row
# into shared memory while it works on this one, which it reads once.
FORMS = (Form(False, 8192, 16, 3), Form(False, 4096, 8, 1), Form(True, 0, 16, 2), Form(True, 0, 32, 2))
MOST_HELD = 56_000  # columns whose exponentials find room in the registers of a multiprocessor
TRIAL_BYTES = 400_000_000  # several times the L2 cache

LOG2_OF_E = tl.constexpr(1.4426950408889634)
LN_OF_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def cross_entropy_kernel(
    logits_ptr, targets_ptr, losses_ptr, row_stride, scale,
    NUM_COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """losses[row] = log(sum(exp(x))) - x[target]; x is replaced by (softmax(x) - onehot(target)) * scale.

    Running maximum and sum as in Milakov and Gimelshein 2018; all arithmetic in float32, in powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row).to(tl.int32)
    logits_ptr += row * row_stride
    # A target that is no column makes the loss not a number, instead of reading somewhere else.
    is_column = (target >= 0) & (target < NUM_COLUMNS)
    at_target = tl.load(logits_ptr + target, mask=is_column, other=float("nan")).to(tl.float32)

    columns = tl.arange(0, BLOCK)
    largest = float("-inf")
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.range(0, NUM_COLUMNS, BLOCK, num_stages=STAGES):
        inside = start + columns < NUM_COLUMNS
        x = tl.load(logits_ptr + start + columns, mask=inside, other=float("-inf"), eviction_policy="evict_last")
        x = x.to(tl.float32) * LOG2_OF_E
        largest_yet = tl.maximum(largest, tl.max(x, axis=0))
        sums = sums * tl.exp2(largest - largest_yet) + tl.exp2(x - largest_yet)
        largest = largest_yet
    log2_total = largest + tl.log2(tl.sum(sums, axis=0))
    tl.store(losses_ptr + row, log2_total * LN_OF_2 - at_target)
    # Every thread has its x[target] before any of them writes over it: the sum above waited for all.
    tl.debug_barrier()

    for start in tl.range(0, NUM_COLUMNS, BLOCK, num_stages=STAGES):
        inside = start + columns < NUM_COLUMNS
        x = tl.load(logits_ptr + start + columns, mask=inside, other=float("-inf"), eviction_policy="evict_first")
        share = tl.exp2(x.to(tl.float32) * LOG2_OF_E - log2_total)
        gradient = tl.where(start + columns == target, share - 1.0, share) * scale
        tl.store(logits_ptr + start + columns, gradient.to(logits_ptr.dtype.element_ty), mask=inside)


@triton.jit
def cross_entropy_held_kernel(
    logits_ptr, targets_ptr, losses_ptr, row_stride, scale, num_rows,
    NUM_COLUMNS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, ROWS_PER_PROGRAM: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The same with a row as three blocks and a rest in registers: exponentials are computed once and read once."""
    columns = tl.arange(0, BLOCK)
    rest = 3 * BLOCK + tl.arange(0, REST)
    for step in tl.range(0, ROWS_PER_PROGRAM, num_stages=STAGES):
        row = (tl.program_id(0) * ROWS_PER_PROGRAM + step).to(tl.int64)
        there = row < num_rows
        row_ptr = logits_ptr + row * row_stride
        mask = there & (columns < NUM_COLUMNS)
        mask_rest = there & (rest < NUM_COLUMNS)
        x0 = tl.load(row_ptr + columns, mask=mask, other=0.0)
        x1 = tl.load(row_ptr + BLOCK + columns, mask=mask, other=0.0)
        x2 = tl.load(row_ptr + 2 * BLOCK + columns, mask=mask, other=0.0)
        x3 = tl.load(row_ptr + rest, mask=mask_rest, other=float("-inf"))
        target = tl.load(targets_ptr + row, mask=there, other=0).to(tl.int32)
        is_column = there & (target >= 0) & (target < NUM_COLUMNS)
        at_target = tl.load(row_ptr + target, mask=is_column, other=float("nan")).to(tl.float32)
        e0 = x0.to(tl.float32) * LOG2_OF_E
        e1 = x1.to(tl.float32) * LOG2_OF_E
        e2 = x2.to(tl.float32) * LOG2_OF_E
        e3 = x3.to(tl.float32) * LOG2_OF_E
        largest = tl.maximum(tl.max(tl.maximum(tl.maximum(e0, e1), e2), axis=0), tl.max(e3, axis=0))
        e0 = tl.exp2(e0 - largest)
        e1 = tl.exp2(e1 - largest)
        e2 = tl.exp2(e2 - largest)
        e3 = tl.exp2(e3 - largest)
        total = tl.sum(e0 + e1 + e2, axis=0) + tl.sum(e3, axis=0)
        # Here too the sums stand between the reading of x[target] and the writing over it; a barrier of its own would
        # keep the compiler from reading ahead.
        tl.store(losses_ptr + row, (largest + tl.log2(total)) * LN_OF_2 - at_target, mask=there)
        share = scale / total
        dtype = logits_ptr.dtype.element_ty
        g0 = tl.where(columns == target, e0 * share - scale, e0 * share)
        g1 = tl.where(BLOCK + columns == target, e1 * share - scale, e1 * share)
        g2 = tl.where(2 * BLOCK + columns == target, e2 * share - scale, e2 * share)
        g3 = tl.where(rest == target, e3 * share - scale, e3 * share)
        tl.store(row_ptr + columns, g0.to(dtype), mask=mask)
        tl.store(row_ptr + BLOCK + columns, g1.to(dtype), mask=mask)
        tl.store(row_ptr + 2 * BLOCK + columns, g2.to(dtype), mask=mask)
        tl.store(row_ptr + rest, g3.to(dtype), mask=mask_rest)


@triton.jit
def scale_kernel(values_ptr, factor_ptr, num_values, BLOCKS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr):
    """values *= factor, a number on the device; nothing is read or written where it is 1, and nobody waits for it."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if factor != 1.0:
        first = tl.program_id(0).to(tl.int64) * BLOCKS_PER_PROGRAM * BLOCK
        for block in range(0, BLOCKS_PER_PROGRAM):
            at = first + block * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(values_ptr + at, mask=at < num_values).to(tl.float32)
            tl.store(values_ptr + at, (value * factor).to(values_ptr.dtype.element_ty), mask=at < num_values)


def losses_and_gradient(logits_NV: Tensor, targets_N: Tensor, scale: float, form: Form | None = None) -> Tensor:
    """Losses (N,) in float32; `logits_NV`, whose rows must be contiguous, becomes the gradient times `scale`."""
    rows, columns = logits_NV.shape
    form = form or fastest_form(columns, logits_NV.dtype, logits_NV.device)
    losses_N = torch.empty(rows, dtype=torch.float32, device=logits_NV.device)
    if form.held:
        block, rest = held_blocks(columns)
        rows_per_program = triton.cdiv(rows, _multiprocessors(logits_NV.device))
        cross_entropy_held_kernel[(triton.cdiv(rows, rows_per_program),)](
            logits_NV, targets_N, losses_N, logits_NV.stride(0), scale, rows, NUM_COLUMNS=columns, BLOCK=block,
            REST=rest, ROWS_PER_PROGRAM=rows_per_program, STAGES=form.stages, num_warps=form.num_warps,
        )  # fmt: skip
    else:
        cross_entropy_kernel[(rows,)](
            logits_NV, targets_N, losses_N, logits_NV.stride(0), scale, NUM_COLUMNS=columns,
            BLOCK=min(form.block, triton.next_power_of_2(columns)), STAGES=form.stages, num_warps=form.num_warps,
        )  # fmt: skip
    return losses_N


@functools.cache
def fastest_form(columns: int, dtype: torch.dtype, device: torch.device) -> Form:
    """The form that takes the shortest time here, found once by trying each on made-up rows."""
    if device.type != "cuda":
        return FORMS[0]
    rows = max(1, TRIAL_BYTES // (columns * dtype.itemsize))
    logits, targets = (torch.zeros(rows, columns, dtype=dtype, device=device),
                       torch.zeros(rows, dtype=torch.int64, device=device))  # fmt: skip
    times = {form: _shortest_ms(logits, targets, form) for form in FORMS if not form.held or columns <= MOST_HELD}
    return min(times, key=lambda form: times[form])


def _shortest_ms(logits: Tensor, targets: Tensor, form: Form) -> float:
    try:
        losses_and_gradient(logits, targets, 1.0, form)
    except triton.runtime.errors.OutOfResources:  # a card with less shared memory than this form asks for
        return float("inf")
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    for mark in marks:
        mark.record()
        losses_and_gradient(logits, targets, 1.0, form)
    torch.cuda.synchronize(logits.device)
    return min(one.elapsed_time(two) for one, two in pairwise(marks))


def held_blocks(columns: int) -> tuple[int, int]:
    """A block and a rest, both powers of two, such that three blocks and the rest cover the columns."""
    block = triton.next_power_of_2(max(1, columns // 3 // 2 + 1))
    return block, triton.next_power_of_2(max(1, columns - 3 * block))


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def scale_in_place(values: Tensor, factor: Tensor) -> None:
    """Multiply contiguous `values` by a number that stays on the device."""
    blocks = triton.cdiv(values.numel(), 4096)
    programs = min(1024, blocks)
    scale_kernel[(programs,)](
        values, factor, values.numel(), BLOCKS_PER_PROGRAM=triton.cdiv(blocks, programs), BLOCK=4096
    )
