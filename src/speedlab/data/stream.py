"""Batches of token ids on the device, for ever, in a seeded order. It knows nothing of corpora, models or stopwatches.

Shapes: B sequences of a micro-batch, T context length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler

from speedlab.data.double_buffer import CudaCopies, DoubleBuffer
from speedlab.errors import BadInput, check_choice


@dataclass(frozen=True)
class Transfer:
    """How a batch leaves the host: from page-locked memory or not, whether the host waits, whether it goes ahead."""

    pin: bool
    non_blocking: bool
    ahead: bool = False  # the next batch is copied in a stream of its own while the present one is used


# What the recipe field host_memory means. There is no unpinned non-blocking form: the copy would wait anyway.
HOST_MEMORY = {
    "pageable": Transfer(pin=False, non_blocking=False),
    "pinned": Transfer(pin=True, non_blocking=False),
    "pinned_non_blocking": Transfer(pin=True, non_blocking=True),
    "double_buffered": Transfer(pin=True, non_blocking=True, ahead=True),
}


class BatchStream(Iterator[tuple[Tensor, Tensor]]):
    """Endless iterator over (inputs_BT, targets_BT), int64 on `device`; targets are the inputs one token later.

    The tokens are cut into windows of T + 1 without overlap. In an epoch each window is seen at most once over all
    ranks, in an order that depends on `seed` and the epoch alone; what does not fill a batch on every rank is dropped
    (`summary` says how much). The same arguments give the same batches whatever `host_memory` is, and the global
    random state of torch is left alone.

    tokens: (num_tokens,) integers. num_workers: processes that load ahead; 0 loads when a batch is asked for.
    prefetch: batches that each of them holds ready, 2 as in PyTorch.
    around: wraps the dataset, for experiments that change how a batch is loaded.
    Raises BadInput for an unknown host_memory and for a corpus shorter than one batch on every rank.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        micro_batch: int,
        context_length: int,
        host_memory: str,
        device: torch.device | str,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        prefetch: int = 2,
        around: Callable[[Dataset], Dataset] = lambda windows: windows,
    ) -> None:
        check_choice("host_memory", host_memory, HOST_MEMORY)
        needed_tokens = world_size * micro_batch * (context_length + 1)
        if len(tokens) < needed_tokens:
            raise BadInput(
                f"the corpus has {len(tokens):,} tokens, but one batch needs {needed_tokens:,} ({world_size} ranks x "
                f"{micro_batch} sequences x {context_length + 1} tokens): give a longer corpus or a smaller batch"
            )
        windows = _Windows(tokens, context_length)
        sampler = DistributedSampler(windows, num_replicas=world_size, rank=rank, seed=seed, drop_last=True)
        self.device = torch.device(device)
        self.batches_per_epoch = len(sampler) // micro_batch  # on each rank
        self.tokens_per_epoch = self.batches_per_epoch * micro_batch * context_length * world_size  # over all ranks
        self.summary = _summary(len(tokens), len(windows), context_length, micro_batch, world_size)
        self._num_delivered = 0
        self._first: tuple[Tensor, Tensor] | None = None
        self._batches: Iterator[tuple[Tensor, Tensor]] | None = None

        transfer = HOST_MEMORY[host_memory]
        # Only CUDA has page-locked memory to copy from; elsewhere the field changes nothing.
        self.pins = transfer.pin and self.device.type == "cuda"
        self._non_blocking = transfer.non_blocking and self.pins
        self._ahead = transfer.ahead and self.pins
        self._loader = DataLoader(
            around(windows),
            batch_sampler=_EndlessBatches(sampler, micro_batch),
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=prefetch if num_workers else None,  # PyTorch refuses one without workers
            pin_memory=self.pins and not self._ahead,  # a double buffer has page-locked memory of its own
            generator=torch.Generator().manual_seed(seed),  # otherwise the loader draws from the global one
        )

    @property
    def epoch(self) -> int:
        """How many epochs have been delivered in full; 0 in the first."""
        return self._num_delivered // self.batches_per_epoch

    def start(self) -> None:
        """Start the loader and its workers and load the first batch on the host, so that a timed window need not."""
        if self._batches is None:
            self._batches = iter(self._loader)
            if self._ahead:
                self._batches = DoubleBuffer(self._batches, CudaCopies(self.device))
            self._first = next(self._batches)

    def __next__(self) -> tuple[Tensor, Tensor]:
        self.start()
        assert self._batches is not None
        inputs_BT, targets_BT = self._first or next(self._batches)
        self._first = None
        self._num_delivered += 1
        if self._ahead:
            return inputs_BT, targets_BT
        return (
            inputs_BT.to(self.device, non_blocking=self._non_blocking),
            targets_BT.to(self.device, non_blocking=self._non_blocking),
        )

    def close(self) -> None:
        """End the worker processes. The stream begins again from the first batch if it is used after that."""
        self._batches = self._first = None
        self._num_delivered = 0


class _Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of T + 1 tokens side by side; a whole batch is gathered at once."""

    def __init__(self, tokens: np.ndarray, context_length: int) -> None:
        length = context_length + 1
        count = len(tokens) // length
        self._windows = np.asarray(tokens)[: count * length].reshape(count, length)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        windows = self._windows[indices]
        # Two packed arrays: a strided view could not be copied to a device without another copy on the host.
        return tuple(torch.from_numpy(part.astype(np.int64)) for part in (windows[:, :-1], windows[:, 1:]))


class _EndlessBatches(Sampler[list[int]]):
    """Batches of indices, epoch after epoch, so that the loader is started once and never inside a timed window."""

    def __init__(self, sampler: DistributedSampler, micro_batch: int) -> None:
        self._sampler = sampler
        self._batches = BatchSampler(sampler, micro_batch, drop_last=True)

    def __iter__(self) -> Iterator[list[int]]:
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            yield from self._batches
            epoch += 1


def _as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """`__getitems__` has joined the batch already. A named function, because worker processes must find it."""
    return batch


def _summary(num_tokens: int, num_windows: int, context_length: int, micro_batch: int, world_size: int) -> str:
    num_batches = num_windows // (micro_batch * world_size)
    seen = num_batches * micro_batch * world_size
    return (
        f"{num_tokens:,} tokens make {num_windows:,} windows of {context_length + 1:,} and {num_batches:,} batches of "
        f"{micro_batch} x {world_size} an epoch; {num_windows - seen:,} windows and "
        f"{num_tokens - num_windows * (context_length + 1):,} tokens at the end are left over"
    )
