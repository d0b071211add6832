"""AdamW with float32 masters in one pass over memory: one kernel launch for all weights. It knows no recipe.

Per weight it reads the gradient, the master and both moments, and writes the master, the moments and the rounded
weight: 28 bytes for 16-bit weights. Casting gradients and copying weights apart from the update would be 40.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from speedlab.errors import BadInput
from speedlab.fused.triton_kernels import runs_triton

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
BLOCK = 2048  # weights of one program; each tensor starts a new one, so that no block holds two


class OnePassAdamW:
    """AdamW (Loshchilov and Hutter 2019) on float32 masters of `parameters`, which get their rounded values.

    The parameters' memory becomes one flat tensor of theirs, in blocks; so do masters and moments. masters: float32
    tensors to start from, in order; None: the parameters are float32 and are their own masters. Weight decay applies
    to all. A parameter without a gradient is an error: nothing here could leave it out.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        masters: Sequence[Tensor] | None = None,
        *,
        lr: float,
        weight_decay: float,
    ) -> None:
        self.parameters = list(parameters)
        dtypes = {parameter.dtype for parameter in self.parameters}
        if len(dtypes) != 1 or (masters is None and dtypes != {torch.float32}):
            raise BadInput(
                f"one-pass AdamW got weights of {', '.join(sorted(map(str, dtypes)))}: "
                "it needs one format, and masters unless that is float32"
            )
        self.param_groups: list[dict[str, Any]] = [
            {"params": self.parameters, "lr": lr, "weight_decay": weight_decay, "betas": (BETA1, BETA2), "eps": EPS}
        ]
        self.steps = 0
        device = self.parameters[0].device
        self.starts, self.blocks = _blocks([parameter.numel() for parameter in self.parameters], device)
        size = self.blocks[0].numel() * BLOCK
        self.masters = torch.zeros(size, dtype=torch.float32, device=device)
        for view, value in zip(self._views(self.masters), masters or self.parameters, strict=True):
            view.copy_(value.detach())
        self.first, self.second = torch.zeros_like(self.masters), torch.zeros_like(self.masters)
        self.weights = None if masters is None else self.masters.to(dtypes.pop())
        flat = self.masters if self.weights is None else self.weights
        for parameter, view in zip(self.parameters, self._views(flat), strict=True):
            parameter.data = view

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        missing = sum(parameter.grad is None for parameter in self.parameters)
        if missing:
            raise RuntimeError(f"{missing} of {len(self.parameters)} weights have no gradient")
        self.steps += 1
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        correction1, root2 = 1.0 - beta1**self.steps, math.sqrt(1.0 - beta2**self.steps)
        numbers = (group["lr"], group["weight_decay"], beta1, beta2, group["eps"], correction1, root2)
        gradients = [parameter.grad.contiguous() for parameter in self.parameters]
        if runs_triton(self.masters):
            self._launch(gradients, numbers)
        else:
            self._step_plainly(gradients, numbers)

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on beside the weights, as flat tensors in the order of the parameters."""
        return {"steps": self.steps, "masters": self.masters, "first": self.first, "second": self.second}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state of the same weights; the weights get the rounded masters."""
        if state["masters"].shape != self.masters.shape:
            raise BadInput(
                f"one-pass AdamW got {state['masters'].numel():,} masters for {self.masters.numel():,}: "
                "load the state of the same model"
            )
        self.steps = state["steps"]
        for own, other in ((self.masters, "masters"), (self.first, "first"), (self.second, "second")):
            own.copy_(state[other])
        if self.weights is not None:
            self.weights.copy_(self.masters)

    def _launch(self, gradients: list[Tensor], numbers: tuple[float, ...]) -> None:
        from speedlab.fused.adamw_kernel import adamw

        # Gradients are new tensors in each step. Pinned, so that nobody waits for the copy of their addresses; the
        # allocator of pinned memory does not hand the block out again before the copy has been made.
        places = [gradient.data_ptr() for gradient in gradients]
        aligned = not any(place % 16 for place in places) and not any(p.numel() % 16 for p in self.parameters)
        addresses = torch.tensor(places, dtype=torch.int64)
        if self.masters.is_cuda:
            addresses = addresses.pin_memory().to(self.masters.device, non_blocking=True)
        adamw(
            addresses, gradients[0].dtype, aligned, self.blocks, self.masters, self.first, self.second, self.weights,
            BLOCK, numbers,
        )  # fmt: skip

    def _step_plainly(self, gradients: list[Tensor], numbers: tuple[float, ...]) -> None:
        lr, decay, beta1, beta2, eps, correction1, root2 = numbers
        places = zip(gradients, *map(self._views, (self.masters, self.first, self.second)), strict=True)
        for gradient, master, first, second in places:
            gradient = gradient.float()
            first.lerp_(gradient, 1.0 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            master.mul_(1.0 - lr * decay)
            master.addcdiv_(first, second.sqrt().div_(root2).add_(eps), value=-lr / correction1)
        if self.weights is not None:
            self.weights.copy_(self.masters)

    def _views(self, flat: Tensor) -> list[Tensor]:
        """The pieces of a flat tensor in the shapes of the parameters."""
        return [
            flat[start : start + parameter.numel()].view(parameter.shape)
            for start, parameter in zip(self.starts, self.parameters, strict=True)
        ]


def _blocks(lengths: list[int], device: torch.device) -> tuple[list[int], tuple[Tensor, Tensor, Tensor]]:
    """Where each tensor starts in the flat arrays; for each block its tensor and offset there; the lengths."""
    counts = [-(-length // BLOCK) for length in lengths]
    starts = [sum(counts[:index]) * BLOCK for index in range(len(counts))]
    tensor_of = [index for index, count in enumerate(counts) for _ in range(count)]
    offsets = [BLOCK * block for count in counts for block in range(count)]
    return starts, (
        torch.tensor(tensor_of, dtype=torch.int32, device=device),
        torch.tensor(offsets, dtype=torch.int64, device=device),
        torch.tensor(lengths, dtype=torch.int64, device=device),
    )
