"""Canonical weights: drawn once, loaded into every variant, read back without loss."""

import itertools
import math

import pytest
import torch
from model_helper import TINY, lively_weights

from speedlab.model import GPT, canonical_weights, draw_weights, load_weights
from speedlab.model.weights import STANDARD_DEVIATION
from speedlab.recipe import CHOICES, Recipe

FIELDS = ("causal_mask", "layers", "qkv_projection", "vocabulary", "output_head", "qkv_bias")
VARIANTS = [dict(zip(FIELDS, values, strict=True)) for values in itertools.product(*(CHOICES[name] for name in FIELDS))]


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(map(str, changes.values())))
def test_weights_come_back_from_every_variant_as_they_went_in(changes):
    recipe = TINY.but(**changes)
    weights = lively_weights(recipe)
    model = GPT(recipe)
    load_weights(model, weights)
    back = canonical_weights(model, recipe)
    assert back.keys() == weights.keys()
    for name, value in weights.items():
        assert torch.equal(back[name], value), name


def test_all_parameters_of_a_model_are_overwritten():
    for changes in VARIANTS:
        model = GPT(TINY.but(**changes))
        for parameter in model.parameters():
            parameter.data.fill_(math.nan)
        load_weights(model, lively_weights(TINY.but(**changes)))
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters()), changes


@pytest.mark.parametrize("head", CHOICES["output_head"])
def test_padded_rows_are_zero_and_no_part_of_the_canonical_form(head):
    recipe = TINY.but(vocabulary="padded", output_head=head)
    model = GPT(recipe)
    load_weights(model, lively_weights(recipe))
    for table in (model.token_table.weight, model.head.weight):
        assert table.shape[0] == 64 and (table[61:] == 0).all() and (table[:61] != 0).all()
    tables = [name for name, value in canonical_weights(model, recipe).items() if value.shape[0] == 61]
    assert tables == (["token_table.weight"] if head == "tied" else ["token_table.weight", "head.weight"])


def test_a_tied_head_is_the_token_table_and_an_untied_one_is_drawn_apart():
    tied, untied = (GPT(TINY.but(output_head=head)) for head in ("tied", "untied"))
    assert tied.head.weight is tied.token_table.weight
    weights = draw_weights(TINY)
    load_weights(untied, weights)
    assert not torch.equal(untied.head.weight, untied.token_table.weight)
    assert "head.weight" not in draw_weights(TINY.but(output_head="tied"))


def test_the_draw_depends_on_shape_and_seed_alone():
    weights = draw_weights(TINY)
    speed = TINY.but(
        causal_mask="on_the_fly", layers="native", attention="sdpa", qkv_projection="merged", vocabulary="padded",
        precision="bfloat16", optimizer="fused", compile="default", matmul_precision="high", micro_batch=7,
        accumulation=2, dropout=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    again = draw_weights(speed)
    assert weights.keys() == again.keys() and all(torch.equal(weights[name], again[name]) for name in weights)
    other = draw_weights(TINY.but(seed=12))
    assert not torch.equal(weights["token_table.weight"], other["token_table.weight"])


def test_drawing_leaves_the_global_random_state_alone():
    torch.manual_seed(42)
    before = torch.random.get_rng_state()
    draw_weights(TINY)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_draw_has_the_spread_of_gpt2():
    recipe = Recipe(num_layers=2, embedding_width=128, num_heads=4, context_length=64, vocab_size=1_000)
    weights = draw_weights(recipe)
    assert all(value.dtype == torch.float32 and value.device.type == "cpu" for value in weights.values())
    residual = STANDARD_DEVIATION / math.sqrt(2 * recipe.num_layers)
    for name, value in weights.items():
        if name.endswith("bias"):
            assert (value == 0).all(), name
        elif "norm" in name:
            assert (value == 1).all(), name
        else:
            deviation = residual if ".out." in name or ".down." in name else STANDARD_DEVIATION
            # n draws estimate a deviation to 1/sqrt(2 n); five of these.
            assert value.std().item() == pytest.approx(deviation, rel=5 / math.sqrt(2 * value.numel())), name
            assert abs(value.mean().item()) < 5 * deviation / math.sqrt(value.numel()), name
    assert STANDARD_DEVIATION == 0.02


def test_weights_of_a_bfloat16_model_come_back_as_rounded_float32_copies():
    recipe = TINY.but(qkv_projection="merged", vocabulary="padded")
    weights = lively_weights(recipe)
    model = GPT(recipe)
    load_weights(model, weights)
    model.to(torch.bfloat16)
    back = canonical_weights(model, recipe)
    for name, value in weights.items():
        assert back[name].dtype == torch.float32
        assert torch.equal(back[name], value.bfloat16().float())
        back[name].zero_()
    assert all(parameter.abs().sum() > 0 for parameter in model.parameters())


def test_loading_into_the_wrong_shape_fails_aloud():
    model = GPT(TINY.but(embedding_width=64))
    with pytest.raises(RuntimeError):
        load_weights(model, draw_weights(TINY))
    with pytest.raises(KeyError, match="bias"):
        load_weights(GPT(TINY.but(qkv_bias=True)), draw_weights(TINY))
