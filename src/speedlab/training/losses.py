"""The ways to the training loss, each from logits (B, T, V) and the ids that follow (B, T) to a mean in nats."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from speedlab.errors import NotAvailable


def token_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross-entropy in nats over all positions, padded ids taking part in the softmax: scalar."""
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def liger_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The same by Liger's kernel (liger-kernel, optional): the gradient takes the place of the logits.

    It returns the loss in the format of the logits, and waits for the GPU to count and check the targets.
    """
    try:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    except ImportError as error:
        raise NotAvailable(f"loss liger needs the package liger-kernel (extra liger): {error}") from error
    loss, *_ = LigerCrossEntropyFunction.apply(logits_BTV.flatten(0, 1), targets_BT.flatten(), None)
    return loss
