"""The same again, bit for bit? A training run and single operations repeated, and PyTorch's deterministic mode.

It compares bits and times nothing; which operations a rung needs is not its business.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from speedlab.errors import NotAvailable
from speedlab.training.optimizer import build_optimizer
from speedlab.training.step import TrainingStep

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
NO_SUCH_KERNEL = re.compile(r"[Nn]o (viable backend|available kernel)")
# cuBLAS repeats its sums only in a workspace of fixed size, and reads this when it starts, once for each process.
CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def deterministic_mode(*, warn_only: bool = False) -> Iterator[None]:
    """PyTorch's process-wide switches for repeatable kernels, put back afterwards.

    warn_only: warn of each operation that has no repeatable form instead of refusing it.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


def restart(step: TrainingStep, weights: dict[str, Tensor]) -> None:
    """The step as it was when it was made: these weights, no moments, a fresh scaler. Compiled code stays.

    Not for master weights, which would have to be copied before the cast.
    """
    from speedlab.model import load_weights

    assert not step.precision.masters, "masters are copied before the cast"
    load_weights(step.model, weights)
    step.optimizer = build_optimizer(step.recipe, step.model.parameters())
    step.scaler = torch.amp.GradScaler(step.device.type) if step.precision.scaled else None
    step.calls = 0


def run_again(
    step: TrainingStep, weights: dict[str, Tensor], batches: Callable[[], Iterator[Any]], steps: int
) -> dict[str, Any]:
    """Train `steps` steps twice from the same start, and compare: {losses_equal, weights_equal, and by how much}.

    batches: makes the same batches each time.
    """
    runs = []
    for _ in range(2):
        restart(step, weights)
        stream = batches()
        losses = torch.stack([step(stream) for _ in range(steps)])
        runs.append((losses, [parameter.detach().clone() for parameter in step.model.parameters()]))
    (losses, one), (again, two) = runs
    pairs = list(zip(one, two, strict=True))
    return {
        "steps": steps,
        "losses_equal": torch.equal(losses, again),
        "largest_loss_difference": (losses - again).abs().max().item(),
        "weights_equal": all(torch.equal(a, b) for a, b in pairs),
        "largest_weight_difference": max((a.float() - b.float()).abs().max().item() for a, b in pairs),
    }


def operations(device: torch.device) -> dict[str, Callable[[], list[Tensor]]]:
    """Name -> a function that computes outputs and gradients from fixed inputs, in the shapes of the first batch.

    The last one adds floats by atomic operations on a GPU: if it repeats, so might anything else by luck.
    """
    on_gpu = device.type == "cuda"
    batch, tokens, width, heads, vocabulary = (8, 1024, 768, 12, 50_257) if on_gpu else (2, 32, 32, 2, 101)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    generator = torch.Generator().manual_seed(0)

    def number(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, kind).requires_grad_()

    def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
        output = function(*inputs)
        direction = torch.ones_like(output) / 3
        return [output.detach(), *torch.autograd.grad(output, inputs, direction)]

    ids = torch.randint(vocabulary, (batch, tokens), generator=generator).to(device)
    table, x = number(vocabulary, width), number(batch * tokens, width)
    qkv = [number(batch, heads, tokens, width // heads) for _ in range(3)]

    def attention(name: str, backend: SDPBackend) -> list[Tensor]:
        with sdpa_kernel(backend):
            try:
                return gradients(partial(F.scaled_dot_product_attention, is_causal=True), *qkv)
            except RuntimeError as error:
                if not NO_SUCH_KERNEL.search(str(error)):
                    raise
                raise NotAvailable(f"attention kernel {name} does not run here: {str(error).split('. ')[0]}") from error

    def cross_entropy() -> list[Tensor]:
        logits = F.linear(x, table).detach().requires_grad_()
        return gradients(lambda logits: F.cross_entropy(logits, ids.flatten()), logits)

    norm = number(width), number(width)
    square, sums = number(width, width), torch.zeros(1_000, device=device)
    where = torch.randint(1_000, (200_000,), generator=generator).to(device)
    added = number(200_000, kind=torch.float32).detach()
    return {
        "token table": lambda: gradients(partial(F.embedding, ids), table),
        **{f"attention, {name}": partial(attention, name, backend) for name, backend in BACKENDS.items()},
        "cross-entropy": cross_entropy,
        "LayerNorm": lambda: gradients(lambda a, w, b: F.layer_norm(a, (width,), w, b), x, *norm),
        "linear, square": lambda: gradients(F.linear, x, square),
        "linear, head": lambda: gradients(F.linear, x, table),
        "index_add_ of floats, for comparison": lambda: [sums.clone().index_add_(0, where, added)],
    }


def repeat(make: Callable[[], list[Tensor]], repeats: int) -> dict[str, Any]:
    """Compare `repeats` more results with the first: {repeats, different, largest_difference}."""
    first, different, largest = make(), 0, 0.0
    for _ in range(repeats):
        again = make()
        if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
            different += 1
            gaps = [(a.float() - b.float()).abs().max().item() for a, b in zip(first, again, strict=True)]
            largest = max(largest, *gaps)
    return {"repeats": repeats, "different": different, "largest_difference": largest}


def warned_operations(call: Callable[[], Any]) -> list[str]:
    """What PyTorch says in deterministic mode about operations of `call` that have no repeatable form, each once."""
    with deterministic_mode(warn_only=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    said = dict.fromkeys(re.split(r"\(Triggered internally|\. ", str(one.message))[0].strip() for one in caught)
    return [text for text in said if "determinis" in text]
