"""The plain forms of the fused kernels, their gradients, and that a compiler can trace through them."""

import pytest
import torch
from model_helper import CPU, TINY, lively_weights, random_batches, reference_gelu, reference_layer_norm

from speedlab.errors import BadInput
from speedlab.fused.adamw import BLOCK, OnePassAdamW
from speedlab.fused.cross_entropy import in_place_cross_entropy
from speedlab.fused.fp8_head import to_e4m3
from speedlab.fused.gelu import bias_gelu
from speedlab.fused.qkv import project_qkv
from speedlab.fused.residual_norm import residual_norm
from speedlab.model import GPT, load_weights
from speedlab.training.step import TrainingStep, token_loss

FUSED = TINY.but(
    layers="native", attention="sdpa", qkv_projection="merged", qkv_bias=True, output_head="tied", vocabulary="padded"
)
CHANGES = {"feed_forward": "fused", "residual": "fused", "qkv_backward": "fused", "loss": "in_place"}


def random(*shape, seed=0, scale=1.0, shift=0.0):
    return shift + scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def results(call, *inputs):
    """Outputs of `call` and the gradients of a weighted sum of all of them, one for each input."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    outputs = call(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    weighted = sum((out * torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)).sum() for out in outputs)
    return *(out.detach() for out in outputs), *torch.autograd.grad(weighted, leaves)


def assert_close(found, expected):
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), two.double(), rtol=2e-5, atol=2e-5)


def doubles(*values):
    return [value.double() for value in values]


def test_bias_gelu_and_its_gradients():
    inputs = random(3, 5, 32, scale=4.0), random(32, seed=1)
    assert_close(results(bias_gelu, *inputs), results(lambda x, b: reference_gelu(x + b), *doubles(*inputs)))


def test_residual_norm_and_its_gradients():
    inputs = random(3, 5, 32), random(3, 5, 32, seed=1), *(random(32, seed=s, shift=s == 3) for s in (2, 3, 4))

    def reference(x, delta, bias, weight, shift):
        return x + delta + bias, reference_layer_norm(x + delta + bias, weight, shift)

    assert_close(results(lambda *all: residual_norm(*all, 1e-5), *inputs), results(reference, *doubles(*inputs)))


def test_residual_norm_where_nobody_reads_the_stream_and_where_nobody_reads_the_norm():
    inputs = random(7, 32), random(7, 32, seed=1), *(random(32, seed=s) for s in (2, 3, 4))
    for index in (0, 1):
        leaves = [value.double().requires_grad_() for value in inputs]
        x, delta, bias, weight, shift = leaves
        expected = (x + delta + bias, reference_layer_norm(x + delta + bias, weight, shift))[index]
        exact = torch.autograd.grad(expected.cos().sum(), leaves, allow_unused=True, materialize_grads=True)
        leaves = [value.clone().requires_grad_() for value in inputs]
        found = torch.autograd.grad(residual_norm(*leaves, 1e-5)[index].cos().sum(), leaves)
        assert_close(found, exact)


def test_projection_and_its_gradients():
    inputs = random(2, 5, 32), random(96, 32, seed=1), random(96, seed=2)
    expected = results(lambda x, w, b: (x @ w.T + b).chunk(3, dim=-1), *doubles(*inputs))
    assert_close(results(project_qkv, *inputs), expected)


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_cross_entropy_leaves_its_gradient_where_the_logits_were(factor):
    logits, targets = random(2, 5, 40, scale=3.0), torch.arange(10).view(2, 5) * 4
    leaf = logits.double().requires_grad_()
    expected = token_loss(leaf, targets)
    (expected * factor).backward()
    hidden = logits.clone().requires_grad_()
    given = hidden * 1.0
    place = given.data_ptr()
    loss = in_place_cross_entropy(given, targets)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(expected.item(), abs=1e-6)
    (loss * factor).backward()
    torch.testing.assert_close(hidden.grad.double(), leaf.grad, rtol=1e-5, atol=1e-7)
    assert given.data_ptr() == place and not torch.equal(given.detach(), logits)


def test_cross_entropy_without_a_gradient_leaves_the_logits_alone():
    logits, targets = random(1, 5, 40), torch.zeros(1, 5, dtype=torch.int64)
    before = logits.clone()
    assert in_place_cross_entropy(logits, targets).item() == pytest.approx(token_loss(before, targets).item(), abs=1e-6)
    assert torch.equal(logits, before)


def test_cross_entropy_refuses_a_second_backward_pass():
    hidden = random(1, 5, 40).requires_grad_()
    loss = in_place_cross_entropy(hidden * 1.0, torch.zeros(1, 5, dtype=torch.int64))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="only once"):
        loss.backward()


def test_weights_become_pieces_of_one_tensor_and_keep_their_values():
    values = [random(BLOCK + 1), random(3, 5, seed=1)]
    weights = [torch.nn.Parameter(value.bfloat16()) for value in values]
    optimizer = OnePassAdamW(weights, values, lr=1e-2, weight_decay=0.1)
    assert [weight.shape for weight in weights] == [value.shape for value in values]
    assert all(torch.equal(weight, value.bfloat16()) for weight, value in zip(weights, values, strict=True))
    start = optimizer.weights.data_ptr()
    assert [weight.data_ptr() - start for weight in weights] == [0, 2 * 2 * BLOCK]  # two blocks of 2-byte weights


@pytest.mark.parametrize("precision", ["float32", "bfloat16_master"])
def test_training_goes_on_from_a_state_as_if_it_had_not_stopped(precision):
    recipe = FUSED.but(precision=precision, optimizer="one_pass")
    weights, batches = lively_weights(recipe), random_batches(recipe, 4)
    whole = TrainingStep(recipe, weights, CPU)
    stream = iter(batches)
    expected = [whole(stream).item() for _ in range(4)]
    first, second = TrainingStep(recipe, weights, CPU), TrainingStep(recipe, lively_weights(recipe, seed=99), CPU)
    stream = iter(batches)
    found = [first(stream).item() for _ in range(2)]
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert found + [second(stream).item() for _ in range(2)] == expected
    other = TrainingStep(recipe.but(num_layers=1), lively_weights(recipe.but(num_layers=1)), CPU)
    with pytest.raises(BadInput, match="same model"):
        other.optimizer.load_state_dict(first.optimizer.state_dict())


def test_one_pass_refuses_what_it_would_do_wrong():
    mixed = [torch.nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    with pytest.raises(BadInput, match="one format"):
        OnePassAdamW(mixed, lr=1e-2, weight_decay=0.1)
    with pytest.raises(BadInput, match="masters"):
        OnePassAdamW(mixed[1:], lr=1e-2, weight_decay=0.1)
    optimizer = OnePassAdamW(mixed[:1], lr=1e-2, weight_decay=0.1)
    with pytest.raises(RuntimeError, match="1 of 1 weights have no gradient"):
        optimizer.step()


@pytest.mark.parametrize("precision", ["float32", "bfloat16_master", "bfloat16_autocast"])
def test_a_step_with_all_of_them_gives_the_losses_of_a_step_without(precision):
    recipe = FUSED.but(precision=precision)
    weights, batches = lively_weights(recipe), random_batches(recipe, 3)
    losses = []
    for changes in ({}, CHANGES | ({"optimizer": "one_pass"} if precision != "bfloat16_autocast" else {})):
        step = TrainingStep(recipe.but(**changes), weights, CPU)
        stream = iter(batches)
        losses.append([step(stream).item() for _ in range(3)])
    # A loss near 4 that is stored in bfloat16 moves in steps of 1/32.
    assert losses[1] == pytest.approx(losses[0], abs=1e-5 if precision == "float32" else 5e-2)
    assert losses[0][2] != losses[0][0]


def test_a_compiler_traces_the_whole_model_without_a_break_and_gradients_are_the_same():
    recipe = FUSED.but(**CHANGES)
    weights, ((tokens, targets),) = lively_weights(recipe), random_batches(recipe, 1)
    gradients = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True)):
        torch._dynamo.reset()
        model = GPT(recipe)
        load_weights(model, weights)
        in_place_cross_entropy(wrap(model)(tokens), targets).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)
        assert gradient.abs().max() > 0 or "position" in name


def test_dropout_finds_no_place_in_a_fused_residual():
    with pytest.raises(BadInput, match="dropout"):
        GPT(FUSED.but(residual="fused", dropout=0.1))


def test_eight_bits_keep_the_largest_value_and_three_bits_of_the_others():
    values = random(64, 64, scale=30.0)
    eight, scale = to_e4m3(values)
    found = eight.float() * scale
    assert found.abs().max() == pytest.approx(values.abs().max().item())
    large = values.abs() > values.abs().max() / 64
    assert ((found - values).abs() / values.abs())[large].max() <= 2.0**-4
