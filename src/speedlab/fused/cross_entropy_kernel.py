"""Cross-entropy as one Triton kernel: a row of logits is read, and its gradient is written over it.

Only `cross_entropy` calls it. N rows, V columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# One program works on one row. A row of 50,304 bfloat16 values is 100 kB, so the second reading of it comes from the
# L2 cache as long as the rows in flight fit there: few, large programs do better than many small ones. `block`,
# `num_warps` and `stages` of `losses_and_gradient` try others.
BLOCK = 8192
NUM_WARPS = 16
STAGES = 3  # blocks that are on their way while others are worked on

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
    target = tl.load(targets_ptr + row)
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
def scale_kernel(values_ptr, factor_ptr, num_values, BLOCKS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr):
    """values *= factor, a number on the device; nothing is read or written where it is 1, and nobody waits for it."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if factor != 1.0:
        first = tl.program_id(0).to(tl.int64) * BLOCKS_PER_PROGRAM * BLOCK
        for block in range(0, BLOCKS_PER_PROGRAM):
            at = first + block * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(values_ptr + at, mask=at < num_values).to(tl.float32)
            tl.store(values_ptr + at, (value * factor).to(values_ptr.dtype.element_ty), mask=at < num_values)


def losses_and_gradient(
    logits_NV: Tensor, targets_N: Tensor, scale: float, *, block: int = 0, num_warps: int = 0, stages: int = 0
) -> Tensor:
    """Losses (N,) in float32; `logits_NV`, whose rows must be contiguous, becomes the gradient times `scale`."""
    rows, columns = logits_NV.shape
    losses_N = torch.empty(rows, dtype=torch.float32, device=logits_NV.device)
    block = min(block or BLOCK, triton.next_power_of_2(columns))
    cross_entropy_kernel[(rows,)](
        logits_NV, targets_N, losses_N, logits_NV.stride(0), scale,
        NUM_COLUMNS=columns, BLOCK=block, STAGES=stages or STAGES, num_warps=num_warps or NUM_WARPS,
    )  # fmt: skip
    return losses_N


def scale_in_place(values: Tensor, factor: Tensor) -> None:
    """Multiply contiguous `values` by a number that stays on the device."""
    blocks = triton.cdiv(values.numel(), 4096)
    programs = min(1024, blocks)
    scale_kernel[(programs,)](
        values, factor, values.numel(), BLOCKS_PER_PROGRAM=triton.cdiv(blocks, programs), BLOCK=4096
    )
