"""Padding, bucketing and packing against the texts they are made from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from speedlab.data.online import OnlineWindows
from speedlab.data.shaping import IGNORED, SHAPINGS, padded, real_tokens
from speedlab.data.tokenizer import get_tokenizer

PADDING = 999
RANDOM = np.random.default_rng(0)
EXAMPLES = [
    RANDOM.integers(1, 900, size=length).astype(np.uint16) for length in [2, 5, 9, 30, 64, 65, 66, 100, 129] * 8
]


def pairs(examples, context: int) -> Counter:
    """Each (id, next id) that a text trains, cut off behind the context."""
    found = Counter()
    for ids in examples:
        found.update(zip(ids[:context].tolist(), ids[1 : context + 1].tolist(), strict=False))
    return found


def trained_pairs(batches) -> Counter:
    found = Counter()
    for inputs, targets in batches:
        kept = targets != IGNORED
        found.update(zip(inputs[kept].tolist(), targets[kept].tolist(), strict=True))
    return found


@pytest.mark.parametrize("name", ["pad_to_max", "dynamic", "bucketed"])
def test_padding_trains_every_pair_of_every_text_once(name: str) -> None:
    batches = list(SHAPINGS[name](EXAMPLES, 4, 128, padding_id=PADDING, seed=3))
    assert trained_pairs(batches) == pairs(EXAMPLES, 128)
    assert sum(real_tokens(targets) for _, targets in batches) == sum(min(len(ids) - 1, 128) for ids in EXAMPLES)


def test_lengths_are_as_short_as_the_longest_example_allows() -> None:
    widths = {
        name: [b[0].shape[1] for b in SHAPINGS[name](EXAMPLES, 4, 128, padding_id=0, seed=3)] for name in SHAPINGS
    }
    assert set(widths["pad_to_max"]) == {128} and set(widths["packed"]) == {128}
    assert set(widths["dynamic"]) <= {64, 128}
    assert sum(widths["bucketed"]) < sum(widths["dynamic"]) < sum(widths["pad_to_max"])


def test_packing_holds_no_padding_and_keeps_the_texts_in_one_piece() -> None:
    batches = list(SHAPINGS["packed"](EXAMPLES, 4, 32, padding_id=PADDING, seed=3))
    assert all(real_tokens(targets) == targets.numel() for _, targets in batches)
    inside, trained = pairs(EXAMPLES, 10_000), trained_pairs(batches)
    foreign = sum((trained - inside).values())
    assert foreign <= len(EXAMPLES)  # only where one text meets the next


def test_the_loss_of_a_padded_batch_is_that_of_its_texts_alone() -> None:
    torch.manual_seed(0)
    table = torch.nn.Embedding(1_000, 1_000, dtype=torch.float64)
    examples = EXAMPLES[:5]
    inputs, targets = padded(examples, 128, padding_id=PADDING)
    loss = F.cross_entropy(table(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()
    gradient = table.weight.grad.clone()
    table.weight.grad = None
    kept = [torch.from_numpy(ids[:129].astype(np.int64)) for ids in examples]
    alone = F.cross_entropy(table(torch.cat([i[:-1] for i in kept])), torch.cat([i[1:] for i in kept]))
    alone.backward()
    assert torch.allclose(loss, alone) and torch.allclose(gradient, table.weight.grad)
    assert gradient[PADDING].abs().sum() == 0


def test_text_tokenised_on_the_fly_is_the_text() -> None:
    documents = ["def f():\n    return 1\n" * 20, "x = 3\n" * 50]
    tokenizer = get_tokenizer(1_000)
    stream = iter(OnlineWindows(documents, ranks=1_000, micro_batch=2, context_length=16))
    ids = []
    for _ in range(8):
        inputs, targets = next(stream)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        ids += torch.cat([inputs, targets[:, -1:]], dim=1).flatten().tolist()
    whole = [i for text in documents for i in [*tokenizer.encode(text), tokenizer.end_of_text]]
    assert ids == (whole * 10)[: len(ids)]
