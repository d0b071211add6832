"""Step times by counting: the parts that can be counted by hand, and what each change must do to the sum."""

import pytest
import torch

from speedlab.ladder import LADDERS, NINE_STEPS
from speedlab.measuring import counting
from speedlab.measuring.counting import OPTIMIZER_PASSES
from speedlab.measuring.prediction import predict
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
    assert predicted["bound_by"] in (
        "float32 matmul rate", "TF32 matmul rate", "bfloat16 matmul rate", "float16 matmul rate", "memory bandwidth"
    )  # fmt: skip
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
    found = parts(**changes)
    assert found["matmuls of the blocks"] + found["matmuls of the head"] == pytest.approx(1e3 * flops / rate)


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
    assert other["matmuls of attention"] == pytest.approx(plain["matmuls of attention"] / 2)
    assert parts(attention="sdpa_math")["attention scores"] == plain["attention scores"]


def test_scores_grow_with_the_square_of_the_context_and_the_rest_does_not():
    long, short = parts(context_length=2048, micro_batch=4), parts(context_length=1024, micro_batch=8)
    assert long["attention scores"] == pytest.approx(2 * short["attention scores"])
    assert long["matmuls of the blocks"] == pytest.approx(short["matmuls of the blocks"])


def test_tokens_are_counted_per_process_and_over_micro_batches():
    one = parts()
    for changes in ({"micro_batch": 16}, {"accumulation": 2}):
        two = parts(**changes)
        # The table of token gradients is written once per micro-batch, however large it is.
        assert all(two[part] == pytest.approx(2 * one[part], rel=5e-3) for part in one if part != "optimizer")
        assert two["optimizer"] == one["optimizer"]
    assert parts(data_parallel=4) == one


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("tensor_cores", "matmuls of the blocks"), ("fused_adamw", "optimizer"), ("bfloat16", "norms, GELU, residuals"),
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


BFLOAT16 = Recipe(precision="bfloat16", layers="native", attention="sdpa", optimizer="fused")


def test_a_measured_rate_of_a_shape_takes_the_place_of_the_square_matmul():
    up = next(m for m in counting.matmuls(BFLOAT16) if m.outputs == 4 * m.inputs)
    slow = CEILINGS | {"gemm_flops_per_s": {counting.gemm_key(BFLOAT16, up, "weight gradient"): 100e12}}
    extra = 12 * 2 * 8192 * 768 * 3072 * (1 / 100e12 - 1 / 800e12)
    before, after = predict(BFLOAT16, CEILINGS)["parts_ms"], predict(BFLOAT16, slow)["parts_ms"]
    assert after["matmuls of the blocks"] - before["matmuls of the blocks"] == pytest.approx(1e3 * extra)
    assert {part for part in before if after[part] != before[part]} == {"matmuls of the blocks"}


def test_attention_takes_the_rate_of_its_own_kernel():
    own = CEILINGS | {"attention_flops_per_s": {"bfloat16/sdpa/8x12x1024x64/dropout 0.1": 200e12}}
    flops = 3 * 12 * (2 * 2 * 1024 * 768) * 8 * 1024 / 2  # layers x two matmuls, half the keys, forward and backward
    assert predict(BFLOAT16, own)["parts_ms"]["matmuls of attention"] == pytest.approx(1e3 * flops / 200e12)
    assert predict(BFLOAT16.but(dropout=0.0), own) == predict(BFLOAT16.but(dropout=0.0), CEILINGS) | {
        "utc": predict(BFLOAT16, own)["utc"]
    }


def test_each_kind_of_kernel_takes_its_own_bandwidth():
    recipe = Recipe()
    slow = CEILINGS | {"pass_bytes_per_s": {"masked fill/4 bytes/8x1024x12x1024": 1e12}}
    scores = 12 * (8 * 12 * 1024 * 1024) * 4  # bytes, all layers
    extra = 4 * scores * (1 / 1e12 - 1 / 4e12)  # read and written, forward and backward
    difference = predict(recipe, slow)["step_ms"] - predict(recipe, CEILINGS)["step_ms"]
    assert difference == pytest.approx(1e3 * extra)


def test_launches_bind_where_the_device_is_faster_than_the_host():
    predicted = predict(BFLOAT16, CEILINGS | {"launch_s": 1e-3})
    assert predicted["bound_by"] == "kernel launches"
    assert predicted["step_ms"] == pytest.approx(1e3 * counting.launches(BFLOAT16) * 1e-3)
    assert predicted["step_ms"] == pytest.approx(sum(predicted["parts_ms"].values()))
    hidden = predict(BFLOAT16, CEILINGS | {"launch_s": 1e-9})
    assert hidden["parts_ms"]["waiting for launches"] == 0 and hidden["bound_by"] != "kernel launches"


def test_the_larger_of_arithmetic_and_traffic_binds():
    assert predict(Recipe(), CEILINGS)["bound_by"] == "float32 matmul rate"
    assert predict(Recipe(matmul_precision="high"), CEILINGS)["bound_by"] == "memory bandwidth"
    assert predict(BFLOAT16, CEILINGS | {"copy_bytes_per_s": 400e12})["bound_by"] == "bfloat16 matmul rate"


def test_a_compiled_head_is_padded_where_that_is_faster_and_left_where_it_is_not():
    recipe = BFLOAT16.but(compile="default")
    *_, head = counting.matmuls(recipe)
    slow = {counting.gemm_key(recipe, head, direction): 100e12 for direction in counting.MATMUL_PASSES}
    left, padded = predict(recipe, CEILINGS), predict(recipe, CEILINGS | {"gemm_flops_per_s": slow})
    flops = 3 * 2 * 8192 * 768
    assert left["parts_ms"]["matmuls of the head"] == pytest.approx(1e3 * flops * 50_257 / 800e12)
    assert padded["parts_ms"]["matmuls of the head"] == pytest.approx(1e3 * flops * 50_264 / 800e12)
    # The logits are cut out of wider rows and their gradient is put back: four passes of 2 bytes.
    moved = 4 * 2 * 8192 * 50_257 / 4e12
    extra = padded["parts_ms"]["logits and loss"] - left["parts_ms"]["logits and loss"]
    assert extra == pytest.approx(1e3 * moved)


def test_autocast_pays_for_its_casts():
    assert "casts of autocast" not in parts(precision="bfloat16")
    assert parts(precision="bfloat16_autocast")["casts of autocast"] > 0
    compiled = parts(precision="bfloat16_autocast", compile="default")["casts of autocast"]
    assert 0 < compiled < parts(precision="bfloat16_autocast")["casts of autocast"]


def test_later_micro_batches_add_their_gradients_to_the_first():
    weights = counting.weights_of(Recipe())
    added = parts(accumulation=3)["gradient accumulation"]
    assert added == pytest.approx(1e3 * 2 * 3 * 4 * weights / 4e12)
    assert "gradient accumulation" not in parts()
