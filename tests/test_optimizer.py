"""AdamW by every implementation, against the formula written out in float64."""

import pytest
import torch

from speedlab.recipe import CHOICES, Recipe
from speedlab.training.optimizer import IMPLEMENTATIONS, build_optimizer

RECIPE = Recipe(learning_rate=1e-2, weight_decay=0.1)
SHAPES = [(7, 5), (5,), (3, 2, 4), (1,)]
STEPS = 5


def start():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def gradients(step):
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator) * 10.0 ** (index - 2) for index, shape in enumerate(SHAPES)]


def stepped(implementation):
    parameters = [torch.nn.Parameter(value) for value in start()]
    optimizer = build_optimizer(RECIPE.but(optimizer=implementation), parameters)
    for step in range(STEPS):
        for parameter, gradient in zip(parameters, gradients(step), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters], optimizer


def by_formula():
    values = [value.double() for value in start()]
    mean, square = [torch.zeros_like(v) for v in values], [torch.zeros_like(v) for v in values]
    for step in range(STEPS):
        for index, gradient in enumerate(g.double() for g in gradients(step)):
            mean[index] = 0.9 * mean[index] + 0.1 * gradient
            square[index] = 0.999 * square[index] + 0.001 * gradient**2
            values[index] = values[index] * (1 - RECIPE.learning_rate * RECIPE.weight_decay)
            root = (square[index] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            values[index] = values[index] - RECIPE.learning_rate * mean[index] / (1 - 0.9 ** (step + 1)) / root
    return values


def test_every_value_of_the_recipe_field_has_an_implementation():
    assert {*IMPLEMENTATIONS, "one_pass"} == set(CHOICES["optimizer"])


@pytest.mark.parametrize("implementation", CHOICES["optimizer"])
def test_an_implementation_gives_what_the_formula_gives(implementation):
    found, _ = stepped(implementation)
    for one, two in zip(found, by_formula(), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=1e-6)
    assert max((a - b).abs().max() for a, b in zip(found, start(), strict=True)) > RECIPE.learning_rate


@pytest.mark.parametrize(
    ("implementation", "foreach", "fused"),
    [("for_loop", False, False), ("default", None, None), ("foreach", True, None), ("fused", None, True)],
)
def test_torch_is_told_the_implementation_and_never_two_at_once(implementation, foreach, fused):
    _, optimizer = stepped(implementation)
    assert type(optimizer) is torch.optim.AdamW
    assert (optimizer.defaults["foreach"], optimizer.defaults["fused"]) == (foreach, fused)


def test_the_numbers_are_those_of_the_recipe_and_all_parameters_decay():
    _, optimizer = stepped("default")
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"], group["eps"]) == (1e-2, 0.1, (0.9, 0.999), 1e-8)
    assert len(group["params"]) == len(SHAPES)
