"""Small tests of your own model and data, for the symptoms on the troubleshooting page. It knows no recipe or ladder.

Each runs on a CPU in seconds and returns what it found as plain text or numbers; an empty list is good news.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from speedlab.errors import NotAvailable


def unused_parameters(model: nn.Module, forward_backward: Callable[[], Any]) -> list[str]:
    """Names of the parameters that one call of `forward_backward` gives no gradient.

    DistributedDataParallel waits for each of them ("Expected to have finished reduction in the prior iteration").
    Gradients that were there are put aside and come back.
    """
    with _without_gradients(model):
        forward_backward()
        return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def parameters_ready_twice(model: nn.Module, forward_backward: Callable[[], Any]) -> list[str]:
    """Names of the parameters whose gradient is finished more than once in one call of `forward_backward`.

    DistributedDataParallel stops at them ("Expected to mark a variable ready only once"). Reentrant checkpointing of
    a part that is used twice does it, and so do several backward passes.
    """
    counts: dict[str, int] = {}

    def count(name: str) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            counts[name] = counts.get(name, 0) + 1

        return hook

    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    handles = [p.register_post_accumulate_grad_hook(count(name)) for name, p in named]
    try:
        with _without_gradients(model):
            forward_backward()
    finally:
        for handle in handles:
            handle.remove()
    return [name for name, _ in named if counts.get(name, 0) > 1]


def first_nonfinite(model: nn.Module, forward_backward: Callable[[], Any]) -> str | None:
    """Where the first NaN or infinity of one call appears, in order of computation; None where all is finite.

    "blocks.3.attention" for the output of a module, "gradient of head.weight" where only gradients are wrong. A mask
    that hides all keys of a query is the usual cause after a change of the attention kernel.
    """
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and not _finite(output):
                found.append(name or type(module).__name__)

        return hook

    handles = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
    try:
        with _without_gradients(model):
            forward_backward()
            for name, p in model.named_parameters():
                if p.grad is not None and not found and not _finite(p.grad):
                    found.append(f"gradient of {name}")
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def graph_breaks(function: Callable[..., Any], *inputs: Any) -> list[str]:
    """Why `torch.compile` cannot take this call as one graph, one line for each break; nothing is generated.

    Custom autograd functions, prints, `.item()` and data-dependent branches show here.
    """
    torch._dynamo.reset()
    explained = torch._dynamo.explain(function)(*inputs)
    return [_one_line(reason) for reason in explained.break_reasons]


def _one_line(reason: Any) -> str:
    """Where a graph ends, in the user's own code, and dynamo's word for why."""
    why = " ".join(str(reason.reason).split())[:200]
    if not reason.user_stack:
        return why
    frame = reason.user_stack[-1]
    return f"{frame.name}, line {frame.lineno} of {Path(frame.filename).name}: {(frame.line or '').strip()} ({why})"


def graphs_for_shapes(function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> int:
    """How many graphs `torch.compile` makes for these calls: one for each shape means a compilation for each.

    The graphs are captured and run as they are; no code is generated.
    """
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, backend="eager")
    for arguments in inputs:
        compiled(*arguments)
    return int(counters["stats"]["unique_graphs"])


def worker_growth_bytes(loader: Iterable[Any], *, epochs: int = 3) -> list[int]:
    """Private memory of the workers of a DataLoader at the end of each epoch, in bytes; Linux only.

    Growth from epoch to epoch is memory that was shared with the main process and is copied when it is touched: every
    look at an item of a Python list writes its reference count. NumPy arrays and tensors do not grow. Needs
    `persistent_workers=True`, or the workers end with the epoch.
    """
    if not Path("/proc/self/smaps_rollup").is_file():
        raise NotAvailable("the private memory of processes is read from /proc, which this system does not have")
    before = set(multiprocessing.active_children())
    sizes = []
    for _ in range(epochs):
        for _ in loader:
            pass
        workers = [process for process in multiprocessing.active_children() if process not in before]
        if not workers:
            raise NotAvailable("the loader has no workers that stay: give num_workers and persistent_workers=True")
        sizes.append(sum(_private_bytes(worker.pid) for worker in workers))
    return sizes


def _private_bytes(pid: int | None) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Private_Clean:")))


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return all(map(_finite, value.values())) if isinstance(value, dict) else True


@contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """Start without gradients, and give back those that were there."""
    kept = [(p, p.grad) for p in model.parameters()]
    for p, _ in kept:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in kept:
            p.grad = grad
