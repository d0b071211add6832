"""Profiles scale every rung alike, keep what a rung changes, and are chosen by the memory that is there."""

import pytest
from data_helper import one_line_error

from speedlab.errors import BadInput
from speedlab.ladder import LADDERS, NINE_STEPS, SIX_STEPS, get_ladder
from speedlab.profile import FULL, PROFILES, SMOKE, T4, check_steps, get_profile
from speedlab.recipe import changes

GIB = 2**30
EVERY = [(profile, ladder, rung.key) for profile in PROFILES for ladder in LADDERS for rung in LADDERS[ladder]]


@pytest.mark.parametrize(("profile", "ladder", "key"), EVERY)
def test_a_scaled_rung_still_changes_exactly_its_own_field(profile, ladder, key):
    profile, ladder = PROFILES[profile], get_ladder(ladder)
    before = ladder.before(key)
    if before is not None:
        difference = changes(profile.recipe(ladder, before), profile.recipe(ladder, key))
        nothing_to_remove = (ladder.name, key) == ("removed", "data_parallel")
        assert set(difference) == (set() if nothing_to_remove else set(ladder.rung(key).change))


def test_full_is_the_ladder_itself():
    for ladder in LADDERS.values():
        assert [FULL.recipe(ladder, key) for key in ladder.keys] == [ladder.recipe_at(key) for key in ladder.keys]


def test_t4_takes_a_quarter_of_each_micro_batch_and_nothing_else():
    for key in NINE_STEPS.keys:
        full, quarter = NINE_STEPS.recipe_at(key), T4.recipe(NINE_STEPS, key)
        assert full == quarter.but(micro_batch=full.micro_batch)
    assert T4.recipe(NINE_STEPS, "baseline").micro_batch == 2
    assert T4.recipe(NINE_STEPS, "batch_size").micro_batch == 8
    assert T4.recipe(SIX_STEPS, "baseline").micro_batch == 4


def test_smoke_is_a_toy_whose_two_recipes_of_a_rung_are_one_and_which_is_never_published():
    recipe = SMOKE.recipe(NINE_STEPS, "padded_vocab")
    assert (recipe.num_layers, recipe.embedding_width, recipe.context_length) == (2, 64, 64)
    assert (recipe.vocab_size, recipe.padded_vocab_size) == (1_001, 1_024)
    assert recipe.dropout == 0.0  # so that the contract check and the timing share one compiled graph
    assert recipe.vocab_size == SMOKE.tokenizer_ranks + 1
    assert [profile.name for profile in PROFILES.values() if not profile.publishable] == ["smoke"]


def test_rows_of_a_gpu_get_their_thirty_samples():
    assert all(profile.steps >= 30 for profile in PROFILES.values() if profile.publishable)
    assert all(profile.warmup_steps >= 3 for profile in PROFILES.values())


def test_a_micro_batch_never_falls_below_one_sequence():
    from dataclasses import replace

    assert replace(T4, micro_batch_divisor=1_000).recipe(NINE_STEPS, "baseline").micro_batch == 1


@pytest.mark.parametrize(
    ("memory", "profile"),
    [(None, SMOKE), (14.5 * GIB, T4), (23.6 * GIB, T4), (39.4 * GIB, FULL), (79.1 * GIB, FULL), (139.8 * GIB, FULL)],
)
def test_auto_chooses_by_the_memory_of_the_gpu(memory, profile):
    assert get_profile("auto", gpu_memory_bytes=memory and int(memory)) is profile


def test_a_name_is_taken_whatever_the_memory():
    assert get_profile("full", gpu_memory_bytes=None) is FULL
    assert get_profile("smoke", gpu_memory_bytes=80 * GIB) is SMOKE


def test_an_unknown_profile_is_refused_with_the_known_ones():
    one_line_error(BadInput, lambda: get_profile("huge"), "'huge'", *PROFILES, "auto")


@pytest.mark.parametrize("steps", [-1, 1.5, "9", True, None])
def test_impossible_steps_are_refused(steps):
    one_line_error(BadInput, lambda: check_steps(steps), "steps", repr(steps), "0")


def test_possible_steps_are_given_back():
    assert [check_steps(0), check_steps(40)] == [0, 40]
