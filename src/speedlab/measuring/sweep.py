"""How fast this machine runs the shapes of a session: its matmuls, its attention, its small kernels, its launches.

A large square matmul and a long copy say what the card can do; these rates say what it does at GPT-2's shapes, each
kind of work alone and before any step is timed. It knows recipes and their counts, and times no training step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any

import torch

from speedlab.device import Capabilities
from speedlab.measuring import counting, traffic
from speedlab.measuring.memory import free_everything
from speedlab.measuring.stopwatch import Stopwatch, synchronize
from speedlab.model.attention import ATTENTION, split_heads
from speedlab.recipe import Recipe
from speedlab.training.precision import matmul_precision
from speedlab.work import compute_dtype

DTYPES = {
    "float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip
SAMPLES = 5
SAMPLE_S = 2e-3  # one sample holds as many calls as fill this, so that a mark costs nothing beside them
MOST_CALLS = 20
LAUNCHES = 1_000


def measure_shapes(ceilings: dict[str, Any], recipes: Iterable[Recipe], machine: Capabilities) -> dict[str, Any]:
    """`ceilings` with the rates that the predictions of these recipes need and that are not in it yet.

    Adds gemm_flops_per_s, attention_flops_per_s and pass_bytes_per_s ({key: rate}, the keys made by `counting`), and
    launch_s, the host's seconds per kernel launch. About 5 s on a fast GPU for a ladder of ten rungs. A shape that
    cannot run here has no rate: its recipe will not run either, and says why in its own row.
    """
    device = torch.device(machine.device_type)
    rates = {
        name: dict(ceilings.get(name, {})) for name in ("gemm_flops_per_s", "attention_flops_per_s", "pass_bytes_per_s")
    }
    # A format whose units are missing here has no ceiling, and its recipes no prediction.
    for recipe in (recipe for recipe in recipes if compute_dtype(recipe) in ceilings["matmul_flops_per_s"]):
        for name, key, amount, prepare in _wanted(recipe, device):
            if key in rates[name]:
                continue
            try:
                with matmul_precision(recipe):
                    rates[name][key] = amount / _seconds(prepare(), device)
            except RuntimeError:  # out of memory, or no such kernel here: the step will say so when it runs
                continue
    if device.type == "cuda":
        free_everything(device)
    launch_s = ceilings.get("launch_s") or _launch_seconds(device)
    return ceilings | rates | {"launch_s": launch_s}


def _wanted(recipe: Recipe, device: torch.device):
    """(table, key, FLOPs or bytes of one call, function that makes the call) of everything that a recipe does."""
    dtype = DTYPES[compute_dtype(recipe)]
    aligned = counting.aligned_head(recipe)
    for matmul in (*counting.matmuls(recipe), *([aligned] if aligned else [])):
        for direction in counting.MATMUL_PASSES:
            prepare = partial(_matmul, matmul, direction, dtype, device)
            yield "gemm_flops_per_s", counting.gemm_key(recipe, matmul, direction), matmul.flops, prepare
    prepare = partial(_attention, recipe, dtype, device)
    yield "attention_flops_per_s", counting.attention_key(recipe), counting.attention_flops(recipe), prepare
    for kind, item in dict.fromkeys((passes.kind, passes.item) for passes in counting.passes_of(recipe)):
        if kind == "streamed":
            continue  # the copy of the ceilings
        elements, bytes_each = _elements(recipe, kind), _BYTES_PER_ELEMENT[kind](item)
        prepare = partial(_pass, recipe, kind, torch.float32 if item == 4 else _sixteen_bits(dtype), device)
        yield "pass_bytes_per_s", counting.pass_key(recipe, kind, item), elements * bytes_each, prepare


def _sixteen_bits(dtype: torch.dtype) -> torch.dtype:
    return torch.bfloat16 if dtype == torch.float32 else dtype


def _normal(*shape: int, dtype: torch.dtype, device: torch.device, requires_grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device=device).requires_grad_(requires_grad)


def _matmul(matmul: counting.Matmul, direction: str, dtype: torch.dtype, device: torch.device) -> Callable[[], Any]:
    """One of the three matmuls of a dense layer, in the layout in which autograd calls it."""
    _, _, tokens, inputs, outputs = matmul
    normal = partial(_normal, dtype=dtype, device=device)
    if direction == "forward":
        x, weight = normal(tokens, inputs), normal(outputs, inputs)
        return lambda: x @ weight.t()
    gradient = normal(tokens, outputs)
    if direction == "input gradient":
        weight = normal(outputs, inputs)
        return lambda: gradient @ weight
    x = normal(tokens, inputs)
    return lambda: gradient.t() @ x


def _attention(recipe: Recipe, dtype: torch.dtype, device: torch.device) -> Callable[[], Any]:
    """Forward and backward of one layer's attention, from the layout that the projections give."""
    batch, length, width = recipe.micro_batch, recipe.context_length, recipe.embedding_width
    if traffic.writes_scores(recipe):
        heads = batch * recipe.num_heads
        normal = partial(_normal, dtype=dtype, device=device)
        q, k, v, mixed = (normal(heads, length, recipe.head_width) for _ in range(4))
        scores = normal(heads, length, length)

        def six_matmuls() -> None:
            torch.bmm(q, k.transpose(1, 2))
            torch.bmm(scores, v)
            torch.bmm(mixed, v.transpose(1, 2))  # gradient of the attention weights
            torch.bmm(scores.transpose(1, 2), mixed)  # of the values
            torch.bmm(scores, k)  # of the queries
            torch.bmm(scores.transpose(1, 2), q)  # of the keys

        return six_matmuls
    inputs = [_normal(batch, length, width, dtype=dtype, device=device, requires_grad=True) for _ in range(3)]
    attend = ATTENTION[recipe.attention](recipe)
    gradient = _normal(batch, length, width, dtype=dtype, device=device)

    def forward_and_backward() -> None:
        mixed_BHTD = attend(*(split_heads(x, recipe.num_heads) for x in inputs))
        torch.autograd.grad(mixed_BHTD.transpose(1, 2).flatten(2), inputs, gradient)

    return forward_and_backward


# Bytes read and written per element by the operation that stands for a kind.
_BYTES_PER_ELEMENT: dict[str, Callable[[int], int]] = {
    "vectorized": lambda item: 3 * item,
    "indexed": lambda item: 2 * item,
    "column sum": lambda item: item,
    "dropout": lambda item: 2 * item + 1,
    "masked fill": lambda item: 2 * item,
    "softmax": lambda item: (2 + 3) * item,
}


def _elements(recipe: Recipe, kind: str) -> int:
    tokens = traffic.tokens_of(recipe)
    if kind in traffic.ON_SCORES:
        return tokens * recipe.num_heads * recipe.context_length
    return tokens * recipe.embedding_width * (4 if kind == "vectorized" else 1)


def _pass(recipe: Recipe, kind: str, dtype: torch.dtype, device: torch.device) -> Callable[[], Any]:
    normal = partial(_normal, dtype=dtype, device=device)
    tokens, width, length = traffic.tokens_of(recipe), recipe.embedding_width, recipe.context_length
    if kind in traffic.ON_SCORES:
        scores = normal(recipe.micro_batch, recipe.num_heads, length, length, requires_grad=kind == "softmax")
        if kind == "masked fill":
            mask_TS = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
            return lambda: scores.masked_fill_(mask_TS, -math.inf)
        gradient = normal(*scores.shape)
        return lambda: torch.autograd.grad(torch.softmax(scores, dim=-1), scores, gradient)
    x = normal(tokens, width)
    if kind == "indexed":
        column = normal(tokens, 1)
        return lambda: x / column
    if kind == "column sum":
        return lambda: x.sum(dim=0)
    if kind == "dropout":
        return lambda: torch.native_dropout(x, recipe.dropout, True)
    one, two = normal(tokens, 4 * width), normal(tokens, 4 * width)
    return lambda: one + two


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Median seconds of one call among neighbours of its own kind, after two that are not counted."""
    call()
    if device.type == "cpu":  # nothing is predicted there; one call shows that the sweep works
        return _sample(call, device, 1)
    synchronize(device)
    estimate = _sample(call, device, 1)
    calls = max(1, min(MOST_CALLS, math.ceil(SAMPLE_S / max(estimate, 1e-7))))
    return median(_sample(call, device, calls) for _ in range(SAMPLES))


def _sample(call: Callable[[], Any], device: torch.device, calls: int) -> float:
    watch = Stopwatch(device)
    watch.mark()
    for _ in range(calls):
        call()
    watch.mark()
    return watch.step_ms()[0] / 1e3 / calls


def _launch_seconds(device: torch.device) -> float:
    """Host seconds per kernel: many that do next to nothing, one after another. A module's own Python comes on top."""
    x = torch.zeros(1, device=device)
    launches = LAUNCHES if device.type == "cuda" else LAUNCHES // 10
    x.add_(1.0)
    synchronize(device)
    start = time.perf_counter()
    for _ in range(launches):
        x.add_(1.0)
    synchronize(device)
    return (time.perf_counter() - start) / launches
