"""K micro-batches are one batch K times as large: gradients, clipping, the gradient scaler, weights after the step."""

from __future__ import annotations

import pytest
import torch
from data_helper import one_line_error
from model_helper import CPU, TINY, lively_weights, random_batches, reference_logits, reference_loss

from speedlab.errors import BadInput
from speedlab.model import canonical_weights
from speedlab.recipe import Recipe
from speedlab.training.step import TrainingStep

MICRO = 2


def stepped(recipe, batches, *, scaler=None, steps=1):
    """The step after `steps` calls from one set of weights, with its mean losses."""
    step = TrainingStep(recipe, lively_weights(recipe), CPU)
    if scaler is not None:
        step.scaler = scaler
    stream = iter(batches)
    losses = [step(stream).item() for _ in range(steps)]
    return step, losses


def joined(batches, count):
    """`count` micro-batches as one."""
    return [tuple(torch.cat(parts) for parts in zip(*batches[i : i + count], strict=True))
            for i in range(0, len(batches), count)]  # fmt: skip


def plain_update(recipe, batches):
    """One update of an ordinary PyTorch loop over the joined batch in float32: loss, clipping, torch's AdamW.

    Returns loss, joint norm of the gradients before clipping, gradients after it and new weights by canonical name.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in lively_weights(recipe).items()}
    optimizer = torch.optim.AdamW(leaves.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    [(tokens, targets)] = joined(batches, len(batches))
    loss = reference_loss(reference_logits(leaves, recipe, tokens), targets)
    loss.backward()
    norm = torch.sqrt(sum((leaf.grad**2).sum() for leaf in leaves.values()))
    if recipe.gradient_clip:
        factor = min(1.0, recipe.gradient_clip / norm.item())
        for leaf in leaves.values():
            leaf.grad *= factor
    gradients = {name: leaf.grad.clone() for name, leaf in leaves.items()}
    optimizer.step()
    return loss.item(), norm.item(), gradients, {name: leaf.detach() for name, leaf in leaves.items()}


def gradients_of(step):
    return {name: parameter.grad for name, parameter in step.model.named_parameters()}


def joint_norm(gradients):
    return torch.sqrt(sum((gradient.float() ** 2).sum() for gradient in gradients)).item()


@pytest.mark.parametrize("clip", [0.0, 0.25, 1e3])
@pytest.mark.parametrize("micro_steps", [1, 2, 4])
def test_gradients_losses_and_weights_are_those_of_a_plain_loop_over_the_big_batch(micro_steps, clip):
    recipe = TINY.but(micro_batch=8 // micro_steps, accumulation=micro_steps, gradient_clip=clip)
    batches = random_batches(recipe, micro_steps)
    loss, norm, gradients, weights = plain_update(recipe, batches)
    assert norm > 0.5, "the small limit must bite and the large one must not"
    step, losses = stepped(recipe, batches)
    assert losses == pytest.approx([loss], abs=1e-5)
    for name, gradient in gradients_of(step).items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-5, atol=1e-6)
    for name, value in canonical_weights(step.model, recipe).items():
        # AdamW divides by the root of the second moment: an entry whose gradient nearly vanishes moves by its sign.
        assert (value - weights[name]).abs().mean() < recipe.learning_rate / 1_000, name


@pytest.mark.parametrize("clip", [0.0, 0.25])
def test_the_gradient_scaler_changes_nothing_but_the_range(clip):
    """float32 with a scaler: every factor is a power of two, so nothing may differ but the order of additions."""
    recipe = TINY.but(micro_batch=MICRO, accumulation=4, gradient_clip=clip)
    batches = random_batches(recipe, 4)
    plain, _ = stepped(recipe, batches)
    scaled, _ = stepped(recipe, batches, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    for (name, one), two in zip(gradients_of(plain).items(), gradients_of(scaled).values(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6, msg=name)
    for one, two in zip(plain.model.parameters(), scaled.model.parameters(), strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=TINY.learning_rate / 100)


def test_clipping_before_unscaling_would_have_been_noticed():
    """The fault itself: a limit on gradients that are 1,024 times too large leaves an update 1,000 times too small."""
    recipe = TINY.but(gradient_clip=1.0)
    batches = random_batches(recipe, 1)
    right, _ = stepped(recipe, batches, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    norm = joint_norm(p.grad for p in right.model.parameters())
    assert norm == pytest.approx(1.0, rel=1e-3)
    scaled_norm = plain_update(recipe.but(gradient_clip=0.0), batches)[1] * 1024
    assert 1.0 / scaled_norm * 1024 < 1.0 and scaled_norm > 1_000


@pytest.mark.parametrize("precision", ["float16_autocast", "bfloat16_autocast", "bfloat16_master", "bfloat16"])
def test_splitting_the_batch_and_clipping_work_in_every_format(precision):
    """16-bit matmuls round each micro-batch by itself, bfloat16 gradients add up in bfloat16: about two digits."""
    recipe = TINY.but(precision=precision, gradient_clip=0.5, layers="native", attention="sdpa")
    small = random_batches(recipe.but(micro_batch=MICRO), 4)
    split, losses = stepped(recipe.but(micro_batch=MICRO, accumulation=4), small)
    whole, whole_losses = stepped(recipe.but(micro_batch=4 * MICRO), joined(small, 4))
    assert losses == pytest.approx(whole_losses, abs=5e-2)  # bfloat16 near 4 has steps of 1/32
    norm = 1.0 if precision == "bfloat16_master" else None  # there the gradients of the masters are clipped, and freed
    for step in (split, whole):
        found = joint_norm(p.grad for p in step.model.parameters())
        assert found > 0.5 if norm else found == pytest.approx(0.5, rel=2e-2)
    difference = joint_norm(
        a.grad.float() - b.grad.float() for a, b in zip(split.model.parameters(), whole.model.parameters(), strict=True)
    )
    assert difference < 0.05 * joint_norm(p.grad for p in whole.model.parameters())


def test_masters_are_moved_by_clipped_gradients(monkeypatch):
    from speedlab.training import optimizer as module

    seen = []
    whole = torch.nn.utils.clip_grad_norm_

    def watched(parameters, limit):
        parameters = list(parameters)
        before = whole(parameters, limit)
        seen.append((before.item(), joint_norm(p.grad for p in parameters), {p.dtype for p in parameters}))

    monkeypatch.setattr(module.nn.utils, "clip_grad_norm_", watched)
    recipe = TINY.but(precision="bfloat16_master", gradient_clip=0.5, accumulation=2)
    stepped(recipe, random_batches(recipe, 4), steps=2)
    assert len(seen) == 2, "once for each update, not for each micro-batch, and not for the rounded weights as well"
    for before, after, dtypes in seen:
        assert before > 0.5 and after == pytest.approx(0.5, rel=1e-3) and dtypes == {torch.float32}


def test_clipping_comes_once_after_the_last_micro_batch_and_before_the_optimizer(monkeypatch):
    order = []
    recipe = TINY.but(accumulation=3, gradient_clip=1.0)
    step = TrainingStep(recipe, lively_weights(recipe), CPU)
    whole, update, forward = torch.nn.utils.clip_grad_norm_, step.optimizer.step, step.forward
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *a: order.append("clip") or whole(*a))
    monkeypatch.setattr(step.optimizer, "step", lambda: order.append("update") or update())
    step.forward = lambda tokens: order.append("forward") or forward(tokens)
    step(iter(random_batches(recipe, 3)))
    assert order == ["forward"] * 3 + ["clip", "update"]
    order.clear()
    step.recipe = recipe.but(gradient_clip=0.0)
    step(iter(random_batches(recipe, 3)))
    assert order == ["forward"] * 3 + ["update"]


def test_a_scaler_that_sees_an_overflow_skips_the_update_although_clipping_made_every_gradient_nan():
    recipe = TINY.but(precision="float16_autocast", gradient_clip=1.0, accumulation=2)
    step = TrainingStep(recipe, lively_weights(recipe), CPU)
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = [p.detach().clone() for p in step.model.parameters()]
    batches = iter(random_batches(recipe, 4))
    step(batches)
    assert all(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
    step.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    step(batches)
    assert all(torch.isfinite(p).all() for p in step.model.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1", True])
def test_a_limit_that_cannot_be_meant_is_refused(value):
    one_line_error(BadInput, lambda: Recipe(gradient_clip=value), "gradient_clip", repr(value))


@pytest.mark.parametrize("precision", ["float32", "bfloat16_master"])
def test_the_one_pass_optimizer_gets_clipped_gradients(precision):
    recipe = TINY.but(precision=precision, optimizer="one_pass", gradient_clip=0.25)
    batches = random_batches(recipe, 1)
    free, _ = stepped(recipe.but(gradient_clip=0.0), batches)
    step, _ = stepped(recipe, batches)
    assert joint_norm(gradients_of(free).values()) > 0.3
    assert joint_norm(gradients_of(step).values()) == pytest.approx(0.25, rel=1e-2)
