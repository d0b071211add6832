"""The ways to feed a step that the lab on the data pipeline compares. It measures nothing.

Whoever opens a feed closes it: `with feed_of(...) as feed`. Worker processes end there, not when garbage is collected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from speedlab.data.online import OnlineWindows
from speedlab.data.stream import BatchStream
from speedlab.recipe import Recipe


class DelayedWindows:
    """A dataset whose batches take a while to come, as from a slow disk or after costly preparation.

    delay_ms: before each batch, in the process that loads it. every: only before each so many-th, a loader that is
    quick on the whole and has hiccups.
    """

    def __init__(self, windows: Any, delay_ms: float, every: int = 1) -> None:
        self._windows, self._delay_s, self._every = windows, delay_ms / 1e3, every
        self._loaded = 0

    def __len__(self) -> int:
        return len(self._windows)

    def __getitems__(self, indices: list[int]) -> Any:
        self._loaded += 1
        if self._loaded % self._every == 0:
            time.sleep(self._delay_s)
        return self._windows.__getitems__(indices)


@contextmanager
def mapped(
    tokens: Any,
    recipe: Recipe,
    device: torch.device,
    *,
    carried: str = "pinned_non_blocking",
    workers: int = 0,
    prefetch: int = 2,
    delay_ms: float = 0.0,
    every: int = 1,
) -> Iterator[BatchStream]:
    """Windows of the mapped token file. carried: a value of the recipe field `host_memory`."""
    stream = BatchStream(
        tokens, micro_batch=recipe.micro_batch, context_length=recipe.context_length, host_memory=carried,
        device=device, seed=recipe.seed, num_workers=workers, prefetch=prefetch,
        around=lambda windows: DelayedWindows(windows, delay_ms, every) if delay_ms else windows,
    )  # fmt: skip
    try:
        yield stream
    finally:
        stream.close()


@contextmanager
def tokenised_online(
    documents: Sequence[str],
    ranks: int | None,
    recipe: Recipe,
    device: torch.device,
    *,
    workers: int = 0,
    pin: bool = True,
) -> Iterator[Iterator]:
    """Text that is encoded when its batch is asked for, or ahead of it by worker processes. pin: through page-locked
    memory, without waiting for the copy."""
    windows = OnlineWindows(
        documents, ranks=ranks, micro_batch=recipe.micro_batch, context_length=recipe.context_length
    )
    loader = DataLoader(
        windows, batch_size=None, num_workers=workers, pin_memory=pin and device.type == "cuda",
        generator=torch.Generator().manual_seed(recipe.seed),
    )  # fmt: skip
    batches = _carried(loader, device, non_blocking=pin)
    try:
        yield batches
    finally:
        batches.close()


def _carried(loader: DataLoader, device: torch.device, *, non_blocking: bool) -> Iterator:
    for batch in loader:
        yield tuple(part.to(device, non_blocking=non_blocking) for part in batch)
