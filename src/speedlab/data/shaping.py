"""Texts of many lengths as batches of one shape: padded to the longest possible, to the longest present, or packed.

It knows nothing of corpora or devices. Shapes: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]

# The target that cross-entropy leaves out (`ignore_index` of torch.nn.functional.cross_entropy).
IGNORED = -100
# Lengths of a batch are rounded up to this, so that there are few different shapes and matmuls stay aligned.
LENGTH_MULTIPLE = 64
# Batches whose examples are sorted by length together.
BUCKET_BATCHES = 32

Examples = Sequence[np.ndarray]  # token ids, one array for each text


def real_tokens(targets_BT: Tensor) -> int:
    """Positions that are trained on. Padding is no work done, however fast it is."""
    return int((targets_BT != IGNORED).sum())


def padded(examples: Sequence[np.ndarray], length: int, *, padding_id: int) -> Batch:
    """(inputs_BT, targets_BT), int64, T = `length`. An example of n ids gives n - 1 pairs; the rest is padding."""
    inputs = torch.full((len(examples), length), padding_id, dtype=torch.int64)
    targets = torch.full((len(examples), length), IGNORED, dtype=torch.int64)
    for row, example in enumerate(examples):
        ids = torch.from_numpy(example[: length + 1].astype(np.int64))
        inputs[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
    return inputs, targets


def pad_to_max(examples: Examples, size: int, context: int, *, padding_id: int, seed: int) -> Iterator[Batch]:
    """Every batch (`size`, `context`): one shape, and mostly padding where texts are short."""
    for group in _groups(_shuffled(examples, seed), size):
        yield padded(group, context, padding_id=padding_id)


def dynamic(examples: Examples, size: int, context: int, *, padding_id: int, seed: int) -> Iterator[Batch]:
    """Every batch as long as its longest example, rounded up to a multiple of 64."""
    for group in _groups(_shuffled(examples, seed), size):
        yield padded(group, _length(group, context), padding_id=padding_id)


def bucketed(examples: Examples, size: int, context: int, *, padding_id: int, seed: int) -> Iterator[Batch]:
    """Like `dynamic`, with examples of like length in one batch: sorted inside groups of 32 batches."""
    order = random.Random(seed)
    mixed = _shuffled(examples, seed)
    for start in range(0, len(mixed), size * BUCKET_BATCHES):
        groups = list(_groups(sorted(mixed[start : start + size * BUCKET_BATCHES], key=len), size))
        order.shuffle(groups)
        for group in groups:
            yield padded(group, _length(group, context), padding_id=padding_id)


def packed(examples: Examples, size: int, context: int, *, padding_id: int, seed: int) -> Iterator[Batch]:
    """Examples joined end to end and cut into windows, as GPT-2 is trained: no padding at all.

    A window holds the end of one text and the beginning of the next, and attention sees across that border.
    """
    joined = np.concatenate(_shuffled(examples, seed))
    window = context + 1
    count = len(joined) // window
    windows = torch.from_numpy(joined[: count * window].astype(np.int64)).view(count, window)
    for start in range(0, count - size + 1, size):
        rows = windows[start : start + size]
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


SHAPINGS: dict[str, Callable[..., Iterator[Batch]]] = {
    "pad_to_max": pad_to_max, "dynamic": dynamic, "bucketed": bucketed, "packed": packed,
}  # fmt: skip


def _shuffled(examples: Examples, seed: int) -> list[np.ndarray]:
    mixed = [example for example in examples if len(example) > 1]  # one token predicts nothing
    random.Random(seed).shuffle(mixed)
    return mixed


def _groups(examples: list[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    """Full groups only: an incomplete last one is left out, as everywhere here."""
    for start in range(0, len(examples) - size + 1, size):
        yield examples[start : start + size]


def _length(group: Sequence[np.ndarray], context: int) -> int:
    longest = max(len(example) for example in group) - 1
    return min(context, -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
