"""The joined projection to query, key and value with a backward pass of its own. It knows no model.

Attention's backward pass hands over three gradients. They have to lie side by side for the two matmuls that follow,
and their sum over all tokens is the bias gradient: one pass does both. N tokens, C embedding width.
"""

import torch
from torch import Tensor

from speedlab.fused.triton_kernels import runs_triton


class ProjectQKV(torch.autograd.Function):
    """x (N, C), weight (3C, C), bias (3C,) -> query, key, value (N, C) each, views of one tensor."""

    @staticmethod
    def forward(ctx, x_NC: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x_NC, weight, bias)
        q_NC, k_NC, v_NC = torch.nn.functional.linear(x_NC, weight, bias).chunk(3, dim=-1)
        return q_NC, k_NC, v_NC

    @staticmethod
    def backward(ctx, dq_NC: Tensor, dk_NC: Tensor, dv_NC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_NC, weight, bias = ctx.saved_tensors
        joined, sums = _join(dq_NC, dk_NC, dv_NC)
        # Under autocast the weights are wider than the gradients.
        dx_NC = (joined @ weight.to(joined.dtype)).to(x_NC.dtype)
        dweight = (joined.t() @ x_NC.to(joined.dtype)).to(weight.dtype)
        return dx_NC, dweight, sums.to(bias.dtype)


def project_qkv(x_BTC: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value (B, T, C) each."""
    parts = ProjectQKV.apply(x_BTC.flatten(0, 1), weight, bias)
    return tuple(part.view(x_BTC.shape) for part in parts)


@torch.library.custom_op("speedlab::join_gradients", mutates_args=())
def _join(dq_NC: Tensor, dk_NC: Tensor, dv_NC: Tensor) -> tuple[Tensor, Tensor]:
    dq_NC, dk_NC, dv_NC = dq_NC.contiguous(), dk_NC.contiguous(), dv_NC.contiguous()
    if runs_triton(dq_NC):
        from speedlab.fused.qkv_kernel import join

        return join(dq_NC, dk_NC, dv_NC)
    joined = torch.cat([dq_NC, dk_NC, dv_NC], dim=-1)
    return joined, joined.sum(dim=0, dtype=torch.float32)


@_join.register_fake
def _(dq_NC, dk_NC, dv_NC):
    rows, width = dq_NC.shape
    return dq_NC.new_empty(rows, 3 * width), dq_NC.new_empty(3 * width, dtype=torch.float32)
