"""What torch.compile does to the step: its modes, what it fuses, where it breaks or compiles again, what it costs.

All that is timed comes before anything is profiled: a process launches more slowly once it has profiled. It knows no
page.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from speedlab.errors import NotAvailable
from speedlab.labs.counted_bytes import CompiledBytes, compiled_bytes, operator_bytes
from speedlab.labs.rows import attempt
from speedlab.labs.warm_start import first_step_elsewhere
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.memory import free_everything
from speedlab.measuring.stopwatch import seconds_of
from speedlab.measuring.variant import (
    compile_cache,
    measure_variant,
    profile_variant,
    start_fresh,
    start_variant,
    time_steps,
)
from speedlab.model import GPT
from speedlab.recipe import Recipe

# Modes of each recipe. max-autotune is a rung of ladder six-steps: it tries kernels for minutes.
MODES = {"native": ("off", "default", "reduce-overhead"), "handwritten": ("off", "default")}
NOT_ON_A_TOY = "a CPU compiles one layer for half a minute: chapter 8 does that, this toy does not"
BATCHES = (8, 4, 6, 1)  # of the model that is called with ever other batches
FEW_LAYERS = 2
LONGEST_FUSED = 12


def compile_modes(bench: Any, say: Any) -> Iterator[dict[str, Any]]:
    """Rows by `what`: mode, warm, graph_break, recompile, then bytes and kernels."""
    recipes = recipes_of(bench)
    pairs = [(name, mode) for name, modes in MODES.items() for mode in modes]
    graphs: dict[tuple[str, str], CompiledBytes] = {}
    for name, mode in pairs:
        say(f"{name}, {mode}")
        with compiled_bytes() as graphs[name, mode]:
            make = partial(time_mode, bench, recipes[name].but(compile=mode))
            row = attempt(make, what="mode", recipe=name, mode=mode)
        yield row
    say("a new process that finds the cache")
    yield attempt(partial(warm_start, bench, recipes["native"].but(compile="default")), what="warm", recipe="native")
    for name in INTERRUPTIONS:
        say(f"graph breaks: {name}")
        yield attempt(partial(interrupted, bench, recipes["native"], name), what="graph_break", interruption=name)
    for dynamic in (False, None, True):
        say(f"other batches, dynamic={dynamic}")
        yield attempt(partial(other_batches, bench, recipes["native"], dynamic), what="recompile", dynamic=str(dynamic))
    for name, mode in pairs:
        if mode in ("off", "default"):
            make = partial(count_bytes, bench, recipes[name].but(compile=mode), graphs[name, mode])
            yield attempt(make, what="bytes", recipe=name, mode=mode)
    for name, mode in pairs:
        say(f"kernels of {name}, {mode}")
        make = partial(kernel_kinds, bench, recipes[name].but(compile=mode))
        yield attempt(make, what="kernels", recipe=name, mode=mode)


def recipes_of(bench: Any) -> dict[str, Recipe]:
    """Rung merged_qkv as it is, and with hand-written layers, which leave more to fuse. No dropout: one graph serves
    the comparison of losses and the timing."""
    native = bench.scaled(NINE_STEPS.recipe_at("merged_qkv")).but(dropout=0.0)
    if not bench.profile.publishable:
        native = native.but(num_layers=1, precision="float32")
    return {"native": native, "handwritten": native.but(layers="handwritten")}


def check_compiles(bench: Any, recipe: Recipe) -> None:
    """Raise `NotAvailable` where the recipe wants code generated and this is a toy, or has no compiler."""
    if recipe.compile == "off":
        return
    if bench.machine.compiler_problem:
        raise NotAvailable(bench.machine.compiler_problem)
    if not bench.profile.publishable:
        raise NotAvailable(NOT_ON_A_TOY)


def time_mode(bench: Any, recipe: Recipe) -> dict[str, Any]:
    """Losses, compile time and samples of one mode, each from an empty compiler."""
    check_compiles(bench, recipe)
    weights = bench.weights_for(recipe)
    found = measure_variant(recipe, weights, bench.tokens.tokens, bench.plan, bench.place, kernels=False)
    return {
        "step_ms": found.step_ms,
        "tokens_per_step": recipe.tokens_per_step,
        "losses": found.losses,
        "compile_s": found.compile_s,
        "compile_cache": found.compile_cache,
        "recompiles": found.recompiles,
        "peak_allocated_bytes": found.peak.allocated_bytes,
        "peak_reserved_bytes": found.peak.reserved_bytes,
    }


def warm_start(bench: Any, recipe: Recipe) -> dict[str, Any]:
    """The first step in a new process, from what `time_mode` left in the cache on disk."""
    check_compiles(bench, recipe)
    free_everything(bench.device)
    return first_step_elsewhere(recipe, bench.plan.warmup_steps)


def nothing(x: Tensor) -> Tensor:
    return x


def prints(x: Tensor) -> Tensor:
    print("", end="")
    return x


def asks(x: Tensor) -> Tensor:
    return x / max(1.0, x.mean().item())  # the host waits for a number


def branches(x: Tensor) -> Tensor:
    if x.mean() > 1e9:  # which way depends on data
        return -x
    return x


INTERRUPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": nothing, "print": prints, ".item()": asks, "data-dependent branch": branches,
}  # fmt: skip


class Interrupted(nn.Module):
    """A block, and something after it that the compiler may not be able to follow."""

    def __init__(self, block: nn.Module, interruption: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.block, self.interruption = block, interruption

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.interruption(self.block(x_BTC))


def interrupted(bench: Any, recipe: Recipe, name: str) -> dict[str, Any]:
    """Graphs, captured operations and reasons for breaks of a small model with an interruption after its first block;
    where it is no toy, also what a step takes with it."""
    small = few_layers(recipe)
    start_fresh(bench.device)
    step, batches = start_variant(small, bench.weights_for(small), bench.tokens.tokens, bench.place)
    step.model.blocks[0] = Interrupted(step.model.blocks[0], INTERRUPTIONS[name])
    with quiet():
        explained = torch._dynamo.explain(step.model)(next(batches)[0])
    # The same break is met once from each side.
    reasons = dict.fromkeys(str(one.reason).strip().splitlines()[0][:160] for one in explained.break_reasons)
    found = {"graphs": explained.graph_count, "operations": explained.op_count, "reasons": list(reasons)}
    if not bench.profile.publishable:
        return found
    small = small.but(compile="default")
    check_compiles(bench, small)
    start_fresh(bench.device)
    step, batches = start_variant(small, bench.weights_for(small), bench.tokens.tokens, bench.place)
    step.model.blocks[0] = Interrupted(step.model.blocks[0], INTERRUPTIONS[name])
    with quiet():
        for _ in range(1 + bench.plan.warmup_steps):
            step(batches)
        before = counters["stats"]["unique_graphs"]
        step_ms = time_steps(step, batches, bench.device, bench.plan.steps)
        return {**found, "step_ms": step_ms, "recompiles": int(counters["stats"]["unique_graphs"] - before)}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the compiler's warnings about what we do to it on purpose; they hold paths of this machine.

    One is Python's: the code after a break gets a tensor that is no leaf, and the compiler looks for its gradient.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        logging.disable(before)


def few_layers(recipe: Recipe) -> Recipe:
    return recipe.but(num_layers=min(FEW_LAYERS, recipe.num_layers))


def other_batches(bench: Any, recipe: Recipe, dynamic: bool | None) -> dict[str, Any]:
    """Graphs that exist, and seconds that the call took, after each of several batch sizes; forward pass only.

    A toy counts graphs with a compiler that generates no code, since a CPU's would take long for each.
    """
    small = few_layers(recipe)
    start_fresh(bench.device)
    with bench.device:
        model = GPT(small).to(torch.bfloat16 if small.precision == "bfloat16" else torch.float32)
    backend = "inductor" if bench.profile.publishable else "eager"
    if backend == "inductor":
        check_compiles(bench, small.but(compile="default"))
    compiled = torch.compile(model, dynamic=dynamic, backend=backend)
    graphs, seconds = [], []
    with torch.no_grad(), fresh_cache():  # or a graph that another row has compiled would be read, not made
        for batch in BATCHES:
            tokens_BT = torch.zeros(batch, small.context_length, dtype=torch.int64, device=bench.device)
            seconds.append(seconds_of(partial(compiled, tokens_BT), bench.device))
            graphs.append(int(counters["stats"]["unique_graphs"]))
        cache = compile_cache()
    return {
        "batches": list(BATCHES), "graphs": graphs, "call_s": seconds, "backend": backend, "compile_cache": cache,
    }  # fmt: skip


def count_bytes(bench: Any, recipe: Recipe, graphs: CompiledBytes) -> dict[str, Any]:
    """Bytes of the model's forward and backward pass. graphs: what inductor counted when it compiled the recipe."""
    check_compiles(bench, recipe)
    if recipe.compile == "off":
        start_fresh(bench.device)
        step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
        counted = operator_bytes(step.forward, next(batches)[0])
        return {"bytes": counted.total, "operators": counted.calls}
    return {"bytes": graphs.total, "graphs": len(graphs.graphs)}


def kernel_kinds(bench: Any, recipe: Recipe) -> dict[str, Any]:
    """Launches and microseconds per step by kind of kernel, and the longest fused kernels by name."""
    check_compiles(bench, recipe)
    table = profile_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    kinds: dict[str, dict[str, float]] = {}
    for kernel in table:
        kind = kinds.setdefault(kernel["kind"], {"calls": 0.0, "time_us": 0.0})
        kind["calls"] += kernel["calls"]
        kind["time_us"] += kernel["time_us"]
    fused = [kernel for kernel in table if kernel["kind"] == "fused"][:LONGEST_FUSED]
    return {
        "kinds": kinds,
        "kernels": len(table),
        "calls": sum(kernel["calls"] for kernel in table),
        "time_us": sum(kernel["time_us"] for kernel in table),
        "longest_fused": [{name: kernel[name] for name in ("name", "calls", "time_us")} for kernel in fused],
    }
