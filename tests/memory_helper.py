"""Bytes that the real model holds, counted on the meta device: PyTorch's own autograd, no formula and no memory.

Meta tensors have shapes and storages and no contents, so a forward and a backward pass of any size can be followed.
Three things that a CUDA device decides are put in place here: dropout keeps a mask of one byte, attention is
FlashAttention's operator, and autocast casts what PyTorch's list for CUDA says.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from speedlab.model import GPT
from speedlab.recipe import Recipe
from speedlab.training.precision import precision_of
from speedlab.training.step import token_loss


class Counted(NamedTuple):
    """Bytes: of weights and buffers, kept by autograd for the backward pass, held after the forward pass and at the
    peak of both (without weights and buffers)."""

    weights: int
    saved: int
    after_forward: int
    peak: int


class Storages(TorchDispatchMode):
    """Adds up the storages that are alive, each once, from birth to death."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """What was there before and is written in place would count as born when it is first seen."""
        self.known |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result = operation(*arguments, **(options or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def native_dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, training)[0] if p and training else x


def flash_attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]


class CudaAutocast(TorchFunctionMode):
    """What autocast does on CUDA to the operations of this model: docs.pytorch.org/docs/stable/amp.html."""

    TO_16_BITS = (F.linear, torch.Tensor.matmul, torch.Tensor.__matmul__, flash_attention)
    TO_FLOAT32 = (torch.pow, F.layer_norm, torch.softmax)

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weights: dict[int, Tensor] = {}  # casts of weights are cached until the context ends

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is F.cross_entropy:
            # It asks log_softmax for the format of its input (LossNLL.cpp), which autocast then leaves; nll_loss is on
            # the list.
            return F.nll_loss(torch.log_softmax(arguments[0], -1).float(), arguments[1])
        to = self.dtype if function in self.TO_16_BITS else torch.float32 if function in self.TO_FLOAT32 else None
        if to is not None:
            arguments = [self._cast(value, to) for value in arguments]
        return function(*arguments, **(options or {}))

    def _cast(self, value, to: torch.dtype):
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == to:
            return value
        if not isinstance(value, nn.Parameter):
            return value.to(to)
        return self.weights.setdefault(id(value), value.to(to))

    def __exit__(self, *error):
        self.weights.clear()
        return super().__exit__(*error)


def written_out(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False) -> Tensor:
    return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, None, dropout_p, is_causal)[0]


@contextmanager
def as_on_cuda(recipe: Recipe) -> Iterator[None]:
    fused = written_out if recipe.attention == "sdpa_math" else flash_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "dropout", native_dropout)
        patch.setattr(F, "scaled_dot_product_attention", fused)
        yield


def count(recipe: Recipe, change: Callable[[GPT], None] = lambda model: None) -> Counted:
    """One forward and one backward pass of the model of this recipe. change: what to do to the model before."""
    precision = precision_of(recipe)
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    with as_on_cuda(recipe), Storages() as storages:
        before = torch.get_default_dtype()
        torch.set_default_dtype(precision.weights)
        try:
            with torch.device("meta"):
                model = GPT(recipe)
        finally:
            torch.set_default_dtype(before)
        change(model)
        weights = storages.live
        tokens = torch.zeros(recipe.micro_batch, recipe.context_length, dtype=torch.long, device="meta")
        targets = tokens.clone()
        autocast: AbstractContextManager = CudaAutocast(precision.autocast) if precision.autocast else nullcontext()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
            logits = model(tokens)
            loss = token_loss(logits, targets)
        del logits
        after_forward = storages.live - weights
        owned = {tensor.untyped_storage()._cdata for tensor in model.parameters()}
        kept = sum(size for key, size in saved.items() if key not in owned)
        loss.backward()
        return Counted(weights=weights, saved=kept, after_forward=after_forward, peak=storages.peak - weights)
