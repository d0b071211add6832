"""The decision path: what it says of recipes whose need is known, and that it never says yes to what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from speedlab.cards import CARDS, Card
from speedlab.errors import BadInput
from speedlab.labs.together import BUDGETS, PLAIN, VARIANTS, WANTED
from speedlab.memory_fit import fits, needed_bytes
from speedlab.memory_path import ENOUGH_TOKENS, decide, workers_needed
from speedlab.memory_plan import plan_memory
from speedlab.recipe import Recipe

L4 = next(card for card in CARDS if card.slug == "nvidia-l4")
LARGE = PLAIN.but(**WANTED)


def card(gib: float) -> Card:
    return replace(L4, memory_gib=gib)


def keys(path) -> list[set[str]]:
    return [set(choice.change) for choice in path]


def test_what_fits_is_left_alone_but_for_fused_attention() -> None:
    small = Recipe(num_layers=2, embedding_width=64, num_heads=2, context_length=64)
    path = decide(small, card(24))
    assert keys(path) == [set(), {"attention"}] and path[-1].fits
    assert keys(decide(small.but(attention="sdpa"), card(24))) == [set()]


def test_smaller_passes_come_before_recomputing_as_long_as_they_fill_the_card() -> None:
    path = decide(LARGE, card(24))
    assert keys(path) == [set(), {"attention"}, {"micro_batch", "accumulation"}]
    assert path[-1].recipe.checkpointing == "off" and path[-1].fits and not path[0].fits
    assert path[-1].recipe.tokens_per_step == LARGE.tokens_per_step


def test_where_one_sequence_does_not_fit_something_is_recomputed() -> None:
    path = decide(LARGE.but(micro_batch=1), card(14))
    assert [choice.change.get("checkpointing") for choice in path] == [None, None, "selective", "every_block"]
    assert [choice.fits for choice in path] == [False, False, False, True]
    both = decide(LARGE, card(16))[-1]
    assert both.fits and both.recipe.checkpointing == "every_block" and both.recipe.accumulation == 2


def test_passes_too_small_to_fill_the_card_are_the_last_resort() -> None:
    path = decide(LARGE.but(context_length=1024, micro_batch=16), card(11))
    assert set(path[-1].change) == {"micro_batch", "accumulation"} and "do not fill" in path[-1].cost
    assert path[-1].fits and path[-1].recipe.micro_batch * 1024 < ENOUGH_TOKENS
    assert path[-2].recipe.checkpointing == "every_block"


def test_what_never_fits_ends_with_a_no() -> None:
    path = decide(LARGE, card(4))
    assert not any(choice.fits for choice in path) and path[-1].recipe.checkpointing == "every_block"


@pytest.mark.parametrize("gib", [5, 8, 12, 16, 20, 24, 40, 80])
def test_each_choice_tells_what_the_planner_tells_of_its_recipe(gib: float) -> None:
    path = decide(LARGE, card(gib))
    assert path[0].recipe == LARGE and path[0].change == {}
    assert not any(choice.fits for choice in path[:-1] if choice.recipe.attention == "sdpa")
    for choice in path:
        assert choice.fits == fits(choice.recipe, card(gib)) == (choice.needed_bytes <= gib * 2**30)
        assert choice.needed_bytes == needed_bytes(choice.recipe, card(gib))
        assert choice.peak_allocated_bytes == plan_memory(choice.recipe, capability=(8, 9)).peak_allocated_bytes
        assert {name: getattr(choice.recipe, name) for name in choice.change} == choice.change
        assert set(choice.as_dict()) >= {"question", "change", "cost", "fits"}


def test_the_lab_asks_for_what_does_not_fit_without_the_levers() -> None:
    wanted = {name: LARGE.but(**variant.change) for name, variant in VARIANTS.items()}
    budget = card(24)
    assert not any(fits(wanted[name], budget) for name in ("baseline", "FlashAttention", "checkpointing", "pipeline"))
    assert fits(wanted["all three"], budget)
    assert {gib for gib, _, _ in BUDGETS} == {16, 24} and all(set(names) <= set(VARIANTS) for _, _, names in BUDGETS)


@pytest.mark.parametrize(
    ("load_ms", "step_ms", "workers"),
    [(0.0, 10.0, 0), (5.0, 10.0, 0), (6.0, 10.0, 1), (10.0, 10.0, 1), (11.0, 10.0, 2), (39.0, 10.0, 4)],
)
def test_workers_follow_from_the_cost_of_a_batch(load_ms: float, step_ms: float, workers: int) -> None:
    assert workers_needed(load_ms, step_ms) == workers


@pytest.mark.parametrize("times", [(-1.0, 10.0), (1.0, 0.0)])
def test_times_that_cannot_be_are_one_line(times: tuple[float, float]) -> None:
    with pytest.raises(BadInput, match="give milliseconds"):
        workers_needed(*times)
