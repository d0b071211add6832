"""Peak memory of one variant. `allocated` is what tensors held; `reserved` is what the allocator took from the card."""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch

from speedlab.device import memory_limit_bytes


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
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)


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
