"""Step times by counting: the parts that can be counted by hand, and what each change must do to the sum."""

import pytest
import torch

from speedlab.ladder import LADDERS, NINE_STEPS
from speedlab.measuring.prediction import OPTIMIZER_PASSES, predict
from speedlab.model import GPT
from speedlab.recipe import CHOICES, Recipe
from speedlab.work import matmul_parameters

CEILINGS = {
    "matmul_flops_per_s": {"float32": 50e12, "tf32": 400e12, "bfloat16": 800e12, "float16": 760e12},
    "copy_bytes_per_s": 4e12,
    "utc": "2026-11-29T12:00:00+00:00",
}
EVERY = [(ladder, rung.key) for ladder in LADDERS for rung in LADDERS[ladder]]


def parts(**changes):
    return predict(Recipe(**changes), CEILINGS)["parts_ms"]


@pytest.mark.parametrize(("ladder", "key"), EVERY)
def test_every_rung_has_a_prediction_made_of_its_parts(ladder, key):
    predicted = predict(LADDERS[ladder].recipe_at(key), CEILINGS, utc="2026-11-29T12:00:00+00:00")
    assert predicted["step_ms"] == pytest.approx(sum(predicted["parts_ms"].values()))
    assert predicted["parts_ms"][predicted["bound_by"]] == max(predicted["parts_ms"].values())
    assert all(ms >= 0 for ms in predicted["parts_ms"].values()) and predicted["step_ms"] > 0
    assert predicted["utc"] == "2026-11-29T12:00:00+00:00"


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 50e12), ({"matmul_precision": "high"}, 400e12), ({"precision": "bfloat16"}, 800e12),
        ({"precision": "float16_autocast"}, 760e12),
    ],
)  # fmt: skip
def test_matmuls_take_the_rate_of_the_format_that_runs(changes, rate):
    recipe = Recipe(**changes)
    flops = 6 * matmul_parameters(recipe) * 8 * 1024
    assert parts(**changes)["matmuls"] == pytest.approx(1e3 * flops / rate)


def test_without_a_rate_for_the_format_there_is_no_prediction():
    without = CEILINGS | {"matmul_flops_per_s": {"float32": 50e12}}
    assert predict(Recipe(precision="bfloat16"), without) is None
    assert predict(Recipe(matmul_precision="high"), without) is None
    assert predict(Recipe(), without) is not None


@pytest.mark.parametrize("head", CHOICES["output_head"])
@pytest.mark.parametrize("vocabulary", CHOICES["vocabulary"])
def test_the_optimizer_moves_every_weight_of_the_model_a_counted_number_of_times(head, vocabulary):
    recipe = Recipe(output_head=head, vocabulary=vocabulary, optimizer="fused")
    with torch.device("meta"):
        weights = GPT(recipe).num_parameters()
    # Read weight, gradient and two moments, write weight and moments: 7 x 4 bytes. Biases and norms are left out.
    predicted = predict(recipe, CEILINGS)["parts_ms"]["optimizer"]
    assert predicted == pytest.approx(1e3 * 7 * 4 * weights / 4e12, rel=2e-3)


def test_weights_of_two_bytes_halve_the_traffic_of_the_optimizer_and_autocast_does_not():
    assert parts(precision="bfloat16")["optimizer"] == pytest.approx(parts()["optimizer"] / 2)
    assert parts(precision="bfloat16_autocast")["optimizer"] == parts()["optimizer"]


def test_every_optimizer_and_mode_has_a_number():
    assert set(OPTIMIZER_PASSES) == set(CHOICES["optimizer"])
    for name in ("compile", "attention", "layers", "precision"):
        for value in CHOICES[name]:
            assert predict(Recipe(**{name: value}), CEILINGS)["step_ms"] > 0


@pytest.mark.parametrize("fused", ["sdpa", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient"])
def test_a_fused_attention_keeps_its_scores_on_the_chip_and_needs_half_the_keys(fused):
    plain, other = parts(), parts(attention=fused)
    assert plain["attention scores"] > 0 and other["attention scores"] == 0
    assert other["attention matmuls"] == pytest.approx(plain["attention matmuls"] / 2)
    assert parts(attention="sdpa_math")["attention scores"] == plain["attention scores"]


def test_scores_grow_with_the_square_of_the_context_and_the_rest_does_not():
    long, short = parts(context_length=2048, micro_batch=4), parts(context_length=1024, micro_batch=8)
    assert long["attention scores"] == pytest.approx(2 * short["attention scores"])
    assert long["matmuls"] == pytest.approx(short["matmuls"])


def test_tokens_are_counted_per_process_and_over_micro_batches():
    one = parts()
    for changes in ({"micro_batch": 16}, {"accumulation": 2}):
        two = parts(**changes)
        assert all(two[part] == pytest.approx(2 * one[part]) for part in one if part != "optimizer")
        assert two["optimizer"] == one["optimizer"]
    assert parts(data_parallel=4) == one


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("tensor_cores", "matmuls"), ("fused_adamw", "optimizer"), ("bfloat16", "norms, GELU, residuals"),
        ("native_layers", "norms, GELU, residuals"), ("flash_attention", "attention scores"),
        ("torch_compile", "norms, GELU, residuals"),
    ],
)  # fmt: skip
def test_a_rung_is_predicted_to_shrink_the_part_that_it_is_about(key, part):
    before = predict(NINE_STEPS.recipe_at(NINE_STEPS.before(key)), CEILINGS)
    after = predict(NINE_STEPS.recipe_at(key), CEILINGS)
    assert after["parts_ms"][part] < before["parts_ms"][part]
    assert after["step_ms"] < before["step_ms"]


@pytest.mark.parametrize("key", ["causal_mask", "pinned_memory"])
def test_rungs_that_change_no_arithmetic_and_no_traffic_are_predicted_to_change_nothing(key):
    before = predict(NINE_STEPS.recipe_at(NINE_STEPS.before(key)), CEILINGS, utc="2026-11-29T12:00:00+00:00")
    assert predict(NINE_STEPS.recipe_at(key), CEILINGS, utc="2026-11-29T12:00:00+00:00") == before


def test_dropout_costs_traffic():
    assert parts(dropout=0.0)["attention scores"] < parts(dropout=0.1)["attention scores"]
    assert parts(dropout=0.0)["norms, GELU, residuals"] < parts(dropout=0.1)["norms, GELU, residuals"]
