"""Verdicts on whole steps from experiments of the labs: batches, padding, checkpoints, the loss, seconds to a loss."""

from __future__ import annotations

from speedlab.folklore.claim import Verdict
from speedlab.folklore.evidence import Lab, from_experiment, typical
from speedlab.folklore.formulas import BYTES
from speedlab.labs.loss_against_time import levels, seconds_to, tokens_per_s
from speedlab.ladder import NINE_STEPS
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe

SWEPT = (24, 28, 30, 31, 32, 33, 40, 48)
POWER = 32
AS_FAST, SLOWER = 0.95, 0.90
THIRTY_PERCENT = (0.25, 0.35)
FASTER = 0.97  # of the time: a difference that counts
NO_DIFFERENCE = 1.02
LARGE_GAP = 0.02  # nats
SAMPLED = 1_000_000  # tokens that somebody may draw


def _rows_of_a_batch() -> str:
    recipe = Recipe()
    return (
        f"By formula: a matmul's rows are batch x {recipe.context_length:,}, a multiple of {recipe.context_length:,} "
        "for every batch, so that its alignment cannot depend on the batch."
    )


@from_experiment(
    "batch_probe", known=_rows_of_a_batch,
    needs="a sweep of batches 24, 28, 30, 31, 32, 33, 40 and 48 with a padded vocabulary",
)  # fmt: skip
def batch_power_of_two(lab: Lab) -> Verdict | None:
    """Sweep batches around 32 without compiling and compare the tokens/s of powers of two with those of the others."""
    rates = {}
    for row in lab.rows(kind="batch", compile="off"):
        step_ms = typical(row, "step_ms")
        if step_ms and row["micro_batch"] in SWEPT:
            rates[row["micro_batch"]] = 1e3 * row["micro_batch"] * row["context_length"] / step_ms
    others = {batch: rate / rates[POWER] for batch, rate in rates.items() if batch != POWER and POWER in rates}
    if len(others) < 3:
        return None
    listed = ", ".join(f"{batch}: {form.percent(share)}" for batch, share in others.items())
    text = f"{lab.where} tokens/s in per cent of those at batch {POWER}: {listed}. {_rows_of_a_batch()}"
    if all(share >= AS_FAST for share in others.values()):
        return Verdict(verdict="refuted", evidence=text)
    if all(share < SLOWER for share in others.values()):
        return Verdict(verdict="confirmed", evidence=text)
    return Verdict(verdict="depends", on_what="which batch: full tiles count, not powers of two", evidence=text)


@from_experiment(
    "folklore_training", needs="training with padded logits masked, unmasked, and rows drawn like others; then sampling"
)
def padded_logits(lab: Lab) -> Verdict | None:
    """Train with padded logits counted and left out, and ask how likely an id that does not exist stays."""
    rows = {row["padded"]: row for row in lab.rows(what="padding")}
    counted, left_out = rows.get("counted"), rows.get("left out")
    if not counted or not left_out:
        return None
    steps, tail = len(counted["true_losses"]), max(1, len(counted["true_losses"]) // 10)
    gap = (sum(counted["true_losses"][-tail:]) - sum(left_out["true_losses"][-tail:])) / tail
    chances = list(counted["padded_probability"].values())
    masked = left_out["padded_probability"].get(str(steps), 0.0)
    drawn = rows.get("counted, rows drawn")
    text = (
        f"{lab.where} after {steps} steps the loss over true ids with padded logits in the loss stands {gap:+.3f} nats "
        f"from that without them. The chance to draw one of {counted['padded_ids']} ids that do not exist fell from "
        f"{chances[0]:.1e} to {chances[-1]:.1e}; where the loss never saw them it is {masked:.1e}."
    )
    if drawn:
        text += f" With rows drawn like the others it ends at {list(drawn['padded_probability'].values())[-1]:.1e}."
    if abs(gap) > LARGE_GAP:
        return Verdict(verdict="confirmed", evidence=text)
    if chances[-1] * SAMPLED < 1:
        return Verdict(verdict="refuted", evidence=text)
    return Verdict(
        verdict="depends", evidence=text,
        on_what="where: the loss teaches the model to avoid them, and a sampler still meets one now and then",
    )  # fmt: skip


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
    rows = _variants(lab)
    costs = {}
    for mode in dict.fromkeys(mode for _, mode in rows):
        plain, every = (typical(rows.get((way, mode)), "step_ms") for way in ("off", "every_block"))
        if plain and every:
            costs["without a compiler" if mode == "off" else "compiled"] = every / plain - 1
    if not costs:
        return None
    listed = ", ".join(f"{form.percent(cost)} {mode}" for mode, cost in costs.items())
    text = f"{lab.where} every block checkpointed takes {listed} more time. {_recomputed()}"
    held = [THIRTY_PERCENT[0] <= cost <= THIRTY_PERCENT[1] for cost in costs.values()]
    if all(held) or not any(held):
        return Verdict(verdict="confirmed" if all(held) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="whether a compiler chooses what is recomputed", evidence=text)


@from_experiment(
    "checkpointing", needs="time over group sizes 1, 2, 3, 4, 6 and 12, and over checkpoint_sequential's segments"
)
def larger_groups(lab: Lab) -> Verdict | None:
    """Compare the time of a step over the size of the groups that are checkpointed together."""
    rows = _variants(lab)
    single = typical(rows.get(("every_block", "off")), "step_ms")
    groups = {
        int(way.removeprefix("groups_of_")): typical(row, "step_ms")
        for (way, mode), row in rows.items()
        if way.startswith("groups_of_") and mode == "off"
    }
    if not single or not groups or not all(groups.values()):
        return None
    listed = ", ".join(f"{form.three_digits(groups[size])} at {size}" for size in sorted(groups))
    return Verdict(
        verdict="confirmed" if min(groups.values()) < FASTER * single else "refuted",
        evidence=f"{lab.where} ms per step: {form.three_digits(single)} with every block by itself; blocks together: "
        f"{listed}.",
    )


@from_experiment("checkpointing", needs="peak memory of reentrant and non-reentrant checkpointing of the same blocks")
def non_reentrant(lab: Lab) -> Verdict | None:
    """Compare the peak memory of both forms of checkpointing every block."""
    rows = _variants(lab)
    new, old = (rows.get((way, "off"), {}).get("peak_allocated_bytes") for way in ("every_block", "reentrant"))
    if not new or not old:
        return None
    return Verdict(
        verdict="confirmed" if new > NO_DIFFERENCE * old else "refuted",
        evidence=f"{lab.where} peak of allocated memory {form.gib(new)} GiB non-reentrant, {form.gib(old)} GiB "
        "reentrant.",
    )


def _logits() -> str:
    recipe = Recipe()
    logits = recipe.micro_batch * recipe.context_length * recipe.padded_vocab_size * BYTES["bfloat16"]
    return f"By formula: the logits that it need not keep have {form.gib(logits)} GiB in bfloat16 at the first batch."


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
    text = f"{lab.where} {'; '.join(parts)}. {_logits()}"
    faster = [ratio * FASTER > 1 for ratio in ratios]
    if all(faster) or not any(faster):
        return Verdict(verdict="confirmed" if all(faster) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="the batch", evidence=text)


@from_experiment(
    "loss_against_time", needs="seconds to a fixed validation loss for rungs padded_vocab and batch_size on real text"
)
def tokens_or_loss(lab: Lab) -> Verdict | None:
    """Train recipes for the same seconds on real text: is the one with most tokens/s the first to reach a loss?"""
    rows = [row for row in lab.experiment.measured if row["seconds"][-1] > 0]
    asked = levels(rows)
    if len(rows) < 2 or not asked:
        return None
    names = {
        index: f"{NINE_STEPS.rung(row['rung']).title}, learning rate {row['learning_rate']:g}"
        for index, row in enumerate(rows)
    }
    speeds = {index: tokens_per_s(row) for index, row in enumerate(rows)}
    fastest = max(speeds, key=speeds.__getitem__)
    # Those of the same batch differ in their learning rate alone: one step takes them the same time.
    as_fast = {index for index, speed in speeds.items() if speed > FASTER * speeds[fastest]}
    first, parts = [], []
    for loss in asked:
        times = {index: seconds_to(row, loss) for index, row in enumerate(rows)}
        reached = {index: seconds for index, seconds in times.items() if seconds is not None}
        winner = min(reached, key=reached.__getitem__)
        first.append(winner in as_fast)
        parts.append(f"a loss of {loss:g} after {form.three_digits(reached[winner])} s ({names[winner]})")
    text = (
        f"{lab.where} most tokens/s: {names[fastest]}, {form.count(speeds[fastest])}. First to reach "
        f"{', '.join(parts)}."
    )
    if all(first) or not any(first):
        return Verdict(verdict="confirmed" if all(first) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="how far one trains, and on the learning rate", evidence=text)
