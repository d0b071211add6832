"""Verdicts on levers of memory from experiments of the labs: checkpoints, and the loss in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from speedlab.folklore.claim import Verdict
from speedlab.folklore.evidence import Lab, from_experiment, typical
from speedlab.folklore.formulas import activation_bytes
from speedlab.ladder import NINE_STEPS
from speedlab.memory_activations import kept_by_block
from speedlab.memory_plan import loss_bytes
from speedlab.publishing import formatting as form
from speedlab.records.record import Record

THIRTY_PERCENT = (0.25, 0.35)
FASTER = 0.97  # of the time: a difference that counts
NO_DIFFERENCE = 1.02
# Blocks as chapter 7 leaves them: bfloat16, native layers, fused attention.
RECIPE = NINE_STEPS.recipe_at("merged_qkv")


def _recomputed() -> str:
    return (
        f"By formula: a step is one forward and two backward products, so recomputing every forward pass adds "
        f"{form.percent(1 / 3)} of arithmetic; attention backward and the optimizer make it less of the time."
    )


def _variants(lab: Lab) -> dict[tuple[str, str], dict]:
    """Rows of the shortest context by (way, compile)."""
    rows = lab.rows(kind="variant")
    shortest = min((row["context_length"] for row in rows), default=0)
    return {(row["way"], row["compile"]): row for row in rows if row["context_length"] == shortest}


@from_experiment(
    "checkpointing", known=_recomputed,
    needs="time and memory of checkpointing every block, eager and compiled",
)  # fmt: skip
def checkpointing_cost(lab: Lab) -> Verdict | None:
    """Divide the time of a step that checkpoints every block by that of one that keeps everything."""
    costs = {}
    for row in lab.rows(kind="variant", way="off"):
        mode, context = row["compile"], row["context_length"]
        every = lab.row(kind="variant", way="every_block", compile=mode, context_length=context)
        plain_ms, every_ms = typical(row, "step_ms"), typical(every, "step_ms")
        if plain_ms and every_ms:
            how = "without a compiler" if mode == "off" else "compiled"
            costs[f"{how} at context {context:,}"] = every_ms / plain_ms - 1
    if not costs:
        return None
    listed = ", ".join(f"{form.percent(cost)} {setting}" for setting, cost in costs.items())
    text = f"{lab.where} every block checkpointed takes {listed} more time. {_recomputed()}"
    held = [THIRTY_PERCENT[0] <= cost <= THIRTY_PERCENT[1] for cost in costs.values()]
    if all(held) or not any(held):
        return Verdict(verdict="confirmed" if all(held) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="the compiler and the context", evidence=text)


@from_experiment(
    "checkpointing", needs="time over group sizes 1, 2, 3, 4, 6 and 12, and over checkpoint_sequential's segments"
)
def larger_groups(lab: Lab) -> Verdict | None:
    """Compare the time of a step over the size of the groups that are checkpointed together."""
    rows = _group_sizes(lab)
    times = {size: typical(row, "step_ms") for size, row in rows.items()}
    if 1 not in times or len(times) < 2 or not all(times.values()):
        return None
    single = times.pop(1)
    listed = ", ".join(f"{form.three_digits(ms)} at {size}" for size, ms in times.items())
    runs = {row.get("feed_forward_runs") for row in rows.values()}
    counted = ""
    if len(runs) == 1 and None not in runs:
        counted = f" Each runs {runs.pop()} feed-forward parts forward, those run again included."
    return Verdict(
        verdict="confirmed" if min(times.values()) < FASTER * single else "refuted",
        evidence=f"{lab.where} ms per step: {form.three_digits(single)} with every block by itself; blocks together: "
        f"{listed}.{counted}",
    )


def _group_sizes(lab: Lab) -> dict[int, dict]:
    """Uncompiled rows of the shortest context by how many blocks are checkpointed together, small ones first."""
    found = {}
    for (way, mode), row in _variants(lab).items():
        if mode == "off" and (way == "every_block" or way.startswith("groups_of_")):
            found[1 if way == "every_block" else int(way.removeprefix("groups_of_"))] = row
    return dict(sorted(found.items()))


@from_experiment("checkpointing", needs="peak memory of reentrant and non-reentrant checkpointing of the same blocks")
def non_reentrant(lab: Lab) -> Verdict | None:
    """Compare the peak memory of both forms of checkpointing every block."""
    rows = _variants(lab)
    new, old = (rows.get((way, "off"), {}) for way in ("every_block", "reentrant"))
    peaks = [row.get("peak_allocated_bytes") for row in (new, old)]
    if not all(peaks):
        return None
    times = [typical(row, "step_ms") for row in (new, old)]
    timed = f", {' and '.join(map(form.three_digits, times))} ms per step" if all(times) else ""
    return Verdict(
        verdict="confirmed" if peaks[0] > NO_DIFFERENCE * peaks[1] else "refuted",
        evidence=f"{lab.where} peak of allocated memory {form.gib(peaks[0])} GiB non-reentrant, {form.gib(peaks[1])} "
        f"GiB reentrant{timed}.",
    )


def accumulated(lab: Lab) -> str | None:
    """What 16 micro-batches for each update gain over one, in tokens/s."""
    rows = [lab.row(kind="micro_steps", accumulation=count, compile="off") for count in (1, 16)]
    times = [typical(row, "step_ms") for row in rows]
    if not all(times):
        return None
    one, many = (row["tokens_per_step"] / ms for row, ms in zip(rows, times, strict=True))
    return (
        f"{lab.where} 16 micro-batches for each update instead of one make {form.three_digits(many / one)}x the "
        "tokens/s."
    )


def levers_alone(lab: Lab) -> str | None:
    """What checkpointing and loading each gain alone, in tokens/s."""
    baseline = lab.row(what="whole", variant="baseline")
    before = typical(baseline, "step_ms")
    said = [
        f"{name} alone makes {form.three_digits(before / ms)}x"
        for name in ("checkpointing", "pipeline")
        if before and (ms := typical(lab.row(what="whole", variant=name), "step_ms"))
    ]
    return f"{lab.where} {', '.join(said)} the tokens/s." if said else None


def _logits() -> str:
    return (
        f"By formula: the logits and their two gradients, which it need not hold at once, have "
        f"{form.gib(loss_bytes(RECIPE))} GiB in bfloat16 at the first batch."
    )


@from_experiment(
    "folklore_micro", known=_logits, needs="head and loss fused and apart at this width, time and peak memory"
)
def loss_in_chunks(lab: Lab) -> Verdict | None:
    """Time head and loss with gradients, all logits at once and some rows at a time, at this width."""
    parts, ratios = [], []
    for apart in lab.rows(what="loss", kind="apart"):
        chunks = lab.row(what="loss", kind="in chunks", batch=apart["batch"])
        times = typical(apart, "both_ms"), typical(chunks, "both_ms")
        if not all(times):
            continue
        ratios.append(times[0] / times[1])
        memory = [row.get("peak_allocated_bytes") for row in (apart, chunks)]
        held = f", peak {form.gib(memory[0])} and {form.gib(memory[1])} GiB" if all(memory) else ""
        parts.append(
            f"at batch {apart['batch']} {form.three_digits(times[0])} ms at once and {form.three_digits(times[1])} ms "
            f"in chunks{held}"
        )
    if not ratios:
        return None
    text = f"{lab.where} {'; '.join(parts)}, by PyTorch's operations in each chunk. {_logits()}"
    needs = "the same with the loss of a chunk in one kernel"
    faster = [ratio * FASTER > 1 for ratio in ratios]
    if all(faster) or not any(faster):
        return Verdict(verdict="confirmed" if all(faster) else "refuted", evidence=text, needs=needs)
    return Verdict(verdict="depends", on_what="the batch", evidence=text, needs=needs)


def _groups_by_formula(records: Sequence[Record]) -> Verdict:
    """Add up what is kept when groups of 1 to 12 blocks are checkpointed together, one group being run again."""
    layers, block = RECIPE.num_layers, sum(kept_by_block(RECIPE).values())
    size_of_input = activation_bytes(RECIPE, "bfloat16")
    sizes = [size for size in range(1, layers + 1) if layers % size == 0]
    kept = [layers // size * size_of_input + size * block for size in sizes]
    listed = ", ".join(f"{form.gib(amount)} at {size}" for size, amount in zip(sizes, kept, strict=True))
    saves_more = all(after < before for before, after in pairwise(kept))
    return Verdict(
        verdict="confirmed" if saves_more else "refuted",
        evidence=f"By formula, GiB of activations at most for {layers} blocks by blocks per group: {listed}; without "
        f"checkpointing {form.gib(layers * block)}. Each block is run again once, whatever the group.",
        needs="time and memory over these group sizes, eager and compiled",
    )


@from_experiment("checkpointing", otherwise=_groups_by_formula)
def fewer_checkpoints(lab: Lab) -> Verdict | None:
    """Measure time and peak memory over the size of the groups of blocks that are checkpointed together."""
    found = {
        size: (typical(row, "step_ms"), row["peak_allocated_bytes"])
        for size, row in _group_sizes(lab).items()
        if row["peak_allocated_bytes"] and typical(row, "step_ms")
    }
    if 1 not in found or len(found) < 3:
        return None
    listed = ", ".join(
        f"{form.gib(peak)} GiB and {form.three_digits(ms)} ms at {size}" for size, (ms, peak) in found.items()
    )
    peaks = [peak for _, peak in found.values()]
    times = [ms for ms, _ in found.values()]
    saves = all(after <= before for before, after in pairwise(peaks)) and peaks[-1] * NO_DIFFERENCE < peaks[0]
    costs = times[0] < FASTER * times[-1]
    text = f"{lab.where} peak of allocated memory and time of a step by blocks per checkpoint: {listed}."
    if saves and costs:
        return Verdict(verdict="confirmed", evidence=text)
    if saves or costs:
        return Verdict(verdict="depends", on_what="which half of it one means", evidence=text)
    return Verdict(verdict="refuted", evidence=text)


def _norms_by_formula(records: Sequence[Record]) -> Verdict:
    """Compare what the LayerNorms of a block keep with what the block keeps, and making one again with a matmul."""
    kept = kept_by_block(RECIPE)
    norms, block = kept["layer norms"], sum(kept.values())
    per_element, matmul = 8, 2 * RECIPE.embedding_width  # eight operations written out; a dot product of width C
    return Verdict(
        verdict="refuted" if norms / block >= 1 / 10 else "confirmed",
        evidence=f"By formula, batch {RECIPE.micro_batch}, bfloat16: the two LayerNorms of a block keep their inputs "
        f"and their outputs, {form.three_digits(norms / 2**20)} MiB, {form.percent(norms / block)} of all that the "
        f"block keeps. Making one again takes some {per_element} operations per element, a matmul at least {matmul:,}.",
        needs="a selective policy that keeps matmul and attention outputs and recomputes the rest, timed",
    )


@from_experiment("checkpointing", otherwise=_norms_by_formula)
def skipped_layer_norm(lab: Lab) -> Verdict | None:
    """Recompute what is cheap, LayerNorm among it, and keep outputs of matmuls and attention: time and peak memory."""
    rows = _variants(lab)
    ways = {way: rows.get((way, "off")) for way in ("off", "selective", "every_block")}
    if not all(row and row.get("peak_allocated_bytes") and typical(row, "step_ms") for row in ways.values()):
        return None
    listed = ", ".join(
        f"{form.gib(row['peak_allocated_bytes'])} GiB and {form.three_digits(typical(row, 'step_ms'))} ms ({words})"
        for row, words in zip(ways.values(), ("nothing", "all but matmuls and attention", "whole blocks"), strict=True)
    )
    formula = _norms_by_formula(())
    return Verdict(
        verdict=formula.verdict,
        evidence=f"{lab.where} peak of allocated memory and time of a step by what is recomputed: {listed}. "
        f"{formula.evidence}",
    )
