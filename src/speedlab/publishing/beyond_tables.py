"""Tables of the chapter past the ladder: its goals, its kernels by part of the step, the budget made of parts alone.

It reads rows and records, measures nothing and does not import torch. What a kernel belongs to is read from its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from speedlab.beyond import BEYOND, FASTEST, PLAIN_COMPILED
from speedlab.labs.beyond_budget import budget_ms
from speedlab.labs.beyond_predictions import BYTES_PER_S, predicted_total_ms
from speedlab.publishing.formatting import NOTHING, count, percent, three_digits
from speedlab.publishing.tables import Table
from speedlab.recipe import Recipe
from speedlab.records.experiment import Experiment
from speedlab.records.record import Record
from speedlab.work import compute_dtype, nominal_flops_per_token

# What the fastest recipe should reach: tokens a second on an H200, and nominal FLOPs over the machine's own rate of
# matmuls, which is the same thing said for any machine.
GOAL_TOKENS_PER_S, GOAL_SHARE = 600_000, 0.65

# Part of a step -> words in the names of its kernels, looked for from top to bottom.
PARTS: dict[str, tuple[str, ...]] = {
    "loss": ("softmax", "cross_entropy", "nll_loss"),
    "attention": ("sdpa", "flash", "dot_do_o", "dq_to_16bits"),
    "GELU and its bias": ("gelu",),
    "matmuls": ("nvjet", "gemm", "cutlass", "splitkreduce", "xmma"),
    "optimizer": ("adamw", "multi_tensor_apply", "fusedoptimizer"),
    "embeddings": ("embedding", "scatter", "grad_weight", "radix_sort", "segment", "gather", "cub::"),
    "q/k/v gradients joined": ("join_kernel", "fused_cat"),
    "residuals and norms": ("norm", "gammabeta"),
}
REST = "all else"


def part_of(kernel: str) -> str:
    """The part of a step that a kernel of this name belongs to."""
    name = kernel.lower()
    return next((part for part, words in PARTS.items() if any(word in name for word in words)), REST)


def by_part(row: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of the kernels of one recipe by part of the step."""
    sums: dict[str, float] = {}
    for kernel in row["kernels"]:
        part = part_of(kernel["name"])
        sums[part] = sums.get(part, 0.0) + kernel["time_us"] / 1e3
    return sums


def fewest_bytes_ms(recipe: Recipe) -> dict[str, float]:
    """Milliseconds of the passes that cannot be saved, at the bandwidth of the predictions.

    Passes over B x T x C values of 16 bits, read or written: 8 for each residual with its norm, of which there are two
    a layer and one at the end; 20 a layer for GELU, four times as wide; 6 a layer to join the gradients of q, k and v.
    The logits are read once and written once.
    """
    tokens, layers = recipe.micro_batch * recipe.context_length, recipe.num_layers
    unit_ms = 2 * tokens * recipe.embedding_width / BYTES_PER_S * 1e3
    return {
        "residuals and norms": 8 * (2 * layers + 1) * unit_ms,
        "GELU and its bias": 20 * layers * unit_ms,
        "q/k/v gradients joined": 6 * layers * unit_ms,
        "loss": 2 * 2 * tokens * recipe.padded_vocab_size / BYTES_PER_S * 1e3,
    }


def parts_tables(experiment: Experiment) -> list[Table]:
    """Kernel time of each recipe by part of the step, from the slowest recipe to the quickest, and what is saved."""
    rows = sorted(experiment.measured, key=lambda row: -row["busy_ms"])
    sums = [by_part(row) for row in rows]
    if not rows:
        return []
    fewest = fewest_bytes_ms(Recipe.from_dict(rows[0]["recipe"]))
    parts = sorted({part for one in sums for part in one} - {REST}, key=lambda part: -sums[0].get(part, 0.0))
    cells = [
        (part, *(f"{one.get(part, 0.0):.2f}" for one in sums),
         f"{sums[0].get(part, 0.0) - sums[-1].get(part, 0.0):+.2f}",
         f"{fewest[part]:.2f}" if part in fewest else NOTHING)
        for part in (*parts, REST)
    ]  # fmt: skip
    cells.append(("all kernels", *(f"{row['busy_ms']:.1f}" for row in rows),
                  f"{rows[0]['busy_ms'] - rows[-1]['busy_ms']:+.1f}", NOTHING))  # fmt: skip
    numbers = (*(row["candidate"] for row in rows), "first less last", "fewest bytes")
    notes = (
        "milliseconds of kernels in one step; what lies between kernels is not in it; all else: sums of bias "
        "gradients, copies, fills",
        f"fewest bytes: what has to be read and written, at {BYTES_PER_S / 1e12:.1f} TB/s, counted before anything ran",
    )
    return [Table(title="Where a step goes, part by part", columns=("part", *numbers), cells=tuple(map(tuple, cells)),
                  numbers=frozenset(numbers), notes=notes)]  # fmt: skip


def parts_sentence(experiment: Experiment) -> str:
    """What the quickest recipe saves against the slowest, where, and what its kernels alone would allow."""
    rows = sorted(experiment.measured, key=lambda row: row["busy_ms"])
    if len(rows) < 2:
        return "Two recipes are needed to say what was saved."
    best, before = rows[0], rows[-1]
    one, two = by_part(before), by_part(best)
    saved = sorted(((one.get(part, 0.0) - two.get(part, 0.0), part) for part in {*one, *two}), reverse=True)[:3]
    recipe = Recipe.from_dict(best["recipe"])
    alone = recipe.tokens_per_step / (best["busy_ms"] / 1e3)
    listed = ", ".join(f"{ms:.1f} ms in {part}" for ms, part in saved)
    return (
        f"Kernels take {before['busy_ms']:.1f} ms of a step with {before['candidate']} and {best['busy_ms']:.1f} with "
        f"{best['candidate']}: {listed} are saved. Without any gap between kernels that would be {count(alone)} tokens "
        f"a second; {percent(two.get('matmuls', 0.0) / best['busy_ms'])} of it is matmuls, which no rung that is kept "
        "changes."
    )


def goals_table(records: Iterable[Record]) -> Table | None:
    """The goals beside what the fastest stacked rung of one device and session reached; None without its record."""
    by_rung = {record.rung: record for record in records if record.ladder == BEYOND.name and record.step_ms}
    stacked = [rung.key for rung in BEYOND if rung.stacked and rung.key in by_rung]
    plain = by_rung.get(BEYOND.rungs[0].key)
    if not stacked or plain is None:
        return None
    best = by_rung[min(stacked, key=lambda key: _ms_per_token(by_rung[key]))]
    rate = 1e3 / _ms_per_token(best)
    cells = [("tokens a second", count(GOAL_TOKENS_PER_S), count(rate), _yes(rate >= GOAL_TOKENS_PER_S))]
    if matmuls := _matmul_rate(best.ceilings):
        share = nominal_flops_per_token(FASTEST) * rate / matmuls
        cells.append(("nominal FLOPs over the machine's own matmul rate", f"{GOAL_SHARE:.2f}", f"{share:.3f}",
                      _yes(share >= GOAL_SHARE)))  # fmt: skip
    if best.peak_reserved_bytes and plain.peak_reserved_bytes:
        held, most = (record.peak_reserved_bytes / 2**30 for record in (best, plain))
        cells.append(("GiB reserved, no more than plain compiled", three_digits(most), three_digits(held),
                      _yes(held <= most)))  # fmt: skip
    saved = (_ms_per_token(plain) - _ms_per_token(best)) * PLAIN_COMPILED.tokens_per_step
    cells.append((f"ms saved for {PLAIN_COMPILED.tokens_per_step:,} tokens, as predicted",
                  f"{predicted_total_ms():.1f}", f"{saved:.1f}", NOTHING))  # fmt: skip
    columns = ("goal", "wanted", "reached", "met")
    title = f"The goals, and what {BEYOND.rung(best.rung).title} reached"
    return Table(title=title, columns=columns, cells=tuple(cells), numbers=frozenset(columns[1:3]))


def goal_words(experiment: Experiment) -> str:
    """The goals as times and rates of the machine of an experiment, whose matmuls were timed beside it."""
    tokens = FASTEST.tokens_per_step
    text = f"{GOAL_TOKENS_PER_S:,} tokens a second are {1e3 * tokens / GOAL_TOKENS_PER_S:.1f} ms for {tokens:,} tokens."
    if matmuls := _matmul_rate(experiment.ceilings):
        rate = GOAL_SHARE * matmuls / nominal_flops_per_token(FASTEST)
        text += (
            f" This machine multiplies at {matmuls / 1e12:,.0f} TFLOP/s in bfloat16; {GOAL_SHARE} of that in nominal "
            f"FLOPs are {count(rate)} tokens a second here."
        )
    return text


def budget_tables(experiment: Experiment) -> list[Table]:
    """A step as the sum of its parts, each as quick as its quickest variant alone."""
    if not experiment.measured:
        return []
    budget = budget_ms(experiment.rows, FASTEST.num_layers)
    whole = sum(budget.values())
    if not whole:
        return []
    cells = [(part, f"{ms:.2f}", percent(ms / whole)) for part, ms in sorted(budget.items(), key=lambda one: -one[1])]
    rate = count(1e3 * FASTEST.tokens_per_step / whole)
    cells.append(("sum", f"{whole:.1f}", f"{rate} tokens/s"))
    columns = ("part", "ms of a step", "share")
    return [Table(title="The budget: each part as quick as its quickest form alone", columns=columns,
                  cells=tuple(cells), numbers=frozenset(columns[1:]))]  # fmt: skip


def _ms_per_token(record: Record) -> float:
    return median(record.step_ms) / record.tokens_per_step


def _matmul_rate(ceilings: dict[str, Any] | None) -> float | None:
    return (ceilings or {}).get("matmul_flops_per_s", {}).get(compute_dtype(FASTEST))


def _yes(met: bool) -> str:
    return "yes" if met else "no"
