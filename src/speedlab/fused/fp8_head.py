"""The output head's forward matmul in 8 bits (e4m3), its backward pass in the format of the weights. Knows no model.

Gradients of the logits span too many powers of two for 8 bits without a scale for each row, and the weight gradient
would need them transposed; the forward matmul needs neither. N tokens, C embedding width, V ids.
"""

import torch
from torch import Tensor, nn

LARGEST_E4M3 = 448.0


class FP8Head(torch.autograd.Function):
    """x (N, C), weight (V, C) -> logits (N, V) in the dtype of x. Needs compute capability 8.9 and C, V in 16s."""

    @staticmethod
    def forward(ctx, x_NC: Tensor, weight_VC: Tensor) -> Tensor:
        ctx.save_for_backward(x_NC, weight_VC)
        x8_NC, x_scale = to_e4m3(x_NC)
        weight8_VC, weight_scale = to_e4m3(weight_VC)
        return torch._scaled_mm(
            x8_NC, weight8_VC.t(), scale_a=x_scale, scale_b=weight_scale, out_dtype=x_NC.dtype, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx, dlogits_NV: Tensor) -> tuple[Tensor, Tensor]:
        x_NC, weight_VC = ctx.saved_tensors
        return dlogits_NV @ weight_VC, dlogits_NV.t() @ x_NC


def to_e4m3(values: Tensor) -> tuple[Tensor, Tensor]:
    """(values / scale in e4m3, scale): one float32 scale on the device, so that the largest value just fits."""
    scale = (values.abs().amax().float() / LARGEST_E4M3).clamp(min=1e-12)
    return (values.float() / scale).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn), scale


class FP8Linear(nn.Linear):
    """A linear layer without bias whose forward matmul runs in e4m3: (B, T, C) -> (B, T, V)."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        logits_NV = FP8Head.apply(x_BTC.flatten(0, 1), self.weight.to(x_BTC.dtype))
        return logits_NV.view(*x_BTC.shape[:-1], -1)
