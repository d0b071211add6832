"""Single operations that claims of the folklore are about: optimizers, autocast, head and loss, the busy counter.

It measures; `speedlab.folklore` judges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from speedlab.errors import NotAvailable
from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS
from speedlab.recipe import Recipe

if TYPE_CHECKING:
    from speedlab.measuring.workbench import Workbench

REPEATS = 20
IMPLEMENTATIONS = ("for_loop", "default", "foreach", "fused")
SIZES = {"124M": {}, "350M": {"num_layers": 24, "embedding_width": 1024, "num_heads": 16}}
BATCHES = (8, 32)
CHUNK_ROWS = 2_048  # rows of the logits that are there at a time
BUSY_S = 2.0  # NVML's counter looks back a second at most


def folklore_micro(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Rows by `what`: optimizer, autocast, loss, utilization. What is profiled comes last: it slows launches."""
    real = bench.profile.publishable
    sizes = SIZES if real else {"toy": {"num_layers": 2, "embedding_width": 64, "num_heads": 2}}
    shapes = {name: bench.scaled(NINE_STEPS.recipe_at("bfloat16")).but(**change) for name, change in sizes.items()}
    for name, recipe in shapes.items():
        for implementation in IMPLEMENTATIONS:
            say(f"AdamW {implementation}, {name}")
            make = partial(_update_ms, bench, recipe.but(optimizer=implementation))
            yield attempt(make, what="optimizer", size=name, implementation=implementation)
    yield from autocast_rows(bench)
    for batch in BATCHES if real else (2,):
        for kind, compute in LOSSES.items():
            say(f"head and loss, {kind}, batch {batch}")
            yield attempt(partial(_loss_ms, bench, compute, batch), what="loss", kind=kind, batch=batch)
    if bench.device.type == "cuda":
        say("the busy counter")
        for work, start in (("baseline", _baseline), ("one number", _one_number)):
            yield attempt(partial(_busy, bench, start), what="utilization", work=work)
    for implementation in IMPLEMENTATIONS:
        name, recipe = next(iter(shapes.items()))
        make = partial(_launches, bench, recipe.but(optimizer=implementation))
        yield attempt(make, what="launches", size=name, implementation=implementation)


def _updater(bench: Workbench, recipe: Recipe) -> tuple[Any, int, int]:
    """(optimizer whose weights have gradients, weights, tensors)."""
    import torch

    from speedlab.measuring.memory import free_everything
    from speedlab.model import GPT
    from speedlab.training.optimizer import build_optimizer
    from speedlab.training.precision import precision_of

    free_everything(bench.device)
    with bench.device:
        model = GPT(recipe).to(dtype=precision_of(recipe).weights)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) / 1_000
    return build_optimizer(recipe, parameters), sum(p.numel() for p in parameters), len(parameters)


def _update_ms(bench: Workbench, recipe: Recipe) -> dict[str, Any]:
    optimizer, weights, tensors = _updater(bench, recipe)
    return {"weights": weights, "tensors": tensors, "update_ms": samples_ms(optimizer.step, bench)}


def _launches(bench: Workbench, recipe: Recipe) -> dict[str, Any]:
    from speedlab.measuring.kernels import kernel_table

    optimizer, _, tensors = _updater(bench, recipe)
    optimizer.step()
    table = kernel_table(optimizer.step, bench.device)
    return {"tensors": tensors, "launches": sum(row["calls"] for row in table)}


def samples_ms(call: Callable[[], Any], bench: Workbench, repeats: int = 0) -> list[float]:
    """Milliseconds of each of `repeats` calls (0: as usual), after two that do not count."""
    from speedlab.measuring.stopwatch import Stopwatch, synchronize

    call()
    call()
    synchronize(bench.device)
    watch = Stopwatch(bench.device)
    watch.mark()
    for _ in range(repeats or REPEATS):
        call()
        watch.mark()
    return watch.step_ms()


def autocast_rows(bench: Workbench) -> Iterator[dict[str, Any]]:
    """Operations of a transformer on float32 inputs under autocast: in which format does each answer?"""
    import torch
    import torch.nn.functional as F

    x = torch.randn(2, 8, 16, device=bench.device)
    heads, weight, ids = x.view(2, 1, 8, 16), torch.ones(16, 16, device=bench.device), torch.zeros(16, device=x.device)
    operations: dict[str, Callable[[], Any]] = {
        "linear": lambda: F.linear(x, weight),
        "matmul": lambda: x @ x.transpose(1, 2),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        "softmax": lambda: F.softmax(F.linear(x, weight), dim=-1),
        "layer_norm": lambda: F.layer_norm(F.linear(x, weight), (16,)),
        "gelu": lambda: F.gelu(F.linear(x, weight)),
        "cross_entropy": lambda: F.cross_entropy(F.linear(x, weight).flatten(0, 1), ids.long()),
        "sum": lambda: F.linear(x, weight).sum(),
        "exp": lambda: F.linear(x, weight).exp(),
        "residual addition": lambda: x + F.linear(x, weight),
    }
    with torch.autocast(bench.device.type, dtype=torch.bfloat16):
        for name, operation in operations.items():
            yield attempt(
                lambda operation=operation: {"answers_in": str(operation().dtype).removeprefix("torch.")},
                what="autocast", operation=name,
            )  # fmt: skip


def apart(x: Any, weight: Any, targets: Any) -> tuple[Any, Any, Any]:
    """(loss, gradient of x, of weight): the head, then the loss over all logits, then autograd."""
    import torch
    import torch.nn.functional as F

    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = F.cross_entropy(F.linear(x, weight), targets)
    return (loss.detach(), *torch.autograd.grad(loss, (x, weight)))


def in_chunks(x: Any, weight: Any, targets: Any, chunk_rows: int = CHUNK_ROWS) -> tuple[Any, Any, Any]:
    """The same without ever holding all logits: loss and gradients of some rows at a time (Hsu et al. 2024, Liger).

    The gradient of the weights is summed in float32.
    """
    import torch
    import torch.nn.functional as F

    rows, loss = len(x), torch.zeros((), device=x.device)
    x_gradient = torch.empty_like(x)
    weight_gradient = torch.zeros(weight.shape, device=x.device, dtype=torch.float32)
    for some, wanted, into in zip(*(t.split(chunk_rows) for t in (x, targets, x_gradient)), strict=True):
        logits = F.linear(some, weight).detach().requires_grad_()
        share = F.cross_entropy(logits, wanted, reduction="sum") / rows
        (gradient,) = torch.autograd.grad(share, logits)
        into.copy_(gradient @ weight)
        weight_gradient += gradient.T @ some
        loss += share.detach()
    return loss, x_gradient, weight_gradient.to(weight.dtype)


LOSSES = {"apart": apart, "in chunks": in_chunks}


def _loss_ms(bench: Workbench, compute: Callable[..., Any], batch: int) -> dict[str, Any]:
    import torch

    from speedlab.measuring.memory import free_everything, read_peak, reset_peak
    from speedlab.training.precision import precision_of

    recipe = bench.scaled(NINE_STEPS.recipe_at("padded_vocab"))
    rows, dtype = batch * recipe.context_length, precision_of(recipe).weights
    free_everything(bench.device)
    x = torch.randn(rows, recipe.embedding_width, device=bench.device).to(dtype)
    weight = torch.randn(recipe.padded_vocab_size, recipe.embedding_width, device=bench.device).to(dtype) / 50
    targets = torch.randint(recipe.vocab_size, (rows,), device=bench.device)
    reset_peak(bench.device)
    times = samples_ms(lambda: compute(x, weight, targets), bench, repeats=10)
    return {"rows": rows, "both_ms": times, "peak_allocated_bytes": read_peak(bench.device).allocated_bytes}


def _baseline(bench: Workbench) -> tuple[Callable[[], Any], dict[str, Any]]:
    from speedlab.measuring.variant import start_fresh, start_variant

    recipe, _ = bench.recipe(NINE_STEPS, "baseline")
    start_fresh(bench.device)
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    return lambda: step(batches), {"tokens_per_step": recipe.tokens_per_step, "rung": "baseline"}


def _one_number(bench: Workbench) -> tuple[Callable[[], Any], dict[str, Any]]:
    import torch

    number = torch.zeros(1, device=bench.device)

    def add() -> None:
        for _ in range(1_000):
            number.add_(1.0)

    return add, {"additions_per_step": 1_000}


def _busy(bench: Workbench, start: Callable[..., Any]) -> dict[str, Any]:
    """What the driver's busy counter says at the end of some seconds of nothing but this work."""
    from speedlab.measuring.power import busy_percent
    from speedlab.measuring.stopwatch import synchronize

    work, about = start(bench)
    work()
    synchronize(bench.device)
    begun, times = time.perf_counter(), []
    while sum(times) < BUSY_S:
        before = time.perf_counter()
        work()
        synchronize(bench.device)
        times.append(time.perf_counter() - before)
    percent = busy_percent(bench.device)
    if percent is None:
        raise NotAvailable("the driver does not tell how busy the card is")
    calls = len(times)
    return about | {"busy_percent": percent, "step_ms": [1e3 * (time.perf_counter() - begun) / calls], "steps": calls}
