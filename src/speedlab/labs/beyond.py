"""Candidates for the fastest recipe side by side, their loss curves, a second size, and what compilation costs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

from speedlab.beyond import BEYOND, FASTEST, PLAIN_COMPILED
from speedlab.errors import BadInput
from speedlab.labs.rows import attempt
from speedlab.recipe import Recipe

# In this order until the time is up: what decides first, refinements last.
CANDIDATES: tuple[tuple[str, Recipe], ...] = (
    ("plain compiled", PLAIN_COMPILED),
    ("all fused, no compiler", BEYOND.recipe_at("no_compiler")),
    ("all fused, compiled", FASTEST),
    ("bfloat16 with masters, compiled", BEYOND.recipe_at("bfloat16_master")),
    ("in-place loss", BEYOND.recipe_at("in_place_loss")),
    ("all fused but the feed-forward", FASTEST.but(feed_forward="separate")),
    ("all fused but the feed-forward, which uses a sigmoid", FASTEST.but(feed_forward="sigmoid")),
    ("all fused but the residual", FASTEST.but(residual="separate")),
    ("all fused but q/k/v", FASTEST.but(qkv_backward="separate")),
    ("all fused, AdamW of PyTorch", FASTEST.but(optimizer="fused")),
    ("all fused, Liger's loss", FASTEST.but(loss="liger")),
    ("all fused, tuned", BEYOND.recipe_at("coordinate_descent")),
    ("all fused, CUDA graphs", BEYOND.recipe_at("cuda_graphs")),
    ("all fused, 8-bit head", BEYOND.recipe_at("fp8_head")),
    ("all fused, batch 128", BEYOND.recipe_at("double_batch")),
)
# The budget of `quick` in seconds, compilation included; a candidate that has begun is finished.
BUDGET_VARIABLE = "SPEEDLAB_BEYOND_SECONDS"
BUDGET_S = 240.0

# A loss curve as the contract wants it: at least 1,000 steps of at most 16,384 tokens on real text, two seeds a side.
CURVE_STEPS = 1_000
CURVE_MICRO_BATCH = 16
CURVE_SEEDS = (1234, 4321)
PLAIN_CURVE, FAST_CURVE = "plain compiled autocast", "fastest"
CURVES: tuple[tuple[str, Recipe, int], ...] = (
    *((name, recipe, seed) for seed in CURVE_SEEDS
      for name, recipe in ((PLAIN_CURVE, PLAIN_COMPILED), (FAST_CURVE, FASTEST))),
    ("fastest with an 8-bit head", BEYOND.recipe_at("fp8_head"), CURVE_SEEDS[0]),
)  # fmt: skip

SIZES: dict[str, dict[str, int]] = {
    "124M": {},
    "350M": {"num_layers": 24, "embedding_width": 1024, "num_heads": 16, "micro_batch": 32},
}


def quick(bench: Any, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Candidates in order of what they decide, timed without a contract, until the budget is spent."""
    started, budget_s = time.monotonic(), _budget_s()
    for name, recipe in CANDIDATES:
        spent = time.monotonic() - started
        if spent > budget_s:
            yield {"candidate": name, "status": "unavailable", "reason": f"not reached in {budget_s:.0f} s"}
            continue
        used = bench.scaled(recipe)
        refused = [field for field in ("loss", "head_matmul") if getattr(used, field) != getattr(recipe, field)]
        if refused:
            yield {"candidate": name, "status": "unavailable", "reason": f"{refused[0]} of it cannot run here"}
            continue
        row = _timed(bench, used, candidate=name)
        say(f"{spent:.0f} s of {budget_s:.0f} s: {name}: {_in_words(row)}")
        yield row


def sizes(bench: Any, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """The plain compiled recipe, the fastest and the fastest without a compiler, at two sizes of the model."""
    presets = {
        "plain compiled": PLAIN_COMPILED, "fastest": FASTEST, "fastest, no compiler": BEYOND.recipe_at("no_compiler"),
    }  # fmt: skip
    for size, changes in SIZES.items():
        for preset, recipe in presets.items():
            recipe = bench.scaled(recipe.but(**changes))
            row = _timed(bench, recipe, size=size, preset=preset)
            say(f"{size}, {preset}: {_in_words(row)}")
            yield row


def curves(bench: Any, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Loss curves of the fastest recipe and of the plain one, two seeds each: other weights, other order of text.

    `passes` is how often the corpus was read; below 1 no text is seen twice.
    """
    from speedlab.measuring.curves import training_curve

    publishable = bench.profile.publishable
    steps = CURVE_STEPS if publishable else 30
    for name, recipe, seed in CURVES:
        asked = recipe.but(micro_batch=CURVE_MICRO_BATCH if publishable else 4, seed=seed)
        used = bench.scaled(asked)
        if used.head_matmul != asked.head_matmul:
            yield {"curve": name, "seed": seed, "status": "unavailable", "reason": "no 8-bit units here"}
            continue
        say(f"{name}, seed {seed}")

        def make(recipe: Recipe = used, seen: int = steps * used.tokens_per_step) -> dict[str, Any]:
            weights, tokens = bench.weights_for(recipe), bench.tokens.tokens
            curve = training_curve(recipe, weights, tokens, bench.place, tokens_seen=seen)
            return curve | {
                "steps": steps,
                "tokens_per_step": recipe.tokens_per_step,
                "passes": seen / len(tokens),
            }

        yield attempt(make, curve=name, seed=seed, recipe=used.as_dict())


def _timed(bench: Any, used: Recipe, **what: Any) -> dict[str, Any]:
    """Step times, memory and compile time of a scaled recipe, without a contract; its first step is timed apart."""
    from speedlab.measuring.variant import measure_variant

    plan = replace(bench.plan, contract_steps=0, warmup_steps=min(5, bench.plan.warmup_steps))

    def make() -> dict[str, Any]:
        measured = measure_variant(used, bench.weights_for(used), bench.tokens.tokens, plan, bench.place, kernels=False)
        return {
            "step_ms": measured.step_ms,
            "tokens_per_step": used.tokens_per_step,
            "compile_s": measured.compile_s,
            "peak_reserved_bytes": measured.peak.reserved_bytes,
            "recompiles": measured.recompiles,
        }

    return attempt(make, **what, recipe=used.as_dict())


def _in_words(row: dict[str, Any]) -> str:
    """One line for whoever watches."""
    if row["status"] != "measured":
        return f"{row['status']}, {row['reason']}"
    step_ms = median(row["step_ms"])
    return (
        f"{step_ms:.2f} ms, {row['tokens_per_step'] / step_ms * 1e3:,.0f} tokens/s, "
        f"{(row['peak_reserved_bytes'] or 0) / 2**30:.1f} GiB, compiled in {row['compile_s'] or 0:.0f} s"
    )


def _budget_s() -> float:
    text = os.environ.get(BUDGET_VARIABLE)
    if not text:
        return BUDGET_S
    try:
        budget_s = float(text)
    except ValueError:
        budget_s = -1.0
    if not 0.0 <= budget_s < 1e5:
        raise BadInput(f"{BUDGET_VARIABLE} is {text!r}: it must be a number of seconds, such as 240")
    return budget_s


def kernels(bench: Any, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """The kernel tables of whole steps: plain, before the fused kernels, and with all of them."""
    from speedlab.measuring.variant import profile_variant

    for name, recipe in (
        ("plain compiled", PLAIN_COMPILED),
        ("all fused, no compiler", BEYOND.recipe_at("no_compiler")),
        ("bfloat16 with masters, compiled", BEYOND.recipe_at("bfloat16_master")),
        ("all fused, compiled", FASTEST),
    ):
        say(name)
        used = bench.scaled(recipe)

        def make(used: Recipe = used) -> dict[str, Any]:
            table = profile_variant(used, bench.weights_for(used), bench.tokens.tokens, bench.place)
            return {"kernels": table, "busy_ms": sum(row["time_us"] for row in table) / 1e3}

        yield attempt(make, candidate=name, recipe=used.as_dict())
