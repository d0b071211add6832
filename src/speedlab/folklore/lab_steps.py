"""Verdicts on whole steps from experiments of the labs: batches and contexts, padding, seconds to a loss."""

from __future__ import annotations

from collections.abc import Sequence

from speedlab.folklore.claim import Verdict
from speedlab.folklore.evidence import Lab, from_experiment, typical
from speedlab.labs.loss_against_time import levels, seconds_to, tokens_per_s
from speedlab.ladder import NINE_STEPS
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe
from speedlab.records.record import Record
from speedlab.work import nominal_flops_per_token

POWERS = (8, 16, 32)
NO_GAIN = 0.02  # in tokens/s: what we would not call faster
AS_FAST = 0.95
FASTER = 0.97  # of the time: a difference that counts
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
    needs="a sweep of batches around 8, 16 and 32 with a padded vocabulary",
)  # fmt: skip
def batch_power_of_two(lab: Lab) -> Verdict | None:
    """Compare the tokens/s of each power of two with those of one sequence less and more, and of 31 and 32 compiled."""
    rates: dict[str, dict[int, float]] = {"off": {}, "compiled": {}}
    for row in lab.rows(kind="batch"):
        step_ms = typical(row, "step_ms")
        if step_ms:
            mode = "off" if row["compile"] == "off" else "compiled"
            rates[mode][row["micro_batch"]] = 1e3 * row["micro_batch"] * row["context_length"] / step_ms
    eager, compiled = rates["off"], rates["compiled"]
    over = {(power, power + by): _gain(eager, power, power + by) for power in POWERS for by in (-1, 1)}
    gains = {pair: gain for pair, gain in over.items() if gain is not None}
    # More sequences are faster by themselves: that a power beats fewer of them says little, beating one more does.
    beaten = [gain > NO_GAIN for (power, other), gain in gains.items() if other > power]
    if not beaten:
        return None
    parts = [f"{power} over {other} {form.percent(gain)}" for (power, other), gain in gains.items()]
    if (gain := _gain(compiled, 32, 31)) is not None:
        beaten.append(gain > NO_GAIN)
        parts.append(f"compiled, 32 over 31 {form.percent(gain)}")
    text = f"{lab.where} in tokens/s, {', '.join(parts)}. {_rows_of_a_batch()}"
    if not any(beaten):
        return Verdict(verdict="refuted", evidence=text)
    if all(beaten) and all(gain > NO_GAIN for gain in gains.values()):
        return Verdict(verdict="confirmed", evidence=text)
    return Verdict(verdict="depends", on_what="which batch: full tiles count, not powers of two", evidence=text)


def _gain(rates: dict[int, float], batch: int, other: int) -> float | None:
    return rates[batch] / rates[other] - 1 if batch in rates and other in rates else None


def _by_formula(records: Sequence[Record]) -> Verdict:
    """Count the arithmetic of a token at four times the context, and at four times the batch."""
    recipe = Recipe()
    longer = nominal_flops_per_token(recipe.but(context_length=4 * recipe.context_length))
    larger = nominal_flops_per_token(recipe.but(micro_batch=4 * recipe.micro_batch))
    base = nominal_flops_per_token(recipe)
    return Verdict(
        verdict="refuted" if longer != larger else "confirmed",
        evidence=f"By formula: four times the batch costs {form.three_digits(larger / base)} times the FLOPs per "
        f"token, four times the context {form.three_digits(longer / base)} times.",
        needs="a grid of batch and context at equal tokens, in tokens/s",
    )


@from_experiment("batch_probe", otherwise=_by_formula)
def context_or_batch(lab: Lab) -> Verdict | None:
    """Time steps of the same number of tokens as few long or many short sequences, and count their arithmetic."""
    rates = {}
    for row in lab.rows(kind="grid", compile="off"):
        step_ms = typical(row, "step_ms")
        if step_ms:
            tokens = row["micro_batch"] * row["context_length"]
            rates[row["micro_batch"], row["context_length"]] = 1e3 * tokens / step_ms
    if len(rates) < 2:
        return None
    listed = ", ".join(f"{batch} x {context:,}: {form.count(rate)}" for (batch, context), rate in rates.items())
    return Verdict(
        verdict="refuted" if min(rates.values()) < AS_FAST * max(rates.values()) else "confirmed",
        evidence=f"{lab.where} tokens/s by batch x context: {listed}. {_by_formula(()).evidence}",
    )


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
    text += " One run each."
    if gap > LARGE_GAP:  # a lower loss with them is no reason to leave them out
        return Verdict(verdict="confirmed", evidence=text)
    if chances[-1] * SAMPLED < 1:
        return Verdict(verdict="refuted", evidence=text)
    return Verdict(
        verdict="depends",
        evidence=text,
        on_what="where: in the loss they did no harm, and taught the model to avoid them; a sampler still meets one "
        "now and then, and far more often where the loss left them out",
        needs="the loss with and without padded logits over several seeds",
    )


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


def batches_to_a_loss(lab: Lab) -> str | None:
    """Seconds and tokens to the lowest loss that both batches reach, at the same learning rate."""
    rows = {row["rung"]: row for row in lab.rows(rate_factor=1.0) if row["rung"] in ("padded_vocab", "batch_size")}
    if len(rows) < 2:
        return None
    for loss in reversed(levels(list(rows.values()))):
        seconds = {rung: seconds_to(row, loss) for rung, row in rows.items()}
        if None not in seconds.values():
            parts = ", ".join(
                f"{form.three_digits(took)} s and {form.three_digits(took * tokens_per_s(rows[rung]) / 1e6)} million "
                f"tokens with {rows[rung]['micro_batch']} sequences an update"
                for rung, took in seconds.items()
            )
            return f"{lab.where} a validation loss of {loss:g} takes {parts}; the same learning rate, one run each."
    return None
