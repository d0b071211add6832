"""AdamW over all weights as one Triton kernel launch. Only `adamw` calls it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 4


@triton.jit
def adamw_kernel(
    gradients_ptr, tensor_of_ptr, offset_ptr, length_ptr, masters_ptr, first_ptr, second_ptr, weights_ptr,
    learning_rate, decay, beta1, beta2, eps, correction1, root_correction2,
    GRADIENT: tl.constexpr, ALIGNED: tl.constexpr, HAS_WEIGHTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of the flat arrays: the masters of a piece of one weight tensor, and where its gradient lies."""
    block = tl.program_id(0).to(tl.int64)
    tensor = tl.load(tensor_of_ptr + block)
    offset = tl.load(offset_ptr + block)  # of this piece in its tensor
    length = tl.load(length_ptr + tensor)
    gradient_ptr = tl.load(gradients_ptr + tensor).to(tl.pointer_type(GRADIENT)) + offset
    if ALIGNED:  # the compiler cannot know it of numbers that it reads, and would load value by value
        offset, length = tl.multiple_of(offset, 16), tl.multiple_of(length, 16)
        gradient_ptr = tl.multiple_of(gradient_ptr, 16)
    inside = offset + tl.arange(0, BLOCK) < length
    g = tl.load(gradient_ptr + tl.arange(0, BLOCK), mask=inside, other=0.0).to(tl.float32)
    at = block * BLOCK + tl.arange(0, BLOCK)
    master = tl.load(masters_ptr + at)
    first = tl.load(first_ptr + at)
    second = tl.load(second_ptr + at)
    first = beta1 * first + (1.0 - beta1) * g
    second = beta2 * second + (1.0 - beta2) * g * g
    master = master * (1.0 - learning_rate * decay)
    master -= learning_rate / correction1 * first / (tl.sqrt(second) / root_correction2 + eps)
    tl.store(first_ptr + at, first)
    tl.store(second_ptr + at, second)
    tl.store(masters_ptr + at, master)
    if HAS_WEIGHTS:
        tl.store(weights_ptr + at, master.to(weights_ptr.dtype.element_ty))


TRITON_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def adamw(
    gradients: Tensor, gradient_dtype: torch.dtype, aligned: bool, blocks: tuple[Tensor, Tensor, Tensor],
    masters: Tensor, first: Tensor, second: Tensor, weights: Tensor | None, block: int, numbers: tuple[float, ...],
) -> None:  # fmt: skip
    """gradients: addresses, one for each tensor. aligned: they are to 16 bytes, and all lengths are multiples of 16.
    blocks: for each block its tensor and its offset there; each tensor's length. numbers: learning rate, weight decay,
    beta1, beta2, eps, 1 - beta1^t, sqrt(1 - beta2^t)."""
    tensor_of, offset, length = blocks
    adamw_kernel[(tensor_of.numel(),)](
        gradients, tensor_of, offset, length, masters, first, second, masters if weights is None else weights, *numbers,
        GRADIENT=TRITON_DTYPES[gradient_dtype], ALIGNED=aligned, HAS_WEIGHTS=weights is not None, BLOCK=block,
        num_warps=NUM_WARPS,
    )  # fmt: skip
