"""Mean cross-entropy whose gradient takes the place of the logits. It knows no model.

Autograd's own form keeps the logits, writes probabilities and reads both again: six passes over the largest tensor
of the step. Here the forward pass reads a row, and writes the gradient where the row was. The backward pass has
nothing left to do.
"""

import torch
from torch import Tensor

from speedlab.fused.triton_kernels import runs_triton


class InPlaceCrossEntropy(torch.autograd.Function):
    """logits (N, V) in any float dtype, targets (N,) int64 with 0 <= target < V -> mean loss in nats, float32.

    The logits are destroyed: whoever needs them reads them first. The gradient is rounded to their dtype once, after
    it was divided by N; a gradient scaler, which multiplies later, would come too late for float16.
    """

    @staticmethod
    def forward(ctx, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        gradient_NV = logits_NV.detach()
        if not ctx.needs_input_grad[0]:
            gradient_NV = gradient_NV.clone()
        losses_N = losses_and_gradient(gradient_NV, targets_N, 1.0 / targets_N.numel())
        ctx.gradient_NV = gradient_NV
        return losses_N.mean()

    @staticmethod
    def backward(ctx, factor: Tensor) -> tuple[Tensor, None]:
        gradient_NV = ctx.gradient_NV
        if gradient_NV is None:
            raise RuntimeError("the gradient took the place of the logits and was used: backward runs only once")
        ctx.gradient_NV = None
        scale_in_place(gradient_NV, factor)
        return gradient_NV, None


def in_place_cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean loss in nats over all positions, as `F.cross_entropy` gives it; the logits are overwritten."""
    return InPlaceCrossEntropy.apply(logits_BTV.flatten(0, 1), targets_BT.flatten())


def losses_and_gradient(logits_NV: Tensor, targets_N: Tensor, scale: float) -> Tensor:
    """Losses (N,) in float32. `logits_NV` becomes (softmax - onehot) x scale, its own dtype, computed in float32."""
    if runs_triton(logits_NV):
        from speedlab.fused.cross_entropy_kernel import losses_and_gradient

        return losses_and_gradient(logits_NV, targets_N, scale)
    targets_N1 = targets_N[:, None]
    shares_NV = torch.log_softmax(logits_NV.float(), dim=-1)
    losses_N = -shares_NV.gather(1, targets_N1)[:, 0]
    shares_NV.exp_().scatter_add_(1, targets_N1, shares_NV.new_full(targets_N1.shape, -1.0))
    logits_NV.copy_(shares_NV.mul_(scale))
    return losses_N


def scale_in_place(values: Tensor, factor: Tensor) -> None:
    """values *= factor, which is a number on their device."""
    if runs_triton(values):
        from speedlab.fused.cross_entropy_kernel import scale_in_place

        scale_in_place(values, factor)
    else:
        values.mul_(factor)
