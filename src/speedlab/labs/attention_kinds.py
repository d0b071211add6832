"""Every attention that can be had here under one signature, and one way to time them. It decides no shapes.

Shapes: B batch, H query heads, G key/value heads, T tokens, D width of one head.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from speedlab.errors import NotAvailable
from speedlab.measuring.memory import read_peak, reset_peak
from speedlab.measuring.stopwatch import Stopwatch, seconds_of, synchronize
from speedlab.model.attention import PlainAttention
from speedlab.model.tiled_attention import tiled_attention
from speedlab.recipe import Recipe

# q (B, H, T, D), k and v (B, G, T, D), whether causal -> (B, H, T, D)
Attention = Callable[[Tensor, Tensor, Tensor, bool], Tensor]

SDPA_BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}
LAYOUTS = ("heads first", "tokens first", "one projection")
TILE = 128  # of the tiled form in PyTorch: large tiles mean few launches


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one call. layout: how q, k and v lie in memory; all are seen as (B, heads, T, D)."""

    batch: int
    context: int
    heads: int
    head_width: int
    dtype: torch.dtype
    key_value_heads: int | None = None  # None: as many as heads
    layout: str = "heads first"

    @property
    def groups(self) -> int:
        return self.key_value_heads or self.heads

    def with_context(self, context: int) -> Shape:
        """The same number of tokens in longer or shorter sequences, at least one."""
        return replace(self, context=context, batch=max(1, self.batch * self.context // context))

    def as_row(self) -> dict[str, Any]:
        return {
            "batch": self.batch, "context": self.context, "heads": self.heads, "key_value_heads": self.groups,
            "head_width": self.head_width, "dtype": str(self.dtype).removeprefix("torch."),
        }  # fmt: skip


def make_inputs(shape: Shape, device: torch.device, *, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v of this shape and layout that want gradients."""
    generator = torch.Generator(device).manual_seed(seed)
    draw = partial(torch.randn, generator=generator, device=device, dtype=shape.dtype)
    heads, width = (shape.heads, shape.groups, shape.groups), shape.head_width
    if shape.layout == "heads first":
        found = [draw(shape.batch, count, shape.context, width) for count in heads]
    elif shape.layout == "tokens first":
        found = [draw(shape.batch, shape.context, count, width).transpose(1, 2) for count in heads]
    else:  # as `MergedProjection` leaves them: neighbours in each row of one matmul's output
        joined = draw(shape.batch, shape.context, sum(heads) * width)
        parts = joined.split([count * width for count in heads], dim=-1)
        found = [part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts]
    return tuple(x.detach().requires_grad_() for x in found)


def get_attention(name: str, device: torch.device) -> Attention:
    """The implementation of this name; `NotAvailable` says why there is none here."""
    return KINDS[name](device)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, backend: SDPBackend | None = None) -> Tensor:
    """`scaled_dot_product_attention`, by PyTorch's choice or insisting on one kernel."""
    grouped = k.shape[1] != q.shape[1]
    call = partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=grouped)
    if backend is None:
        return call()
    with warnings.catch_warnings(record=True) as said:  # why each kernel that was not asked for was not taken
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(backend):
                return call()
        except RuntimeError as error:
            if "available kernel" not in str(error) and "viable backend" not in str(error):
                raise
            why = why_not(backend, [str(warning.message) for warning in said])
            why = f": {why}" if why else ""
            raise NotAvailable(f"PyTorch's {backend.name} does not take these inputs here{why}"[:300]) from error


# PyTorch says "Flash attention kernel not used because:" and its reasons in messages of their own after that one.
HEADING = re.compile(r"(\w+).* kernel not used because:")
SPOKEN = {"FLASH_ATTENTION": "flash", "CUDNN_ATTENTION": "cudnn", "EFFICIENT_ATTENTION": "memory"}


def why_not(backend: SDPBackend, messages: list[str]) -> str:
    """PyTorch's reasons against one backend, of all that it said about each; empty where it gave none."""
    reasons: dict[str, list[str]] = {}
    current = ""
    for message in messages:
        text = " ".join(message.split(" (Triggered")[0].split())
        if heading := HEADING.match(text):
            current = heading[1].lower()
            text = text[heading.end() :].strip()
        if text:
            reasons.setdefault(current, []).append(text)
    spoken = SPOKEN.get(backend.name, "")
    # One said before any heading, or about a backend without a heading of its own, names it.
    loose = [text for text in reasons.get("", []) if spoken and spoken in text.lower()]
    return " ".join(dict.fromkeys(reasons.get(spoken) or loose))


def _plain(device: torch.device) -> Attention:
    module = PlainAttention(Recipe(dropout=0.0, causal_mask="on_the_fly"))

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        if not causal:
            raise NotAvailable("the plain form of this package is causal only")
        return module(q, k, v)

    return call


def _compiled(device: torch.device) -> Attention:
    return torch.compile(_plain(device), dynamic=False)


def _tiled(device: torch.device) -> Attention:
    return lambda q, k, v, causal: tiled_attention(q, k, v, causal=causal, query_tile=TILE, key_tile=TILE)


def _triton(device: torch.device) -> Attention:
    if device.type != "cuda":
        raise NotAvailable("Triton kernels need a GPU")
    if importlib.util.find_spec("triton") is None:
        raise NotAvailable("Triton is not installed")
    from speedlab.model.triton_attention import triton_attention

    return lambda q, k, v, causal: triton_attention(q, k, v, causal=causal)


def _flash_attn(device: torch.device) -> Attention:
    """The package by the algorithm's authors; it wants (B, T, H, D)."""
    if importlib.util.find_spec("flash_attn") is None:
        raise NotAvailable("package flash-attn is not installed; it must be compiled against this PyTorch")
    from flash_attn import flash_attn_func

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal).transpose(1, 2)

    return call


def _flex(device: torch.device) -> Attention:
    if device.type != "cuda":
        raise NotAvailable("flex_attention trains on GPUs only")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    mask = cache(
        lambda context: create_block_mask(lambda b, h, t, s: t >= s, None, None, context, context, device=device)
    )

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        block_mask = mask(q.shape[2]) if causal else None
        return compiled(q, k, v, block_mask=block_mask, enable_gqa=k.shape[1] != q.shape[1])

    return call


KINDS: dict[str, Callable[[torch.device], Attention]] = {
    "plain": _plain,
    "plain_compiled": _compiled,
    "tiled": _tiled,
    "triton": _triton,
    "sdpa": lambda device: sdpa,
    **{name: lambda device, backend=backend: partial(sdpa, backend=backend) for name, backend in SDPA_BACKENDS.items()},
    "flash_attn": _flash_attn,
    "flex": _flex,
}


def forward_backward(attention: Attention, qkv: tuple[Tensor, ...], gradient: Tensor, causal: bool) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    output = attention(*qkv, causal)
    return [output.detach(), *torch.autograd.grad(output, qkv, gradient)]


def time_attention(
    name: str, shape: Shape, device: torch.device, *, causal: bool = True, repeats: int = 10
) -> dict[str, Any]:
    """Samples of the forward pass alone and of both passes, and the memory that both took beyond their inputs.

    Fewer repeats where one call takes a tenth of a second or more.
    """
    attention = get_attention(name, device)
    qkv = make_inputs(shape, device)
    gradient = torch.randn_like(qkv[0])
    reset_peak(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else None
    both = partial(forward_backward, attention, qkv, gradient, causal)
    both()
    peak = read_peak(device).allocated_bytes
    if seconds_of(both, device) > 0.1:
        repeats = 3

    def forward() -> None:
        with torch.no_grad():
            attention(*qkv, causal)

    return {
        "forward_ms": samples_ms(forward, device, repeats),
        "both_ms": samples_ms(both, device, repeats),
        "extra_peak_bytes": None if peak is None or before is None else peak - before,
    }


def samples_ms(call: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """Milliseconds of each of `repeats` calls, after one that does not count."""
    call()
    synchronize(device)
    watch = Stopwatch(device)
    watch.mark()
    for _ in range(repeats):
        call()
        watch.mark()
    return watch.step_ms()
