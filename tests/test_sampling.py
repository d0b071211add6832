"""Sampling: only ids that exist, the likeliest ones, a state that is left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from speedlab.data.tokenizer import get_tokenizer
from speedlab.errors import BadInput
from speedlab.model.sampling import sample


class Fixed(nn.Module):
    """Logits that do not depend on the tokens; the longest input is kept."""

    context_length = 4

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.longest = 0

    def forward(self, tokens_BT: Tensor) -> Tensor:
        self.longest = max(self.longest, tokens_BT.shape[1])
        return self.logits.expand(*tokens_BT.shape, -1)


def test_ids_of_a_padded_vocabulary_are_never_drawn_and_the_text_can_be_decoded() -> None:
    model = Fixed([0.0] * 1_001 + [100.0] * 23)  # the last ones would be the likeliest by far
    tokenizer = get_tokenizer(1_000)
    ids = sample(model, [tokenizer.end_of_text], new_tokens=30, vocab_size=1_001, temperature=5.0, top_k=2_000)
    assert len(ids) == 31 and max(ids) < 1_001 and len(set(ids)) > 10
    assert len(tokenizer.decode(ids)) > 10
    assert model.training  # put back


def test_draws_follow_the_probabilities_of_the_likeliest_and_a_seed_repeats_them() -> None:
    model = Fixed([0.0, 2.0, 1.0, -1.0])
    arguments = {"new_tokens": 4_000, "vocab_size": 4, "temperature": 0.5, "top_k": 2}
    drawn = sample(model, [0], seed=1, **arguments)[1:]
    assert set(drawn) == {1, 2}
    expected = torch.tensor([2.0, 1.0]).div(0.5).softmax(0)[0].item()
    assert drawn.count(1) / 4_000 == pytest.approx(expected, abs=0.02)
    assert drawn == sample(model, [0], seed=1, **arguments)[1:] != sample(model, [0], seed=2, **arguments)[1:]
    assert model.longest == 4  # never more than the context


def test_temperature_zero_takes_the_likeliest() -> None:
    assert sample(Fixed([0.0, 3.0, 2.0]), [2], new_tokens=3, vocab_size=3, temperature=0) == [2, 1, 1, 1]


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    sample(Fixed([0.0, 1.0]), [0], new_tokens=5, vocab_size=2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("changes", [{"ids": []}, {"temperature": -1.0}, {"top_k": 0}, {"new_tokens": -1}])
def test_what_cannot_be_sampled_is_refused(changes: dict) -> None:
    arguments = {"ids": [0], "new_tokens": 1, "vocab_size": 2} | changes
    with pytest.raises(BadInput):
        sample(Fixed([0.0, 1.0]), arguments.pop("ids"), **arguments)
