"""bfloat16 weights with float32 masters, against AdamW on float32 weights that sees the same gradients."""

import pytest
import torch
from model_helper import CPU, TINY, lively_weights
from torch import nn

from speedlab.training.optimizer import MasterWeights, build_optimizer
from speedlab.training.step import TrainingStep
from speedlab.work import compute_dtype

RECIPE = TINY.but(optimizer="fused", precision="bfloat16_master", layers="native", attention="sdpa")


@pytest.mark.parametrize("implementation", ["for_loop", "default", "foreach", "fused"])
def test_masters_are_adamw_in_float32_and_weights_their_rounded_values(implementation: str) -> None:
    recipe = RECIPE.but(optimizer=implementation)
    start = torch.linspace(-2, 2, 33)
    reference = nn.Parameter(start.clone())
    expected = torch.optim.AdamW([reference], lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    weight = nn.Parameter(start.bfloat16())
    optimizer = build_optimizer(recipe, [weight], [start.clone()])
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        weight.grad = torch.randn(33, generator=generator).bfloat16()
        reference.grad = weight.grad.float()
        optimizer.step()
        expected.step()
        torch.testing.assert_close(optimizer.masters[0], reference, rtol=1e-6, atol=1e-7)
        assert torch.equal(weight, optimizer.masters[0].bfloat16())


def test_small_updates_add_up_where_pure_bfloat16_loses_each_of_them() -> None:
    recipe = RECIPE.but(weight_decay=0.0)
    pure, rounded = nn.Parameter(torch.ones(4).bfloat16()), nn.Parameter(torch.ones(4).bfloat16())
    lost = build_optimizer(recipe, [pure])
    kept = build_optimizer(recipe, [rounded], [torch.ones(4)])
    for _ in range(50):
        for weight, optimizer in ((pure, lost), (rounded, kept)):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()
            assert weight.grad is None
    # 50 updates of one learning rate each, 5e-4: far below 1/256 one by one, far above it together.
    assert torch.equal(pure, torch.ones(4).bfloat16())
    assert rounded.float().tolist() == pytest.approx([1 - 50 * recipe.learning_rate] * 4, abs=1 / 256)


def test_a_step_keeps_full_masters_of_the_same_start() -> None:
    assert compute_dtype(RECIPE) == "bfloat16"
    weights = lively_weights(RECIPE)
    step = TrainingStep(RECIPE, weights, CPU)
    assert isinstance(step.optimizer, MasterWeights)
    named = dict(zip((name for name, _ in step.model.named_parameters()), step.optimizer.masters, strict=True))
    assert {p.dtype for p in step.model.parameters()} == {torch.bfloat16}
    assert torch.equal(named["token_table.weight"], weights["token_table.weight"])
    assert named["token_table.weight"].dtype == torch.float32
