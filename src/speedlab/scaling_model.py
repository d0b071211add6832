"""What many GPUs would make of a step, by formula: a model, never a measurement. Torch-free; it knows no record.

The exchange of one step is a ring or a tree all-reduce over a link of one rate and one latency. How much of it hides
behind the backward pass, and how much slower computation becomes beside it, are two numbers that are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

ALGORITHMS = ("ring", "tree")


@dataclass(frozen=True, kw_only=True)
class Link:
    """bytes_per_s: in one direction, of one GPU. latency_s: of one message from neighbour to neighbour."""

    bytes_per_s: float
    latency_s: float = 5e-6


@dataclass(frozen=True, kw_only=True)
class Step:
    """One GPU's step without an exchange.

    compute_s: of forward, backward and update at `micro_batch` sequences. fixed_s: the part of it that does not shrink
    with the batch. gradient_bytes: what is averaged. hidden: largest share of the compute time that can hide an
    exchange (the backward pass is about two thirds). drag_s: what several GPUs cost even when all of it hides.
    """

    compute_s: float
    gradient_bytes: float
    fixed_s: float = 0.0
    hidden: float = 0.6
    drag_s: float = 0.0


def ring_bytes(gpus: int, gradient_bytes: float) -> float:
    """What each GPU sends in a ring all-reduce: 2 (n - 1) / n times the gradients (Patarasuk and Yuan 2009)."""
    return 2.0 * (gpus - 1) / gpus * gradient_bytes


def all_reduce_s(gpus: int, gradient_bytes: float, link: Link, algorithm: str = "ring") -> float:
    """Seconds of one all-reduce. ring: 2 (n - 1) messages one after another. tree: a double binary tree, up and down,
    2 log2(n) messages deep, each GPU sending the gradients twice at most (Sanders, Speck and Traeff 2009)."""
    if gpus == 1:
        return 0.0
    if algorithm == "ring":
        return ring_bytes(gpus, gradient_bytes) / link.bytes_per_s + 2 * (gpus - 1) * link.latency_s
    if algorithm == "tree":
        # A tree sends the same bytes as an endless ring, and pays for its depth instead of for its length.
        return 2.0 * gradient_bytes / link.bytes_per_s + 2 * math.ceil(math.log2(gpus)) * link.latency_s
    raise ValueError(f"unknown algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")


def best_all_reduce_s(gpus: int, gradient_bytes: float, link: Link) -> float:
    """The faster of the two, as NCCL chooses by size and number."""
    return min(all_reduce_s(gpus, gradient_bytes, link, algorithm) for algorithm in ALGORITHMS)


def step_s(step: Step, gpus: int, link: Link, *, batch_share: float = 1.0) -> float:
    """Seconds of a step on `gpus`, each with `batch_share` of the sequences that `step` was measured with."""
    compute = step.fixed_s + (step.compute_s - step.fixed_s) * batch_share
    if gpus == 1:
        return compute
    exchange = best_all_reduce_s(gpus, step.gradient_bytes, link)
    return compute + step.drag_s + max(0.0, exchange - step.hidden * compute)


def weak_efficiency(step: Step, gpus: int, link: Link) -> float:
    """Share of one GPU's speed that each keeps when every GPU brings a batch of its own."""
    return step_s(step, 1, link) / step_s(step, gpus, link)


def strong_efficiency(step: Step, gpus: int, link: Link) -> float:
    """The same when one batch is divided among them."""
    return step_s(step, 1, link) / gpus / step_s(step, gpus, link, batch_share=1.0 / gpus)


def fit(step: Step, link: Link, measured: Sequence[tuple[int, float]]) -> Step:
    """`step` with the drag that makes the model pass as near as it can to measured (gpus, seconds) at one batch.

    The mean of what is missing at each point of more than one GPU, never below zero: least squares in one unknown.
    """
    several = [(gpus, seconds) for gpus, seconds in measured if gpus > 1]
    if not several:
        return step
    plain = replace(step, drag_s=0.0)
    missing = [seconds - step_s(plain, gpus, link) for gpus, seconds in several]
    return replace(step, drag_s=max(0.0, sum(missing) / len(missing)))
