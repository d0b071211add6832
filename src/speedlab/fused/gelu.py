"""Bias and GELU in one pass; backward, the gradient and its column sums in another. It knows no model.

The matmul before it leaves its bias to this pass, which costs nothing here, so that the bias gradient, a sum over
all tokens, falls out of the pass that makes the gradient anyway. N tokens, F inner width.
"""

import math

import torch
from torch import Tensor

from speedlab.fused.triton_kernels import runs_triton

TWO_ROOT_2_OVER_PI = 2.0 * math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def bias_gelu(x: Tensor, bias_F: Tensor) -> Tensor:
    """GELU(x + bias) in its tanh form for x of shape (..., F), in the dtype of x, computed in float32."""
    return _bias_gelu(x.flatten(0, -2).contiguous(), bias_F).view(x.shape)


@torch.library.custom_op("speedlab::bias_gelu", mutates_args=())
def _bias_gelu(x_NF: Tensor, bias_F: Tensor) -> Tensor:
    if runs_triton(x_NF):
        from speedlab.fused.gelu_kernel import forward

        return forward(x_NF, bias_F)
    z = x_NF.float() + bias_F.float()
    return (z * torch.sigmoid(TWO_ROOT_2_OVER_PI * (z + CUBIC * z**3))).to(x_NF.dtype)


def gradients(dh_NF: Tensor, x_NF: Tensor, bias_F: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x in its dtype, and that of the bias, its column sums, in float32."""
    if runs_triton(x_NF):
        from speedlab.fused.gelu_kernel import backward

        return backward(dh_NF.contiguous(), x_NF, bias_F)
    z = x_NF.float() + bias_F.float()
    share = torch.sigmoid(TWO_ROOT_2_OVER_PI * (z + CUBIC * z**3))
    slope = TWO_ROOT_2_OVER_PI * (1.0 + 3.0 * CUBIC * z * z)
    dx = dh_NF.float() * share * (1.0 + z * (1.0 - share) * slope)
    return dx.to(x_NF.dtype), dx.sum(dim=0)


_gradients = torch.library.custom_op("speedlab::bias_gelu_backward", gradients, mutates_args=())


@_bias_gelu.register_fake
def _(x_NF, bias_F):
    return torch.empty_like(x_NF)


@_gradients.register_fake
def _(dh_NF, x_NF, bias_F):
    return torch.empty_like(x_NF), bias_F.new_empty(bias_F.shape, dtype=torch.float32)


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, dh_NF):
    x_NF, bias_F = ctx.saved_tensors
    dx_NF, dbias_F = _gradients(dh_NF, x_NF, bias_F)
    return dx_NF, dbias_F.to(bias_F.dtype)


_bias_gelu.register_autograd(_backward, setup_context=_keep)
