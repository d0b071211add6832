"""Residual addition, bias and LayerNorm in one pass each way. It knows no model.

Forward it reads the residual stream and what is added to it, and writes their sum and its normalization. Backward,
one pass gives the gradient of the stream and the sums over all tokens: for the norm's weight and shift, and for the
bias of the matmul whose result was added. N tokens, C embedding width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from speedlab.fused.triton_kernels import runs_triton


def residual_norm(
    x: Tensor, delta: Tensor, bias_C: Tensor, weight_C: Tensor, shift_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(z, y) with z = x + delta + bias in the dtype of x and y = LayerNorm(z) in that of delta; all (..., C)."""
    z_NC, y_NC, _, _ = _residual_norm(
        x.flatten(0, -2).contiguous(), delta.flatten(0, -2).contiguous(), bias_C, weight_C, shift_C, eps
    )
    return z_NC.view(x.shape), y_NC.view(x.shape)


@torch.library.custom_op("speedlab::residual_norm", mutates_args=())
def _residual_norm(
    x_NC: Tensor, delta_NC: Tensor, bias_C: Tensor, weight_C: Tensor, shift_C: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if runs_triton(x_NC):
        from speedlab.fused.residual_norm_kernel import forward

        return forward(x_NC, delta_NC, bias_C, weight_C, shift_C, eps)
    z_NC = (x_NC.float() + delta_NC.float() + bias_C.float()).to(x_NC.dtype)
    variance_N, mean_N = torch.var_mean(z_NC.float(), dim=-1, unbiased=False)
    y_NC = F.layer_norm(z_NC.float(), z_NC.shape[-1:], weight_C.float(), shift_C.float(), eps)
    return z_NC, y_NC.to(delta_NC.dtype), mean_N, (variance_N + eps).rsqrt()


def gradients(
    dz_NC: Tensor | None, dy_NC: Tensor, z_NC: Tensor, weight_C: Tensor, mean_N: Tensor, scale_N: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of x and of delta, in the dtype of z; three column sums (3, C) in float32: the gradients of weight,
    shift and bias. dz: what comes down the stream, None where nobody read it."""
    dz_NC = None if dz_NC is None else dz_NC.contiguous()
    if runs_triton(z_NC):
        from speedlab.fused.residual_norm_kernel import backward

        return backward(dz_NC, dy_NC.contiguous(), z_NC, weight_C, mean_N, scale_N)
    dy = dy_NC.float()
    normed = (z_NC.float() - mean_N[:, None]) * scale_N[:, None]
    weighted = dy * weight_C.float()
    along, level = (weighted * normed).mean(-1, keepdim=True), weighted.mean(-1, keepdim=True)
    dx = (weighted - normed * along - level) * scale_N[:, None]
    if dz_NC is not None:
        dx = dx + dz_NC.float()
    return dx.to(z_NC.dtype), torch.stack([(dy * normed).sum(0), dy.sum(0), dx.sum(0)])


_gradients = torch.library.custom_op("speedlab::residual_norm_backward", gradients, mutates_args=())


@_residual_norm.register_fake
def _(x_NC, delta_NC, bias_C, weight_C, shift_C, eps):
    statistic_N = x_NC.new_empty(x_NC.shape[0], dtype=torch.float32)
    return torch.empty_like(x_NC), torch.empty_like(delta_NC), statistic_N, torch.empty_like(statistic_N)


@_gradients.register_fake
def _(dz_NC, dy_NC, z_NC, weight_C, mean_N, scale_N):
    return torch.empty_like(z_NC), z_NC.new_empty((3, z_NC.shape[1]), dtype=torch.float32)


def _keep(ctx, inputs, output) -> None:
    _, delta_NC, bias_C, weight_C, shift_C, _ = inputs
    z_NC, _, mean_N, scale_N = output
    ctx.set_materialize_grads(False)  # nobody reads the last stream, and a gradient of zeros would be a pass
    ctx.save_for_backward(z_NC, weight_C, mean_N, scale_N)
    ctx.dtypes = delta_NC.dtype, bias_C.dtype, weight_C.dtype, shift_C.dtype


def _backward(ctx, dz_NC, dy_NC, _mean, _scale):
    z_NC, weight_C, mean_N, scale_N = ctx.saved_tensors
    delta, bias, weight, shift = ctx.dtypes
    if dy_NC is None:
        dy_NC = torch.zeros_like(z_NC)
    dx_NC, sums_3C = _gradients(dz_NC, dy_NC, z_NC, weight_C, mean_N, scale_N)
    return dx_NC, dx_NC.to(delta), sums_3C[2].to(bias), sums_3C[0].to(weight), sums_3C[1].to(shift), None


_residual_norm.register_autograd(_backward, setup_context=_keep)
