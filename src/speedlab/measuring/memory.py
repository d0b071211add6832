"""Peak memory of one variant. `allocated` is what tensors held; `reserved` is what the allocator took from the card."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from speedlab.device import MEMORY_LIMIT_VARIABLE, memory_limit_bytes
from speedlab.errors import NotAvailable


class PeakMemory(NamedTuple):
    """Bytes at the peak; None on a CPU, where PyTorch counts nothing (never zero)."""

    allocated_bytes: int | None
    reserved_bytes: int | None


def free_everything(device: torch.device) -> None:
    """Let go of what earlier variants left behind, and apply the memory limit if a smaller card is emulated."""
    gc.collect()
    if device.type != "cuda":
        return
    torch.cuda.empty_cache()
    limit = memory_limit_bytes()
    if limit is not None:
        _apply_limit(limit, device)


def card_bytes(device: torch.device) -> int | None:
    """What the allocator may take: the emulated card's memory, or the whole card's; None on a CPU."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return min(total, memory_limit_bytes() or total)


@contextmanager
def emulated_card(gib: float | None, device: torch.device) -> Iterator[None]:
    """Inside, the allocator takes no more than a card of `gib` GiB has; None leaves the limit as it is.

    It is the allocator's share that is limited, not the card: what the driver and libraries hold beside it is not
    counted, bandwidth and arithmetic are those of the real card. Processes that start inside inherit the limit.
    """
    if gib is None:
        yield
        return
    if device.type != "cuda":
        raise NotAvailable("a smaller card can be emulated on a GPU only: a CPU has no allocator that says no")
    before = os.environ.get(MEMORY_LIMIT_VARIABLE)
    os.environ[MEMORY_LIMIT_VARIABLE] = str(gib)
    try:
        limit = memory_limit_bytes()
        assert limit is not None
        _apply_limit(limit, device)
        yield
    finally:
        if before is None:
            del os.environ[MEMORY_LIMIT_VARIABLE]
        else:
            os.environ[MEMORY_LIMIT_VARIABLE] = before
        _apply_limit(memory_limit_bytes(), device)


def _apply_limit(limit_bytes: int | None, device: torch.device) -> None:
    total = torch.cuda.get_device_properties(device).total_memory
    fraction = 1.0 if limit_bytes is None else min(1.0, limit_bytes / total)
    # PyTorch takes no device without a number here.
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.set_per_process_memory_fraction(fraction, index)


def reset_peak(device: torch.device) -> None:
    """Start a new peak from what is alive now, with the allocator's unused blocks given back first."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def read_peak(device: torch.device) -> PeakMemory:
    if device.type != "cuda":
        return PeakMemory(None, None)
    return PeakMemory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
