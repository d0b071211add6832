"""Every attention, mask and projection against one reference that visits one query after another in float64."""

import itertools

import pytest
import torch
from model_helper import TINY, reference_attention
from torch.nn.attention import SDPBackend

from speedlab.model import attention as module
from speedlab.model.attention import ATTENTION, MASKS, PROJECTIONS, CausalSelfAttention, causal_mask, split_heads
from speedlab.recipe import CHOICES

# These two exist on GPUs alone; asking a CPU for them is an error, as it should be.
GPU_ONLY = ("sdpa_efficient", "sdpa_cudnn")
ON_CPU = [name for name in ATTENTION if name not in GPU_ONLY]
VARIANTS = [
    {"attention": attention, "causal_mask": mask, "qkv_projection": projection, "qkv_bias": bias}
    for attention, mask, projection, bias in itertools.product(ON_CPU, MASKS, PROJECTIONS, (False, True))
]
RECIPE = TINY.but(context_length=12)
WIDTH = RECIPE.embedding_width
PARTS = ("query", "key", "value")


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parameters(bias):
    """Weights (C, C) and biases of q, k, v and the output, large enough that attention is far from even."""
    values = {}
    for number, part in enumerate((*PARTS, "out")):
        values[f"{part}.weight"] = random(WIDTH, WIDTH, seed=number) / WIDTH**0.5 * 2
        if bias or part == "out":
            values[f"{part}.bias"] = random(WIDTH, seed=10 + number)
    return values


def loaded(recipe):
    layer = CausalSelfAttention(recipe)
    values = parameters(recipe.qkv_bias)
    state = {}
    for name in ("weight", "bias") if recipe.qkv_bias else ("weight",):
        if recipe.qkv_projection == "merged":
            state[f"project.qkv.{name}"] = torch.cat([values[f"{part}.{name}"] for part in PARTS])
        else:
            state |= {f"project.{part}.{name}": values[f"{part}.{name}"] for part in PARTS}
    layer.load_state_dict(state | {"out.weight": values["out.weight"], "out.bias": values["out.bias"]})
    return layer


def reference(x, values):
    q, k, v = (x @ values[f"{part}.weight"].T + values.get(f"{part}.bias", 0.0) for part in PARTS)
    return reference_attention(q, k, v, RECIPE.num_heads) @ values["out.weight"].T + values["out.bias"]


def test_every_value_of_the_recipe_fields_has_an_implementation():
    assert set(ATTENTION) == set(CHOICES["attention"])
    assert set(MASKS) == set(CHOICES["causal_mask"])
    assert set(PROJECTIONS) == set(CHOICES["qkv_projection"])


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(map(str, changes.values())))
@pytest.mark.parametrize("num_tokens", [12, 5, 1])
def test_output_and_gradients_of_every_variant(changes, num_tokens):
    recipe = RECIPE.but(**changes)
    layer, values = loaded(recipe), parameters(recipe.qkv_bias)
    x = random(2, num_tokens, WIDTH, seed=20)
    weights = random(2, num_tokens, WIDTH, seed=21)

    input_ = x.clone().requires_grad_()
    output = layer(input_)
    (output * weights).sum().backward()
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}

    leaves = {name: value.double().requires_grad_() for name, value in values.items()}
    exact_input = x.double().requires_grad_()
    expected = reference(exact_input, leaves)
    (expected * weights).sum().backward()

    tolerance = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(output.double(), expected, **tolerance)
    torch.testing.assert_close(input_.grad.double(), exact_input.grad, **tolerance)
    for name, gradient in found.items():
        _, _, tail = name.rpartition(".")
        if ".qkv." in name:
            exact = torch.cat([leaves[f"{part}.{tail}"].grad for part in PARTS])
        else:
            exact = leaves[name.removeprefix("project.")].grad
        torch.testing.assert_close(gradient.double(), exact, **tolerance)


@pytest.mark.parametrize("mask", MASKS)
def test_the_mask_is_true_where_a_key_lies_in_the_future(mask):
    made = causal_mask(RECIPE.but(causal_mask=mask))
    for num_tokens in (1, 3, 12):
        found = made(num_tokens, torch.device("cpu"))
        assert found.dtype == torch.bool and found.shape == (num_tokens, num_tokens)
        assert all(found[t, s] == (s > t) for t in range(num_tokens) for s in range(num_tokens))


def test_only_the_stored_mask_takes_memory_and_neither_is_part_of_the_weights():
    stored, fly = (CausalSelfAttention(RECIPE.but(causal_mask=mask)) for mask in ("stored", "on_the_fly"))
    assert [tuple(buffer.shape) for buffer in stored.buffers()] == [(12, 12)]
    assert not list(fly.buffers())
    assert stored.state_dict().keys() == fly.state_dict().keys()


@pytest.mark.parametrize("attention", ON_CPU)
def test_the_mask_survives_a_move_to_bfloat16(attention):
    layer = loaded(RECIPE.but(attention=attention)).to(torch.bfloat16)
    x = random(1, 12, WIDTH, seed=4)
    output = layer(x.bfloat16())
    assert output.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits, and the matmuls here sum 32 products of order one.
    torch.testing.assert_close(output.double(), reference(x.double(), doubled(False)), rtol=0.1, atol=0.15)


def doubled(bias):
    return {name: value.double() for name, value in parameters(bias).items()}


@pytest.mark.parametrize("attention", GPU_ONLY)
def test_a_backend_that_cannot_run_here_is_an_error_and_not_another_backend(attention):
    layer = loaded(RECIPE.but(attention=attention))
    with pytest.raises(RuntimeError, match=r"[Nn]o available kernel|No viable backend"):
        layer(random(1, 12, WIDTH, seed=4))


def test_each_fused_attention_insists_on_its_own_backend(monkeypatch):
    asked = []

    class Recorder:
        def __init__(self, backend):
            asked.append(backend)

        def __enter__(self):
            pass

        def __exit__(self, *exception):
            pass

    monkeypatch.setattr(module, "sdpa_kernel", Recorder)
    for name in ATTENTION:
        loaded(RECIPE.but(attention=name))(random(1, 3, WIDTH, seed=4))
    assert asked == [
        SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION,
    ]  # fmt: skip


# The flash kernel of a CPU has no dropout.
@pytest.mark.parametrize("attention", [name for name in ON_CPU if name != "sdpa_flash"])
def test_dropout_acts_in_training_only(attention):
    layer = loaded(RECIPE.but(attention=attention, dropout=0.5))
    x = random(2, 12, WIDTH, seed=6)
    exact = reference(x.double(), doubled(False))
    layer.eval()
    torch.testing.assert_close(layer(x).double(), exact, rtol=1e-4, atol=1e-4)
    layer.train()
    torch.manual_seed(0)
    draws = torch.stack([layer(x) for _ in range(400)]).double()
    assert (draws[0] - draws[1]).abs().max() > 0.1
    # Unbiased: the mean of many draws comes near the exact value, within five standard errors.
    error = draws.std(dim=0) / 400**0.5
    assert ((draws.mean(dim=0) - exact).abs() < 5 * error + 1e-4).all()


def test_heads_are_cut_from_neighbouring_columns():
    x = torch.arange(2 * 3 * 8.0).view(2, 3, 8)
    heads = split_heads(x, 4)
    assert heads.shape == (2, 4, 3, 2)
    assert torch.equal(heads[1, 2, 0], x[1, 0, 4:6])
    assert heads.data_ptr() == x.data_ptr()
