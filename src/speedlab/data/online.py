"""Text that is tokenised while the model trains, as many first programs do it, instead of once before.

Each worker process takes its share of the documents. It knows nothing of devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from speedlab.data.tokenizer import get_tokenizer


class OnlineWindows(IterableDataset[tuple[Tensor, Tensor]]):
    """Endless (inputs_BT, targets_BT), int64, of documents that are encoded anew in each epoch.

    ranks: of the tokenizer, None for all of GPT-2's. Each worker reads its own part of the documents, so the order of
    batches depends on the number of workers.
    """

    def __init__(self, documents: Sequence[str], *, ranks: int | None, micro_batch: int, context_length: int) -> None:
        self._documents, self._ranks = documents, ranks
        self._shape = (micro_batch, context_length + 1)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        own = self._documents if worker is None else self._documents[worker.id :: worker.num_workers]
        tokenizer = get_tokenizer(self._ranks)
        size = self._shape[0] * self._shape[1]
        waiting: list[int] = []
        while True:
            for document in own:
                waiting += [*tokenizer.encode(document), tokenizer.end_of_text]
                while len(waiting) >= size:
                    windows = torch.from_numpy(np.array(waiting[:size], dtype=np.int64)).view(self._shape)
                    del waiting[:size]
                    yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
