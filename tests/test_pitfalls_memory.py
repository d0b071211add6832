"""What others ran into with memory and batch sizes, each as a test of what this program does instead.

The numbers are stable names of the entries, as in test_pitfalls.py.
"""

from __future__ import annotations

import pytest
import torch
from model_helper import CPU, TINY, lively_weights, random_batches, short_collections

import speedlab
from speedlab.errors import BadInput, NotAvailable
from speedlab.measuring import memory
from speedlab.measuring.batch_probe import probe_micro_batch
from speedlab.training.distributed import Place
from speedlab.training.step import TrainingStep

TOKENS = list(range(61)) * 40


@pytest.fixture(autouse=True, scope="module")
def collections():
    with short_collections():
        yield


class Card:
    """A card on which AdamW's moments leave room for `room` sequences: real steps, and the second one may fail."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.updates: dict[int, int] = {}  # finished ones by micro-batch

    def start(self, recipe, weights, tokens, place):
        step, whole = TrainingStep(recipe, weights, place.device), random_batches(recipe, 4)

        def update(batches):
            if step.optimizer.state and recipe.micro_batch > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            loss = step(batches)
            self.updates[recipe.micro_batch] = self.updates.get(recipe.micro_batch, 0) + 1
            return loss

        update.scaler = step.scaler
        return update, iter(whole)


def found(card: Card, *, at_most: int = 32, **options):
    return probe_micro_batch(
        TINY, lively_weights(TINY), TOKENS, Place(device=CPU), at_most=at_most, start=card.start, **options
    )


def test_13_a_batch_size_that_is_found_has_trained_for_two_updates() -> None:
    card = Card(24)
    probe = found(card, guess=20)
    assert (probe.largest, probe.bounded, probe.exact) == (24, False, True)
    assert probe.largest in [tried.micro_batch for tried in probe.tries if tried.fits]
    # Forward, backward and update, twice; what fails only when the moments are there does not count.
    assert card.updates[24] == 2 and card.updates[25] == 1


def test_13_the_search_for_a_batch_size_ends_and_fails_in_words() -> None:
    assert (found(Card(24), at_most=8, guess=7).largest, found(Card(10**9), at_most=4).bounded) == (8, True)
    with pytest.raises(NotAvailable, match="not even one sequence of 16 tokens fits"):
        found(Card(-1))
    with pytest.raises(BadInput, match="at least 2"):
        found(Card(24), updates=1)  # the moments would not be there yet


def test_13_a_search_leaves_weights_and_random_numbers_as_they_were() -> None:
    weights = lively_weights(TINY)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    probe_micro_batch(TINY, weights, TOKENS, Place(device=CPU), at_most=4, start=Card(3).start)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(weights[name], tensor) for name, tensor in before.items())


def test_15_memory_that_is_not_counted_is_none_and_never_zero() -> None:
    memory.reset_peak(CPU)
    assert memory.read_peak(CPU) == (None, None)
    measured = speedlab.measure(lambda: None, tokens_per_step=1, steps=1, kernels=False, device="cpu")
    assert (measured.peak_allocated_bytes, measured.peak_reserved_bytes) == (None, None)
