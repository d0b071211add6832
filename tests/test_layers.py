"""LayerNorm, GELU and the feed-forward part: both sets of layers against float64, outputs and gradients."""

import pytest
import torch
from model_helper import TINY, reference_gelu, reference_layer_norm

from speedlab.model.layers import LAYERS, FeedForward, layer_set
from speedlab.recipe import CHOICES

WIDTH = 32
# float32 keeps 24 bits; sums over 32 numbers of order one lose two or three of them.
FLOAT32 = {"rtol": 2e-5, "atol": 2e-5}


def random(*shape, seed=0, scale=1.0, shift=0.0):
    return shift + scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def results(call, *inputs):
    """The output of `call` and the gradients of a weighted sum of it, one for each input."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    output = call(*leaves)
    weights = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).view_as(output)
    return output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)


def assert_all_close(found, expected, **tolerance):
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), two.double(), **tolerance)


def test_every_value_of_the_recipe_field_names_a_set():
    assert set(LAYERS) == set(CHOICES["layers"])
    assert layer_set(TINY) is LAYERS["handwritten"] and layer_set(TINY.but(layers="native")) is LAYERS["native"]
    assert LAYERS["native"].layer_norm is torch.nn.LayerNorm


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (30.0, -100.0), (1e-3, 0.0)])
def test_layer_norm_and_its_gradients(layers, scale, shift):
    x = random(3, 5, WIDTH, seed=1, scale=scale, shift=shift)
    weight, bias = random(WIDTH, seed=2, shift=1.0), random(WIDTH, seed=3)
    module = LAYERS[layers].layer_norm(WIDTH)

    def call(x, weight, bias):
        return torch.func.functional_call(module, {"weight": weight, "bias": bias}, (x,))

    expected = results(reference_layer_norm, x.double(), weight.double(), bias.double())
    # A mean of -100 costs the differences from it seven bits.
    assert_all_close(results(call, x, weight, bias), expected, rtol=1e-3 if shift else 2e-5, atol=2e-5 * max(1, -shift))


@pytest.mark.parametrize("layers", LAYERS)
def test_a_new_layer_norm_gives_mean_zero_and_variance_one(layers):
    output = LAYERS[layers].layer_norm(WIDTH)(random(4, WIDTH, scale=7.0, shift=3.0))
    torch.testing.assert_close(output.mean(dim=-1), torch.zeros(4), rtol=0, atol=1e-6)
    torch.testing.assert_close(output.var(dim=-1, unbiased=False), torch.ones(4), rtol=1e-5, atol=0)


@pytest.mark.parametrize("layers", LAYERS)
def test_gelu_and_its_gradient(layers):
    x = torch.cat([torch.linspace(-12, 12, 200), torch.tensor([0.0, -0.0, 50.0, -50.0])])
    expected = results(reference_gelu, x.double())
    assert_all_close(results(LAYERS[layers].gelu(), x), expected, **FLOAT32)


@pytest.mark.parametrize("layers", LAYERS)
def test_in_float64_no_constant_is_off(layers):
    x, weight, bias = random(4, WIDTH, seed=1).double(), random(WIDTH, seed=2).double(), random(WIDTH, seed=3).double()
    torch.testing.assert_close(LAYERS[layers].gelu()(3 * x), reference_gelu(3 * x), rtol=1e-12, atol=1e-12)
    norm = LAYERS[layers].layer_norm(WIDTH).double()
    norm.weight.data, norm.bias.data = weight, bias
    small = x * 1e-2  # so that eps counts
    torch.testing.assert_close(norm(small), reference_layer_norm(small, weight, bias), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layers", LAYERS)
def test_gelu_is_the_tanh_form_of_gpt2_and_not_the_exact_one(layers):
    x = torch.tensor([2.5])
    exact = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    assert 1e-4 < (LAYERS[layers].gelu()(x) - exact).abs() < 1e-3


@pytest.mark.parametrize("layers", LAYERS)
def test_feed_forward_and_its_gradients(layers):
    module = FeedForward(TINY.but(layers=layers))
    names = [name for name, _ in module.named_parameters()]
    assert names == ["up.weight", "up.bias", "down.weight", "down.bias"]
    parameters = [random(*p.shape, seed=n, scale=0.3) for n, p in enumerate(module.parameters())]
    assert parameters[0].shape == (4 * WIDTH, WIDTH)
    x = random(2, 7, WIDTH, seed=9)

    def call(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    def reference(x, up, up_bias, down, down_bias):
        return reference_gelu(x @ up.T + up_bias) @ down.T + down_bias

    expected = results(reference, x.double(), *(value.double() for value in parameters))
    assert_all_close(results(call, x, *parameters), expected, rtol=1e-4, atol=1e-4)


def test_the_two_sets_do_the_same_work_with_different_numbers_of_operations():
    counted = {}
    x = random(3, WIDTH)
    for name, layers in LAYERS.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
            layers.gelu()(layers.layer_norm(WIDTH)(x))
        counted[name] = sum(entry.count for entry in profiler.key_averages() if entry.self_cpu_time_total > 0)
    assert counted["handwritten"] > 2 * counted["native"]
