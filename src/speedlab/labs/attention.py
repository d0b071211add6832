"""Attention alone, outside the model: time and memory over the context, accuracy, heads, layouts, determinism.

Rows say by `what` which question they belong to; all use the shapes of GPT-2 unless they say
otherwise. It knows no page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from speedlab.attention_work import key_value_bytes
from speedlab.folklore.formulas import SEVEN_B
from speedlab.labs.attention_kinds import (
    KINDS,
    LAYOUTS,
    Shape,
    forward_backward,
    get_attention,
    make_inputs,
    samples_ms,
    sdpa,
    time_attention,
)
from speedlab.labs.rows import attempt
from speedlab.measuring.memory import free_everything
from speedlab.measuring.variant import start_fresh
from speedlab.model.gpt import Block
from speedlab.recipe import Recipe
from speedlab.training.precision import matmul_precision


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """batch and context: of one call, whose tokens every other context shares. long: the context of the rows on heads
    and determinism. causal: those of causal against full. compiled: those where a shape is compiled, for seconds each.
    tiled: the longest for the tiled form in PyTorch, which launches thousands of kernels."""

    batch: int
    context: int
    contexts: tuple[int, ...]
    long: int
    causal: tuple[int, ...]
    compiled: tuple[int, ...]
    tiled: int


SIZES = Sizes(
    batch=64, context=1024, contexts=(256, 512, 1024, 2048, 4096, 8192, 16_384), long=4096,
    causal=(1024, 4096, 16_384), compiled=(1024, 4096), tiled=4096,
)  # fmt: skip
TOY_SIZES = Sizes(batch=2, context=64, contexts=(16, 32, 64), long=64, causal=(64,), compiled=(), tiled=64)
COMPILED = ("plain_compiled", "flex")
TOY_LAYER = SEVEN_B.but(embedding_width=64, num_heads=2, context_length=32)
KERNELS = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "triton")


def attention_sweep(bench: Any, say: Any) -> Iterator[dict[str, Any]]:
    """Rows by `what`: context, accuracy, causal, heads, layout, copies, deterministic, layer_7b."""
    real = bench.profile.publishable
    sizes = SIZES if real else TOY_SIZES
    recipe = bench.scaled(Recipe())
    shape = Shape(
        batch=sizes.batch,
        context=sizes.context,
        heads=recipe.num_heads,
        head_width=recipe.head_width,
        dtype=half_precision(bench.machine),
    )
    start_fresh(bench.device)
    for name, rows in (
        ("over the context", context_rows(bench, shape, sizes)),
        ("accuracy", accuracy_rows(bench, replace(shape, batch=2))),
        ("causal against full", causal_rows(bench, shape, sizes.causal)),
        ("heads", head_rows(bench, shape.with_context(sizes.long))),
        ("layouts", layout_rows(bench, shape)),
        ("determinism", deterministic_rows(bench, shape.with_context(sizes.long))),
        ("a layer of a 7B model", layer_rows(bench, SEVEN_B if real else TOY_LAYER)),
    ):
        say(name)
        yield from rows


def half_precision(machine: Any) -> torch.dtype:
    """The 16-bit format that the card has units for; a CPU computes in float32."""
    if machine.device_type == "cpu":
        return torch.float32
    return torch.bfloat16 if machine.native_bfloat16 else torch.float16


def timed(bench: Any, what: str, kind: str, shape: Shape, *, causal: bool = True, **more: Any) -> dict[str, Any]:
    """One row: an implementation at a shape."""
    make_room(bench)
    make = partial(time_attention, kind, shape, bench.device, causal=causal)
    return attempt(make, what=what, kind=kind, causal=causal, **shape.as_row(), **more)


def make_room(bench: Any) -> None:
    """Give back what the row before left; on a CPU nothing counts memory, and collecting garbage takes a second."""
    if bench.device.type == "cuda":
        free_everything(bench.device)


def context_rows(bench: Any, shape: Shape, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Every implementation at the same number of tokens in ever longer sequences."""
    for kind in KINDS:
        for context in contexts_of(kind, sizes):
            row = timed(bench, "context", kind, shape.with_context(context))
            yield row
            if row["status"] == "unavailable":
                break  # nor at another context


def contexts_of(kind: str, sizes: Sizes) -> tuple[int, ...]:
    if kind in COMPILED:
        return sizes.compiled
    return tuple(context for context in sizes.contexts if kind != "tiled" or context <= sizes.tiled)


def accuracy_rows(bench: Any, shape: Shape) -> Iterator[dict[str, Any]]:
    """Largest errors of output and gradients against float64, from the same rounded inputs, in 16 bits and float32."""
    for dtype in dict.fromkeys((shape.dtype, torch.float32)):
        rounded = replace(shape, dtype=dtype)
        qkv = make_inputs(rounded, bench.device)
        gradient = torch.randn_like(qkv[0])
        exact_inputs = tuple(x.detach().double().requires_grad_() for x in qkv)
        exact = forward_backward(get_attention("plain", bench.device), exact_inputs, gradient.double(), True)
        for kind in KINDS:
            if kind not in COMPILED:
                make = partial(errors, bench.device, kind, qkv, gradient, exact)
                yield attempt(make, what="accuracy", kind=kind, **rounded.as_row())


def errors(device: torch.device, kind: str, qkv: Any, gradient: Any, exact: list) -> dict[str, Any]:
    with matmul_precision(Recipe()):
        found = forward_backward(get_attention(kind, device), qkv, gradient, True)
    names = ("output", "q_gradient", "k_gradient", "v_gradient")
    return {
        f"{name}_error": (one.double() - two).abs().max().item()
        for name, one, two in zip(names, found, exact, strict=True)
    }


def causal_rows(bench: Any, shape: Shape, contexts: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The same call with and without `is_causal`."""
    for kind in KERNELS:
        for context in contexts:
            for causal in (True, False):
                yield timed(bench, "causal", kind, shape.with_context(context), causal=causal)


def head_rows(bench: Any, shape: Shape) -> Iterator[dict[str, Any]]:
    """Fewer key/value heads: by the kernel's own grouping (`enable_gqa`), and by repeating them before the call."""
    for groups in (count for count in (shape.heads, 4, 1) if shape.heads % count == 0):
        grouped = replace(shape, key_value_heads=groups)
        size = key_value_bytes(
            batch=shape.batch, context=shape.context, key_value_heads=groups, head_width=shape.head_width,
            bytes_per_value=shape.dtype.itemsize,
        )  # fmt: skip
        for kind in ("sdpa", *KERNELS):
            yield timed(bench, "heads", kind, grouped, key_value_bytes=size, repeated=False)
        if groups != shape.heads:
            make = partial(time_repeated, bench.device, grouped)
            yield attempt(make, what="heads", kind="sdpa", **grouped.as_row(), key_value_bytes=size, repeated=True)


def time_repeated(device: torch.device, shape: Shape) -> dict[str, Any]:
    """Both passes where keys and values are copied for each query head first."""
    q, k, v = make_inputs(shape, device)
    gradient = torch.randn_like(q)
    times = shape.heads // shape.groups

    def attend(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return sdpa(q, k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1), causal)

    return {"both_ms": samples_ms(partial(forward_backward, attend, (q, k, v), gradient, True), device, 10)}


def layout_rows(bench: Any, shape: Shape) -> Iterator[dict[str, Any]]:
    """The three ways in which q, k and v may lie in memory, and what bringing them into another one takes."""
    for kind in ("sdpa_flash", "sdpa_cudnn", "triton", "flash_attn"):
        for layout in LAYOUTS:
            yield timed(bench, "layout", kind, replace(shape, layout=layout), layout=layout)

    def copies() -> dict[str, Any]:
        qkv = [x.detach() for x in make_inputs(replace(shape, layout="tokens first"), bench.device)]
        return {"copy_ms": samples_ms(lambda: [x.contiguous() for x in qkv], bench.device, 10)}

    yield attempt(copies, what="copies", **shape.as_row())


def deterministic_rows(bench: Any, shape: Shape) -> Iterator[dict[str, Any]]:
    """Both passes as they are, with TF32 allowed, and in deterministic mode: time, and whether repeats agree."""
    settings: dict[str, Callable[[], AbstractContextManager]] = {
        "as it is": nullcontext,
        "TF32 allowed": partial(matmul_precision, Recipe(matmul_precision="high")),
        "deterministic": deterministic,
    }
    for kind in KERNELS:
        for setting, context in settings.items():
            with context():
                row = timed(bench, "deterministic", kind, shape, setting=setting)
                if row["status"] == "measured":
                    row |= attempt(partial(repeats_agree, bench.device, kind, shape), **row)
            yield row


@contextmanager
def deterministic() -> Iterator[None]:
    """PyTorch's deterministic mode, put back afterwards. It also fills fresh memory, as it does by default."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def repeats_agree(device: torch.device, kind: str, shape: Shape, repeats: int = 5) -> dict[str, Any]:
    """Whether output and gradients of the same call are the same bit by bit each time, and by how much they differ."""
    qkv = make_inputs(shape, device)
    gradient = torch.ones_like(qkv[0])
    attention = get_attention(kind, device)
    first = forward_backward(attention, qkv, gradient, True)
    largest = [0.0] * len(first)
    for _ in range(repeats):
        again = forward_backward(attention, qkv, gradient, True)
        differences = [(one.float() - two.float()).abs().max().item() for one, two in zip(first, again, strict=True)]
        largest = [max(pair) for pair in zip(largest, differences, strict=True)]
    return {"output_repeats": largest[0] == 0.0, "gradients_repeat": max(largest[1:]) == 0.0,
            "largest_difference": max(largest)}  # fmt: skip


def layer_rows(bench: Any, model: Recipe) -> Iterator[dict[str, Any]]:
    """One block of a 7B model, one sequence, forward and backward, with plain and with fused attention."""
    base = model.but(layers="native", dropout=0.0, causal_mask="on_the_fly")
    dtype = half_precision(bench.machine)
    for attention in ("plain", "sdpa"):
        make_room(bench)
        make = partial(time_layer, bench.device, base.but(attention=attention), dtype)
        yield attempt(make, what="layer_7b", kind=attention, context=base.context_length, width=base.embedding_width)


def time_layer(device: torch.device, recipe: Recipe, dtype: torch.dtype) -> dict[str, Any]:
    with device:
        block = Block(recipe).to(dtype)
        x_BTC = torch.randn(1, recipe.context_length, recipe.embedding_width, dtype=dtype).requires_grad_()

    def both() -> None:
        block(x_BTC).backward(torch.ones_like(x_BTC))
        block.zero_grad(set_to_none=True)
        x_BTC.grad = None

    return {"both_ms": samples_ms(both, device, 10)}
