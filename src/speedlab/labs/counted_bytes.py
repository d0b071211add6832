"""Bytes that a forward and backward pass reads and writes, counted: operator by operator, or kernel by compiled kernel.

Both counts say that each operator or kernel reads its inputs once and writes its outputs once, whatever a cache does.
It knows no recipe and measures no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from speedlab.errors import NotAvailable

# They move nothing, although their schema does not say that the output is the input, or that it is not written.
MOVE_NOTHING = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class OperatorBytes(TorchDispatchMode):
    """Inside this context `total` grows by the bytes of all tensors that an operator takes and gives. Views are free.

    calls: how many operators there were that moved anything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if not moves_nothing(function):
            self.calls += 1
            self.total += sum(x.nbytes for x in tree_leaves((args, kwargs, found)) if isinstance(x, Tensor))
        return found


def moves_nothing(function: Any) -> bool:
    """Whether an operator gives another view of its input, or memory that nothing has been written to."""
    schema = function._schema
    views = [value.alias_info is not None and not value.alias_info.is_write for value in schema.returns]
    return (bool(views) and all(views)) or schema.name.split("::")[-1] in MOVE_NOTHING


@dataclass
class CompiledBytes:
    """graphs: bytes of each graph that was compiled. problem: why there is no count, None while there is one."""

    graphs: list[int] = field(default_factory=list)
    problem: str | None = None

    @property
    def total(self) -> int:
        """Bytes of all graphs; `NotAvailable` where they were not counted."""
        if self.problem or not self.graphs:
            raise NotAvailable(self.problem or "no graph was compiled: they came from a cache, or nothing was compiled")
        return sum(self.graphs)


@contextmanager
def compiled_bytes() -> Iterator[CompiledBytes]:
    """Ask inductor, for each graph that it compiles inside, for its own count over the kernels that it made.

    The count is no public interface: where it is missing or fails, compiling goes on and the result says so.
    """
    from torch._inductor.graph import GraphLowering

    counted = CompiledBytes()
    original = getattr(GraphLowering, "compile_to_module", None)
    if original is None or not hasattr(GraphLowering, "count_bytes"):
        counted.problem = "this PyTorch's compiler counts no bytes"
        yield counted
        return

    def compile_and_count(graph: Any) -> Any:
        module = original(graph)
        try:
            counted.graphs.append(int(graph.count_bytes()[0]))
        except Exception as error:
            counted.problem = f"the compiler's count failed: {type(error).__name__}"
        return module

    GraphLowering.compile_to_module = compile_and_count
    try:
        yield counted
    finally:
        GraphLowering.compile_to_module = original


def operator_bytes(forward: Any, tokens_BT: Tensor) -> OperatorBytes:
    """Count the forward and backward pass of a model alone: no loss, no optimizer."""
    with torch.no_grad():
        gradient = torch.ones_like(forward(tokens_BT))
    with OperatorBytes() as counted:
        forward(tokens_BT).backward(gradient)
    return counted
