"""What number formats do to this model's own numbers: gradients that vanish, updates that are rounded away.

Everything is taken from a model that trains in float32 and then rounded, so that formats are compared on the same
numbers. How fast each way of training in 16 bits is, and how well it learns, is ladder `precisions`. It knows no page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from speedlab.labs.rows import attempt_all
from speedlab.ladder import PRECISIONS
from speedlab.measuring.memory import free_everything
from speedlab.measuring.variant import start_fresh, start_variant
from speedlab.number_formats import FORMATS
from speedlab.recipe import Recipe
from speedlab.training.step import TrainingStep

STEPS, TOY_STEPS = 100, 6
# The loss scale that PyTorch's GradScaler starts with.
LOSS_SCALE = 2.0**16
ROUNDED: tuple[tuple[str, torch.dtype, float], ...] = (
    ("bfloat16", torch.bfloat16, 1.0),
    ("float16", torch.float16, 1.0),
    ("float16", torch.float16, LOSS_SCALE),
    ("float8_e5m2", torch.float8_e5m2, 1.0),
    ("float8_e5m2", torch.float8_e5m2, LOSS_SCALE),
    ("float8_e4m3", torch.float8_e4m3fn, LOSS_SCALE),
)
# Exponents of a histogram: float32's smallest normal numbers to 2^20.
LOWEST, HIGHEST = -126, 20
WATCHED = ("final_norm.weight", "blocks.0.feed_forward.up.weight")
TRAININGS = ("float32", "bfloat16", "bfloat16_master")


def precision_formats(bench: Any, say: Any) -> Iterator[dict[str, Any]]:
    """Rows by `what`: histogram and gradients (of weights, activations, logits), updates, trajectory."""
    recipe = bench.scaled(PRECISIONS.recipe_at("baseline")).but(dropout=0.0)
    steps = STEPS if bench.profile.publishable else TOY_STEPS
    say(f"{steps} steps in float32, then its gradients and one update")
    yield from attempt_all(lambda: numbers_of_training(bench, recipe, steps), part="numbers")
    for precision in TRAININGS:
        say(f"{steps} steps in {precision}, one weight watched")
        yield from attempt_all(
            lambda precision=precision: trajectories(bench, recipe.but(precision=precision), steps), precision=precision
        )


def numbers_of_training(bench: Any, recipe: Recipe, steps: int) -> Iterator[dict[str, Any]]:
    """Gradients of the first and of the last step, and the update that follows, of a training in float32."""
    start_fresh(bench.device)
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    yield from gradient_rows(step, batches, number=1)
    for _ in range(steps - 2):
        step(batches)
    yield from gradient_rows(step, batches, number=steps)
    yield from update_rows(step, batches, number=steps + 1)
    del step, batches
    free_everything(bench.device)


def gradient_rows(step: TrainingStep, batches: Iterator, *, number: int) -> Iterator[dict[str, Any]]:
    """Make step `number`, and say how its gradients lie in each format. A format sees gradient times loss scale."""
    inner: dict[str, list[Tensor]] = {"activations": [], "logits": []}
    hooks = [block.register_forward_hook(_keeps(inner["activations"])) for block in step.model.blocks]
    hooks.append(step.model.head.register_forward_hook(_keeps(inner["logits"])))
    step(batches)
    for hook in hooks:
        hook.remove()
    weights = [p.grad for p in step.model.parameters() if p.grad is not None]
    for of, gradients in {"weights": weights, **inner}.items():
        yield {"what": "histogram", "of": of, "step": number, **exponents(gradients)}
        for name, dtype, scale in ROUNDED:
            shares = lost_in_format(gradients, name, dtype, scale)
            yield {"what": "gradients", "of": of, "step": number, "format": name, "loss_scale": scale, **shares}


def _keeps(gradients: list[Tensor]) -> Any:
    """A forward hook that makes the backward pass put the gradient of a module's output into the list."""

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        output.register_hook(gradients.append)

    return hook


def exponents(tensors: Iterable[Tensor]) -> dict[str, Any]:
    """How many values lie in each power of two: counts[i] of those with 2^(lowest + i) <= |x| < 2^(lowest + i + 1).

    What is smaller or larger than the ends counts for the ends; zeros have a count of their own.
    """
    counts, zeros = torch.zeros(HIGHEST - LOWEST + 1, dtype=torch.int64), 0
    for x in tensors:
        size = x.detach().abs().flatten()
        kept = size[size > 0]
        zeros += size.numel() - kept.numel()
        # frexp's fraction is in [0.5, 1), so its exponent is one more than the power of two below the value.
        found = (torch.frexp(kept)[1] - 1).clamp_(LOWEST, HIGHEST) - LOWEST
        counts += torch.bincount(found, minlength=len(counts)).cpu()
    return {"lowest_exponent": LOWEST, "counts": counts.tolist(), "zeros": zeros}


def lost_in_format(tensors: Iterable[Tensor], name: str, dtype: torch.dtype, scale: float) -> dict[str, float]:
    """Shares of the values that are not zero: those that become zero, subnormal, or lie above the largest value."""
    form = FORMATS[name]
    total = zero = subnormal = above = 0
    for x in tensors:
        value = x.detach().float()
        stored = (value * scale).to(dtype).float().abs()
        total += int((value != 0).sum())
        zero += int(((stored == 0) & (value != 0)).sum())
        subnormal += int(((stored > 0) & (stored < form.smallest_normal)).sum())
        above += int(((value * scale).abs() > form.largest).sum())
    total = max(total, 1)
    return {"share_zero": zero / total, "share_subnormal": subnormal / total, "share_above_largest": above / total}


def update_rows(step: TrainingStep, batches: Iterator, *, number: int) -> Iterator[dict[str, Any]]:
    """Make a step, and say which share of its float32 updates would leave a 16-bit weight as it is."""
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    step(batches)
    groups: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, after in step.model.named_parameters():
        pair = (before[name], after.detach() - before[name])
        groups.setdefault(group_of(name, after), []).append(pair)
        groups.setdefault("all", []).append(pair)
    for group, pairs in groups.items():
        count = sum(weight.numel() for weight, _ in pairs)
        sizes = {
            "weights": count,
            "mean_weight": sum(float(weight.abs().sum()) for weight, _ in pairs) / count,
            "mean_update": sum(float(update.abs().sum()) for _, update in pairs) / count,
        }
        for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
            lost = sum(int(lost_updates(weight, update, dtype).sum()) for weight, update in pairs)
            moved = max(1, sum(int((update != 0).sum()) for _, update in pairs))
            yield {"what": "updates", "step": number, "of": group, "format": name, **sizes, "share_lost": lost / moved}


def group_of(name: str, weight: Tensor) -> str:
    """tables (looked up), matmuls, norms and biases."""
    if weight.dim() == 1:
        return "norms and biases"
    return "tables" if "table" in name else "matmuls"


def lost_updates(weight: Tensor, update: Tensor, dtype: torch.dtype) -> Tensor:
    """Where an update that is not zero leaves the rounded weight as it is: it is below half a step of the format."""
    stored = weight.to(dtype)
    return ((stored.float() + update).to(dtype) == stored) & (update != 0)


def trajectories(bench: Any, recipe: Recipe, steps: int) -> Iterator[dict[str, Any]]:
    """The first entry of two weights after each step, and the losses, of one way to train."""
    start_fresh(bench.device)
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    parameters = dict(step.model.named_parameters())
    values: dict[str, list[Tensor]] = {name: [_first(parameters[name])] for name in WATCHED}
    losses = []
    for _ in range(steps):
        losses.append(step(batches))
        for name in WATCHED:
            values[name].append(_first(parameters[name]))
    losses = torch.stack(losses).float().tolist()
    for name in WATCHED:
        yield {"what": "trajectory", "weight": f"{name}[0]", "values": torch.stack(values[name]).tolist()}
    yield {"what": "losses", "losses": losses}
    del step, batches, parameters
    free_everything(bench.device)


def _first(parameter: Tensor) -> Tensor:
    """Its first entry as float32, a copy that stays on the device."""
    return parameter.detach().flatten()[0].float().clone()
