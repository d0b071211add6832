"""A recipe is plain data: compared field by field, stored as JSON, refused in one line when it cannot be meant."""

import json
from dataclasses import FrozenInstanceError, fields

import pytest
from data_helper import one_line_error

from speedlab.errors import BadInput
from speedlab.recipe import CHOICES, Recipe, changes, one_line_diff

PLAIN = (str, int, float, bool)


def test_a_recipe_is_frozen_flat_and_plain():
    recipe = Recipe()
    with pytest.raises(FrozenInstanceError):
        recipe.micro_batch = 4
    assert all(type(value) in PLAIN for value in recipe.as_dict().values())
    assert Recipe.from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe
    assert hash(recipe) == hash(Recipe())


def test_the_defaults_are_the_slow_plain_values_and_the_published_size():
    recipe = Recipe()
    # "default" and not "for_loop": PyTorch's own choice is what the published program runs.
    expected = {name: choices[0] for name, choices in CHOICES.items()} | {"optimizer": "default"}
    assert {name: getattr(recipe, name) for name in CHOICES} == expected
    assert (recipe.num_layers, recipe.embedding_width, recipe.num_heads) == (12, 768, 12)
    assert (recipe.context_length, recipe.vocab_size, recipe.dropout, recipe.micro_batch) == (1024, 50_257, 0.1, 8)


@pytest.mark.parametrize(
    ("batch", "context", "accumulation", "ranks", "tokens"),
    [(8, 1024, 1, 1, 8_192), (16, 1024, 4, 1, 65_536), (2, 64, 3, 4, 1_536), (1, 1, 1, 1, 1)],
)
def test_tokens_of_a_step_are_counted_over_micro_batches_and_processes(batch, context, accumulation, ranks, tokens):
    recipe = Recipe(micro_batch=batch, context_length=context, accumulation=accumulation, data_parallel=ranks)
    assert recipe.tokens_per_step == tokens


def test_tokens_of_a_step_do_not_depend_on_how_they_are_split_up():
    splits = [(8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)]
    counts = {Recipe(micro_batch=b, accumulation=k, data_parallel=w).tokens_per_step for b, k, w in splits}
    assert counts == {8_192}
    inert = {name: choices[-1] for name, choices in CHOICES.items()}
    assert Recipe(**inert).tokens_per_step == 8_192


@pytest.mark.parametrize(
    ("vocab_size", "padded"), [(50_257, 50_304), (1_001, 1_024), (1_024, 1_024), (1, 64), (65, 128)]
)
def test_padding_rounds_the_rows_up_to_64_and_leaves_the_true_ids_alone(vocab_size, padded):
    recipe = Recipe(vocab_size=vocab_size)
    assert recipe.padded_vocab_size == recipe.vocab_size == vocab_size
    assert recipe.but(vocabulary="padded").padded_vocab_size == padded
    assert recipe.but(vocabulary="padded").vocab_size == vocab_size


@pytest.mark.parametrize("name", CHOICES)
def test_an_unknown_value_is_refused_with_the_field_the_value_and_the_choices(name):
    one_line_error(BadInput, lambda: Recipe(**{name: "sideways"}), name, "'sideways'", *map(str, CHOICES[name]))


@pytest.mark.parametrize("name", CHOICES)
def test_every_listed_value_makes_a_recipe(name):
    assert [getattr(Recipe(**{name: value}), name) for value in CHOICES[name]] == list(CHOICES[name])


NUMBERS = ("num_layers", "num_heads", "context_length", "vocab_size", "micro_batch", "data_parallel", "accumulation")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, None])
def test_counts_must_be_whole_and_at_least_one(name, value):
    one_line_error(BadInput, lambda: Recipe(**{name: value}), name, repr(value), "at least 1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dropout", 1.0), ("dropout", -0.1), ("dropout", float("nan")), ("dropout", "0.1"), ("dropout", True),
        ("learning_rate", -1e-4), ("learning_rate", float("inf")), ("weight_decay", float("nan")),
    ],
)  # fmt: skip
def test_rates_out_of_range_are_refused(name, value):
    one_line_error(BadInput, lambda: Recipe(**{name: value}), name, repr(value))


@pytest.mark.parametrize("value", [-1, 1.5, "lucky", None])
def test_a_seed_must_be_a_whole_number(value):
    one_line_error(BadInput, lambda: Recipe(seed=value), "seed", repr(value))


def test_a_width_that_the_heads_cannot_share_is_refused():
    one_line_error(BadInput, lambda: Recipe(embedding_width=100, num_heads=12), "100", "12", "multiple")
    assert Recipe(embedding_width=96, num_heads=12).head_width == 8


def test_an_unknown_field_is_refused_with_the_known_ones():
    known = [f.name for f in fields(Recipe)]
    one_line_error(BadInput, lambda: Recipe().but(attentoin="sdpa"), "attentoin", *known)
    one_line_error(BadInput, lambda: Recipe.from_dict({"batch": 8}), "'batch'", *known)


def test_differences_are_shown_as_a_reader_would_write_them():
    before = Recipe()
    after = before.but(attention="sdpa", micro_batch=32, qkv_bias=True)
    assert changes(before, after) == {
        "attention": ("plain", "sdpa"), "micro_batch": (8, 32), "qkv_bias": (False, True),
    }  # fmt: skip
    assert one_line_diff(before, before.but(attention="sdpa")) == 'attention: "plain" -> "sdpa"'
    assert one_line_diff(before, before.but(micro_batch=32)) == "micro_batch: 8 -> 32"
    assert one_line_diff(before, before) == ""
