"""The way through all blocks and the final norm, plain and with the residual stream in fused kernels.

Shapes: B batch, T tokens, C embedding width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from speedlab.fused.residual_norm import residual_norm


def separate_trunk(model: nn.Module, x_BTC: Tensor) -> Tensor:
    """Each block adds to the stream what it computed; each norm reads the stream anew."""
    return model.final_norm(model.run_blocks(x_BTC))


def fused_trunk(model: nn.Module, x_BTC: Tensor) -> Tensor:
    """The same in another grouping: each addition to the stream makes the norm that reads it next.

    Attention's norm belongs to the addition of the block before, and the first one stands alone.
    """
    blocks, final_norm = model.blocks, model.final_norm
    y_BTC = blocks[0].attention_norm(x_BTC)
    norms_after = [*(block.attention_norm for block in blocks[1:]), final_norm]
    for block, norm_after in zip(blocks, norms_after, strict=True):
        x_BTC, y_BTC = _add(x_BTC, block.attention.mixed(y_BTC), block.attention.out, block.feed_forward_norm)
        x_BTC, y_BTC = _add(x_BTC, block.feed_forward.inner(y_BTC), block.feed_forward.down, norm_after)
    return y_BTC


def _add(x_BTC: Tensor, inner: Tensor, matmul: nn.Linear, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The stream with `matmul(inner)` added, and its norm; the kernel adds the bias of the matmul too."""
    return residual_norm(x_BTC, F.linear(inner, matmul.weight), matmul.bias, norm.weight, norm.bias, norm.eps)


TRUNKS = {"separate": separate_trunk, "fused": fused_trunk}
