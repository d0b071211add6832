"""Verdicts on attention from experiments of the labs. It reads their rows and measures nothing."""

from __future__ import annotations

from statistics import fmean

from speedlab.folklore.claim import Verdict
from speedlab.folklore.evidence import Lab, from_experiment, typical
from speedlab.folklore.formulas import SEVEN_B, attention_share
from speedlab.publishing import formatting as form

# Half the work, within a tenth; and hardly any saving.
HALVED, HARDLY = 1.8, 1.2
# What is said to be the difference, with room for another decimal.
CLAIMED_DIFFERENCE = 1e-5
NEARLY_THREE = 2.5
# A gap in validation loss that would be an effect, nats.
NOTICEABLE_GAP = 0.02


@from_experiment("attention_sweep", needs="one attention call, causal against full, per backend and context length")
def causal_halves(lab: Lab) -> Verdict | None:
    """Divide the time of a full attention call, forward and backward, by that of a causal one."""
    gains: dict[tuple[str, int], float] = {}
    for row in lab.rows(what="causal", causal=True):
        kind, context = row["kind"], row["context"]
        causal = typical(row, "both_ms")
        full = typical(lab.row(what="causal", causal=False, kind=kind, context=context), "both_ms")
        if causal and full:
            gains[kind, context] = full / causal
    if not gains:
        return None
    listed = ", ".join(f"{form.three_digits(gain)}x ({kind}, {context:,})" for (kind, context), gain in gains.items())
    text = f"{lab.where} without the future a call is faster by {listed}."
    if all(gain >= HALVED for gain in gains.values()):
        return Verdict(verdict="confirmed", evidence=text)
    if all(gain <= HARDLY for gain in gains.values()):
        return Verdict(verdict="refuted", evidence=text)
    return Verdict(verdict="depends", on_what="the context length and the kernel", evidence=text)


@from_experiment(
    "attention_sweep", needs="outputs and gradients of plain and fused attention, each against float64, on a GPU"
)
def difference(lab: Lab) -> Verdict | None:
    """Compare plain and fused attention with float64, from the same rounded inputs."""
    flash = next((row for row in lab.rows(what="accuracy", kind="sdpa_flash") if "output_error" in row), None)
    if flash is None:
        return None
    plain = lab.row(what="accuracy", kind="plain", dtype=flash["dtype"])
    wide = lab.row(what="accuracy", kind="plain", dtype="float32")
    others = "".join(
        f", plain attention in {row['dtype']} by {row['output_error']:.1e}"
        for row in (plain, wide)
        if row is not None and "output_error" in row
    )
    return Verdict(
        verdict="refuted" if flash["output_error"] > CLAIMED_DIFFERENCE else "confirmed",
        evidence=f"{lab.where} the output of the FlashAttention kernel in {flash['dtype']} differs from float64 by up "
        f"to {flash['output_error']:.1e}{others}: what the number format rounds, not what the algorithm leaves out.",
    )


@from_experiment(
    "attention_sweep",
    needs="repeated outputs of the 16-bit kernel with TF32 on and off, and in deterministic mode",
)
def consistent_without_tf32(lab: Lab) -> Verdict | None:
    """Repeat the same call with TF32 off and on, and in deterministic mode, and compare bits."""
    rows = {row.get("setting"): row for row in lab.rows(what="deterministic", kind="sdpa_flash")}
    off, on = rows.get("as it is"), rows.get("TF32 allowed")
    if not off or not on or "gradients_repeat" not in off or "gradients_repeat" not in on:
        return None

    def said(row: dict) -> str:
        same = [name for name in ("output", "gradients") if row.get(f"{name}_repeats", row.get(f"{name}_repeat"))]
        return f"{' and '.join(same) or 'nothing'} repeated"

    agree = [row["output_repeats"] and row["gradients_repeat"] for row in (off, on)]
    text = f"{lab.where} with TF32 off {said(off)} bit for bit, with TF32 allowed {said(on)}"
    mode = rows.get("deterministic")
    if mode and "gradients_repeat" in mode:
        text += f", in deterministic mode {said(mode)}"
        times = typical(mode, "both_ms"), typical(off, "both_ms")
        if all(times):
            text += f", where a call takes {form.three_digits(times[0] / times[1])} times as long"
    return Verdict(verdict="confirmed" if agree == [True, False] else "refuted", evidence=f"{text}.")


def _share_at_7b() -> str:
    return f"By formula attention has {form.percent(attention_share(SEVEN_B))} of the arithmetic there."


@from_experiment(
    "attention_sweep", known=_share_at_7b,
    needs="one layer of a 7B model at 4,096 tokens, forward and backward, both ways",
)  # fmt: skip
def layer_of_7b(lab: Lab) -> Verdict | None:
    """Time one layer of a 7B model, forward and backward, with plain and with fused attention."""
    rows = [lab.row(what="layer_7b", kind=kind) for kind in ("plain", "sdpa")]
    plain, fused = (typical(row, "both_ms") for row in rows)
    if not plain or not fused:
        return None
    return Verdict(
        verdict="confirmed" if plain / fused >= NEARLY_THREE else "refuted",
        evidence=f"{lab.where} one layer, one sequence of {rows[0]['context']:,} tokens: {form.three_digits(plain)} ms "
        f"with plain and {form.three_digits(fused)} ms with fused attention, {form.three_digits(plain / fused)}x. "
        f"{_share_at_7b()}",
        needs="a whole 7B model, whose head and optimizer make the gain smaller",
    )


@from_experiment("folklore_training", needs="validation loss over some hundred steps with both, several seeds each")
def regularises(lab: Lab) -> Verdict | None:
    """Train a small model with both kinds from the same weights on the same batches, and compare validation losses."""
    losses = {
        (row["kind"], row["seed"]): row["validation_loss"]
        for row in lab.rows(what="attention")
        if "validation_loss" in row
    }
    seeds = sorted({seed for kind, seed in losses if kind == "plain" and ("sdpa_flash", seed) in losses})
    if len(seeds) < 3:
        return None
    gaps = [losses["plain", seed] - losses["sdpa_flash", seed] for seed in seeds]
    between = [losses["plain", seed] for seed in seeds]
    steps = lab.rows(what="attention")[0]["steps"]
    return Verdict(
        verdict="confirmed" if min(gaps) > 0 and fmean(gaps) > NOTICEABLE_GAP else "refuted",
        evidence=f"{lab.where} after {steps:,} steps of a small model the validation loss with plain attention stands "
        f"{fmean(gaps):+.4f} nats from that with FlashAttention ({min(gaps):+.4f} to {max(gaps):+.4f} over "
        f"{len(seeds)} seeds; seeds alone make {max(between) - min(between):.4f}).",
        needs="the same over some ten thousand steps",
    )
