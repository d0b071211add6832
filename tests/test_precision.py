"""Number formats as a recipe names them, and a process-wide switch that is always put back."""

import pytest
import torch
from model_helper import CPU

from speedlab.recipe import CHOICES, Recipe
from speedlab.training.precision import PRECISIONS, autocast, matmul_precision, precision_of


@pytest.fixture(autouse=True)
def switch_as_it_was():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_every_value_of_the_recipe_field_has_a_meaning():
    assert set(PRECISIONS) == set(CHOICES["precision"])


@pytest.mark.parametrize(
    ("name", "weights", "matmuls", "scaled"),
    [
        ("float32", torch.float32, torch.float32, False),
        ("bfloat16", torch.bfloat16, torch.bfloat16, False),
        ("bfloat16_autocast", torch.float32, torch.bfloat16, False),
        ("float16_autocast", torch.float32, torch.float16, True),
    ],
)
def test_what_weights_are_stored_in_and_what_matmuls_run_in(name, weights, matmuls, scaled):
    precision = precision_of(Recipe(precision=name))
    assert precision.weights == weights and precision.scaled == scaled
    layer = torch.nn.Linear(4, 4).to(precision.weights)
    with autocast(precision, CPU):
        output = layer(torch.ones(2, 4, dtype=precision.weights))
    assert output.dtype == matmuls and layer.weight.dtype == weights
    assert not torch.is_autocast_enabled("cpu")


def test_float16_weights_are_never_used_because_a_scaler_cannot_unscale_their_gradients():
    assert all(precision.weights != torch.float16 for precision in PRECISIONS.values())
    assert all(precision.scaled == (precision.autocast == torch.float16) for precision in PRECISIONS.values())


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
@pytest.mark.parametrize("asked", CHOICES["matmul_precision"])
def test_the_switch_is_set_inside_and_put_back_after(before, asked):
    torch.set_float32_matmul_precision(before)
    with matmul_precision(Recipe(matmul_precision=asked)):
        assert torch.get_float32_matmul_precision() == asked
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError, KeyboardInterrupt])
def test_the_switch_is_put_back_after_an_error(error):
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(error), matmul_precision(Recipe(matmul_precision="high")):
        raise error
    assert torch.get_float32_matmul_precision() == "highest"


def test_two_recipes_can_be_nested():
    torch.set_float32_matmul_precision("highest")
    with matmul_precision(Recipe(matmul_precision="high")):
        with matmul_precision(Recipe()):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"
