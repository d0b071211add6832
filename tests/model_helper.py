"""A GPT-2 and an AdamW written out once more, in float64 and with loops, as the reference for every variant.

Nothing here uses the package's model: weights come in as the canonical dictionary, logits and gradients go out.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from speedlab.model import draw_weights
from speedlab.recipe import Recipe

CPU = torch.device("cpu")
# Two threads on matrices of this size mostly wait for each other; on a busy machine they take thirty times as long.
torch.set_num_threads(1)
# Small enough for milliseconds; 61 ids are padded to 64, so padding has something to do.
TINY = Recipe(
    num_layers=2, embedding_width=32, num_heads=4, context_length=16, vocab_size=61, dropout=0.0, micro_batch=3, seed=11
)

Weights = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]


@contextmanager
def short_collections() -> Iterator[None]:
    """Take what exists out of Python's garbage collection, which a measurement runs several times.

    After torch's compiler is imported each full collection visits a million objects.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def lively_weights(recipe: Recipe, *, seed: int = 5, spread: float = 0.1) -> Weights:
    """Canonical weights with noise on every entry: freshly drawn biases are 0 and norms 1, which hides mistakes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + spread * torch.randn(value.shape, generator=generator)
        for name, value in draw_weights(recipe).items()
    }


def random_batches(recipe: Recipe, count: int, *, seed: int = 3) -> list[Batch]:
    """`count` micro-batches of ids that the tokenizer could have given."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, recipe.micro_batch, recipe.context_length + 1)
    ids = torch.randint(0, recipe.vocab_size, shape, generator=generator)
    return [(window[:, :-1].contiguous(), window[:, 1:].contiguous()) for window in ids]


def reference_logits(weights: Weights, recipe: Recipe, tokens_BT: Tensor) -> Tensor:
    """Logits (B, T, vocab_size) in the dtype of the weights."""
    tokens_table = weights["token_table.weight"]
    head = weights.get("head.weight", tokens_table)
    num_tokens = tokens_BT.shape[1]
    x = tokens_table[tokens_BT] + weights["position_table.weight"][:num_tokens]
    for layer in range(recipe.num_layers):
        own = {
            name.removeprefix(f"blocks.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"blocks.{layer}.")
        }
        normed = reference_layer_norm(x, own["attention_norm.weight"], own["attention_norm.bias"])
        q, k, v = (
            normed @ own[f"attention.project.{part}.weight"].T + own.get(f"attention.project.{part}.bias", 0.0)
            for part in ("query", "key", "value")
        )
        mixed = reference_attention(q, k, v, recipe.num_heads)
        x = x + mixed @ own["attention.out.weight"].T + own["attention.out.bias"]
        normed = reference_layer_norm(x, own["feed_forward_norm.weight"], own["feed_forward_norm.bias"])
        inner = reference_gelu(normed @ own["feed_forward.up.weight"].T + own["feed_forward.up.bias"])
        x = x + inner @ own["feed_forward.down.weight"].T + own["feed_forward.down.bias"]
    return reference_layer_norm(x, weights["final_norm.weight"], weights["final_norm.bias"]) @ head.T


def reference_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.sum(dim=-1, keepdim=True) / x.shape[-1]
    variance = (centred * centred).sum(dim=-1, keepdim=True) / x.shape[-1]
    return centred * (variance + eps) ** -0.5 * weight + bias


def reference_gelu(x: Tensor) -> Tensor:
    """The tanh form, with tanh written by sigmoid: tanh(y) = 2 sigmoid(2 y) - 1."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def reference_attention(q_BTC: Tensor, k_BTC: Tensor, v_BTC: Tensor, num_heads: int) -> Tensor:
    """One head, one query at a time: each sees itself and what came before, and nothing else."""
    width = q_BTC.shape[-1] // num_heads
    heads = []
    for head in range(num_heads):
        part = slice(head * width, (head + 1) * width)
        q, k, v = q_BTC[..., part], k_BTC[..., part], v_BTC[..., part]
        rows = []
        for t in range(q.shape[1]):
            scores = (k[:, : t + 1] * q[:, t : t + 1]).sum(dim=-1) / math.sqrt(width)
            shares = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
            shares = shares / shares.sum(dim=-1, keepdim=True)
            rows.append((shares[..., None] * v[:, : t + 1]).sum(dim=1))
        heads.append(torch.stack(rows, dim=1))
    return torch.cat(heads, dim=-1)


def reference_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean of -log p(target) in nats."""
    log_total = torch.logsumexp(logits_BTV, dim=-1)
    return (log_total - logits_BTV.gather(-1, targets_BT[..., None])[..., 0]).mean()


def double_leaves(weights: Weights) -> Weights:
    return {name: value.double().requires_grad_() for name, value in weights.items()}


def reference_training(
    weights: Weights, recipe: Recipe, batches: Iterator[Batch], steps: int
) -> tuple[list[float], Weights]:
    """Losses and final weights of `steps` AdamW steps (Loshchilov and Hutter 2019), in float64."""
    leaves = double_leaves(weights)
    first = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    second = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    losses = []
    for step in range(1, steps + 1):
        parts = []
        for _ in range(recipe.accumulation):
            tokens_BT, targets_BT = next(batches)
            parts.append(reference_loss(reference_logits(leaves, recipe, tokens_BT), targets_BT))
        loss = torch.stack(parts).mean()
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        losses.append(loss.item())
        with torch.no_grad():
            for name, leaf in leaves.items():
                first[name] = 0.9 * first[name] + 0.1 * gradients[name]
                second[name] = 0.999 * second[name] + 0.001 * gradients[name] ** 2
                mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                leaf -= recipe.learning_rate * recipe.weight_decay * leaf
                leaf -= recipe.learning_rate * mean / (square.sqrt() + 1e-8)
    return losses, {name: leaf.detach() for name, leaf in leaves.items()}
