"""The whole model: its size, what each position may see, and every variant against one float64 reference."""

import itertools
import math

import pytest
import torch
from data_helper import one_line_error
from model_helper import (
    TINY,
    double_leaves,
    lively_weights,
    random_batches,
    reference_logits,
    reference_loss,
)

from speedlab.errors import BadInput
from speedlab.ladder import LADDERS
from speedlab.model import GPT, canonical_weights, draw_weights, load_weights
from speedlab.recipe import Recipe
from speedlab.training.step import loss_over_true_ids, token_loss

FIELDS = {
    "causal_mask": ("stored", "on_the_fly"),
    "layers": ("handwritten", "native"),
    "attention": ("plain", "sdpa", "sdpa_math", "sdpa_flash"),
    "qkv_projection": ("separate", "merged"),
    "vocabulary": ("exact", "padded"),
}
VARIANTS = [dict(zip(FIELDS, values, strict=True)) for values in itertools.product(*FIELDS.values())]
SHAPES = [{"qkv_bias": bias, "output_head": head} for bias in (False, True) for head in ("untied", "tied")]


def model_of(recipe, weights):
    model = GPT(recipe)
    load_weights(model, weights)
    return model


def size_on_meta(recipe):
    with torch.device("meta"):
        return GPT(recipe).num_parameters()


def test_the_untied_model_holds_162_million_weights_and_the_tied_one_124():
    width, layers, rows, context = 768, 12, 50_257, 1_024
    norm = 2 * width
    attention = 4 * width**2 + width  # no bias on q, k, v
    feed_forward = 8 * width**2 + 4 * width + width
    body = layers * (2 * norm + attention + feed_forward) + norm + context * width
    assert size_on_meta(Recipe()) == body + 2 * rows * width
    assert 162e6 < size_on_meta(Recipe()) < 163.1e6
    tied = Recipe(output_head="tied", qkv_bias=True)
    # 124,439,808 is what the published small model holds, its q/k/v biases included.
    assert size_on_meta(tied) == body + layers * 3 * width + rows * width == 124_439_808


def test_padding_adds_47_rows_to_the_table_and_to_the_head():
    assert size_on_meta(Recipe(vocabulary="padded")) - size_on_meta(Recipe()) == 2 * 47 * 768
    tied = Recipe(output_head="tied")
    assert size_on_meta(tied.but(vocabulary="padded")) - size_on_meta(tied) == 47 * 768


def test_no_speed_choice_but_padding_changes_the_number_of_weights():
    for ladder in LADDERS.values():
        sizes = {size_on_meta(ladder.recipe_at(key).but(vocabulary="exact")) for key in ladder.keys}
        assert len(sizes) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_every_variant_gives_the_logits_loss_and_gradients_of_the_reference(shape):
    recipe = TINY.but(**shape)
    weights = lively_weights(recipe)
    [(tokens, targets)] = random_batches(recipe, 1)
    leaves = double_leaves(weights)
    logits = reference_logits(leaves, recipe, tokens)
    loss = reference_loss(logits, targets)
    gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    for changes in VARIANTS:
        variant = recipe.but(**changes)
        model = model_of(variant, weights)
        found = model(tokens)
        assert found.shape == (3, 16, variant.padded_vocab_size)
        torch.testing.assert_close(found[..., : recipe.vocab_size].double(), logits, rtol=1e-4, atol=1e-4)
        true_loss = torch.nn.functional.cross_entropy(found[..., :61].flatten(0, 1), targets.flatten())
        torch.testing.assert_close(true_loss.double(), loss, rtol=1e-5, atol=1e-5)
        assert loss_over_true_ids(found, targets, 61).item() == pytest.approx(loss.item(), abs=1e-5)
        true_loss.backward()
        for parameter in model.parameters():
            parameter.data = parameter.grad
        for name, gradient in canonical_weights(model, variant).items():
            torch.testing.assert_close(
                gradient.double(), gradients[name], rtol=1e-3, atol=1e-5, msg=f"{name} {changes}"
            )


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(changes.values()))
def test_tokens_to_come_do_not_change_what_came_before(changes):
    recipe = TINY.but(**changes)
    model = model_of(recipe, lively_weights(recipe))
    [(tokens, _)] = random_batches(recipe, 1)
    for position in (1, 7, 15):
        changed = tokens.clone()
        changed[:, position:] = (changed[:, position:] + 17) % recipe.vocab_size
        with torch.no_grad():
            before, after = model(tokens), model(changed)
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-6)
        assert (after[:, position:] - before[:, position:]).abs().amax(dim=-1).min() > 1e-3


def test_each_position_sees_all_that_came_before_it():
    recipe = TINY.but(attention="sdpa")
    model = model_of(recipe, lively_weights(recipe))
    table = model.token_table.weight
    tokens = torch.arange(16)[None]
    (gradient,) = torch.autograd.grad(model(tokens)[0, 9].sum(), table)
    assert (gradient[:10].abs().sum(dim=1) > 0).all()
    assert gradient[10:16].abs().sum() == 0


def test_sequences_of_a_batch_do_not_see_each_other():
    model = model_of(TINY, lively_weights(TINY))
    [(tokens, _)] = random_batches(TINY, 1)
    with torch.no_grad():
        alone = torch.cat([model(row[None]) for row in tokens])
        torch.testing.assert_close(model(tokens), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("changes", "ids"), [({}, 50_257), ({"vocabulary": "padded"}, 50_304)])
def test_a_new_model_of_full_vocabulary_begins_near_the_loss_of_guessing(changes, ids):
    recipe = Recipe(num_layers=2, embedding_width=64, num_heads=2, context_length=32, micro_batch=4, dropout=0.0)
    recipe = recipe.but(**changes)
    model = model_of(recipe, draw_weights(recipe))
    [(tokens, targets)] = random_batches(recipe, 1)
    with torch.no_grad():
        assert token_loss(model(tokens), targets).item() == pytest.approx(math.log(ids), abs=0.05)


def test_padding_shifts_the_loss_by_the_logarithm_of_the_ratio_and_true_ids_take_it_back():
    targets = torch.randint(0, 61, (3, 16), generator=torch.Generator().manual_seed(0))
    exact, padded = torch.zeros(3, 16, 61), torch.zeros(3, 16, 64)
    shift = token_loss(padded, targets) - token_loss(exact, targets)
    assert shift.item() == pytest.approx(math.log(64 / 61), abs=1e-6)
    assert loss_over_true_ids(padded, targets, 61).item() == pytest.approx(math.log(61), abs=1e-6)
    # At the size of GPT-2: 47 ids that never occur cost 0.0009 nats.
    assert math.log(50_304 / 50_257) == pytest.approx(0.00093, abs=1e-5)


def test_the_loss_over_true_ids_is_float32_whatever_the_logits_are():
    [(_, targets)] = random_batches(TINY, 1)
    logits = torch.randn(3, 16, 64, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    found = loss_over_true_ids(logits, targets, 61)
    assert found.dtype == torch.float32 and not found.requires_grad
    assert found.item() == pytest.approx(reference_loss(logits[..., :61].double(), targets).item(), abs=1e-6)


def test_dropout_acts_in_training_and_is_off_in_evaluation():
    recipe = TINY.but(dropout=0.3)
    model = model_of(recipe, lively_weights(recipe))
    [(tokens, _)] = random_batches(recipe, 1)
    with torch.no_grad():
        assert not torch.equal(model(tokens), model(tokens))
        model.eval()
        assert torch.equal(model(tokens), model(tokens))
        exact = reference_logits(lively_weights(recipe), recipe, tokens)
        torch.testing.assert_close(model(tokens), exact, rtol=1e-4, atol=1e-4)


def test_a_sequence_longer_than_the_context_is_refused():
    model = model_of(TINY, draw_weights(TINY))
    one_line_error(BadInput, lambda: model(torch.zeros(1, 17, dtype=torch.int64)), "17", "16")
