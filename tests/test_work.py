"""Arithmetic counted by formula, against the model's own matrices and against the published totals."""

import pytest
import torch
from torch import nn

from speedlab.cards import CARDS
from speedlab.model import GPT
from speedlab.recipe import Recipe
from speedlab.work import (
    attention_flops_per_token,
    causal_flops_per_token,
    compute_dtype,
    datasheet_flops_per_s,
    matmul_parameters,
    model_flops_utilization,
    nominal_flops_per_token,
)

PADDED = Recipe(vocabulary="padded")
BFLOAT16 = PADDED.but(precision="bfloat16")


@pytest.mark.parametrize(
    "changes", [{}, {"vocabulary": "padded"}, {"output_head": "tied"}, {"qkv_projection": "merged"}]
)
def test_matmul_parameters_are_the_weights_of_the_linear_layers(changes):
    recipe = Recipe(**changes)
    with torch.device("meta"):
        model = GPT(recipe)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert matmul_parameters(recipe) == sum(module.weight.numel() for module in linear)


def test_a_token_of_gpt2_costs_the_published_arithmetic():
    assert nominal_flops_per_token(PADDED) == pytest.approx(855.4e6, rel=2e-3)
    assert causal_flops_per_token(PADDED) == pytest.approx(798.0e6, rel=2e-3)


def test_attention_is_counted_matmul_by_matmul():
    recipe = Recipe(num_layers=3, embedding_width=40, num_heads=5, context_length=7)
    scores_and_mixing = 2 * (2 * recipe.num_heads * recipe.head_width * recipe.context_length)  # of one token, forward
    forward_and_backward = 3 * recipe.num_layers * scores_and_mixing
    assert attention_flops_per_token(recipe, causal=False) == forward_and_backward
    assert attention_flops_per_token(recipe, causal=True) == forward_and_backward / 2
    dense = 3 * 2 * matmul_parameters(recipe)
    assert nominal_flops_per_token(recipe) == dense + forward_and_backward
    assert causal_flops_per_token(recipe) == dense + forward_and_backward / 2


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, "float32"),
        ({"matmul_precision": "high"}, "tf32"),
        ({"precision": "bfloat16"}, "bfloat16"),
        ({"precision": "bfloat16", "matmul_precision": "high"}, "bfloat16"),
        ({"precision": "bfloat16_autocast"}, "bfloat16"),
        ({"precision": "float16_autocast"}, "float16"),
    ],
)
def test_the_format_of_the_matmuls(changes, dtype):
    assert compute_dtype(Recipe(**changes)) == dtype


def test_utilization_is_nominal_arithmetic_over_the_dense_peak_of_what_ran():
    tokens_per_s = 400_000.0
    by_hand = (6 * (12 * 12 * 768**2 + 50_304 * 768) + 12 * 12 * 768 * 1024) * tokens_per_s / 989.5e12
    assert model_flops_utilization(BFLOAT16, tokens_per_s=tokens_per_s, gpu="NVIDIA H200") == pytest.approx(by_hand)
    tf32 = model_flops_utilization(PADDED.but(matmul_precision="high"), tokens_per_s=tokens_per_s, gpu="NVIDIA H200")
    assert tf32 == pytest.approx(2 * by_hand, rel=1e-3)  # the same speed on units half as fast


def test_utilization_is_per_gpu():
    one = model_flops_utilization(BFLOAT16, tokens_per_s=1e5, gpu="NVIDIA H200")
    four = model_flops_utilization(BFLOAT16.but(data_parallel=4), tokens_per_s=4e5, gpu="NVIDIA H200")
    assert four == pytest.approx(one)


@pytest.mark.parametrize("gpu", [None, "", "Foo", "NVIDIA H100 PCIe", "NVIDIA L40S"])
def test_an_unknown_card_or_a_cpu_has_no_utilization(gpu):
    assert model_flops_utilization(BFLOAT16, tokens_per_s=1e5, gpu=gpu) is None
    assert datasheet_flops_per_s(gpu, "float32") is None


def test_a_format_without_units_has_no_utilization():
    assert model_flops_utilization(BFLOAT16, tokens_per_s=1e5, gpu="Tesla T4") is None
    assert model_flops_utilization(PADDED.but(matmul_precision="high"), tokens_per_s=1e5, gpu="Tesla T4") is None
    float16 = model_flops_utilization(PADDED.but(precision="float16_autocast"), tokens_per_s=1e4, gpu="Tesla T4")
    assert float16 == pytest.approx(nominal_flops_per_token(PADDED) * 1e4 / 65e12)


def test_no_peak_is_shared_by_all_cards():
    for dtype in ("float32", "tf32", "bfloat16", "float16"):
        assert len({card.flops_per_s.get(dtype) for card in CARDS}) > 2
