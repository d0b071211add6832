"""Verdicts on AdamW's forms from an experiment of the labs, with the ladder's kernels where it was not run."""

from __future__ import annotations

from statistics import fmean

from speedlab.folklore.claim import Experiment, Verdict
from speedlab.folklore.evidence import Lab, from_experiment, typical
from speedlab.publishing import formatting as form

# A gain that is larger by so much on the larger model has grown.
GROWN = 1.05
LAST_LOSSES = 20
FORMATS = {"bfloat16_master": "bfloat16 with float32 masters"}


def default_form(otherwise: Experiment) -> Experiment:
    """The experiment on what AdamW does when it is not told; `otherwise` decides from records."""

    @from_experiment("folklore_micro", otherwise=otherwise)
    def experiment(lab: Lab) -> Verdict | None:
        """Count the launches of one update in each form of AdamW: loop, default, foreach, fused."""
        found = {row["implementation"]: row for row in lab.rows(what="launches")}
        if not {"for_loop", "default", "foreach"} <= found.keys():
            return None
        launches = {name: row["launches"] for name, row in found.items()}
        tensors = found["default"]["tensors"]
        listed = ", ".join(f"{name} {form.count(count)}" for name, count in launches.items())
        return Verdict(
            verdict="refuted" if launches["default"] < tensors else "confirmed",
            evidence=f"{lab.where} launches of one update of {tensors} tensors: {listed}.",
        )

    return experiment


def gain_with_size(otherwise: Experiment) -> Experiment:
    """The experiment on fused AdamW over the size of a model; `otherwise` decides from records."""

    @from_experiment("folklore_micro", otherwise=otherwise)
    def experiment(lab: Lab) -> Verdict | None:
        """Divide the time of a default update by that of a fused one, for a model and for one three times as large."""
        gains = _gains(lab)
        if len(gains) < 2:
            return None
        (_, small), *_, (_, large) = sorted(gains.items())
        listed = ", ".join(
            f"{form.three_digits(gain)}x at {form.three_digits(weights / 1e6)} M weights"
            for weights, gain in sorted(gains.items())
        )
        text = f"{lab.where} a fused update is faster than the default one by {listed}."
        needs = "whole steps of both models with the same tokens per update"
        if large > GROWN * small:
            return Verdict(verdict="confirmed", evidence=text, needs=needs)
        share = "; its share of a step falls with the tokens per update, whatever the size"
        return Verdict(verdict="refuted", evidence=f"{text.rstrip('.')}{share}.", needs=needs)

    return experiment


def lost_updates(lab: Lab) -> str | None:
    """The share of a training's updates that bfloat16 weights would not keep, and how three formats trained."""
    row = lab.row(what="updates", of="all", format="bfloat16")
    losses = {row["precision"]: row["losses"][-LAST_LOSSES:] for row in lab.rows(what="losses")}
    if not row or not losses:
        return None
    trained = ", ".join(f"{FORMATS.get(name, name)} {fmean(last):.3f}" for name, last in losses.items())
    return (
        f"{lab.where} at update {row['step']} of a training, {form.percent(row['share_lost'])} of all weights would "
        f"not move if they were kept in bfloat16. The mean of the last {LAST_LOSSES} losses until then, one run each: "
        f"{trained}."
    )


def _gains(lab: Lab) -> dict[int, float]:
    """Weights -> how many times faster the fused update is."""
    gains = {}
    for row in lab.rows(what="optimizer", implementation="default"):
        fused = typical(lab.row(what="optimizer", implementation="fused", size=row["size"]), "update_ms")
        default = typical(row, "update_ms")
        if fused and default:
            gains[row["weights"]] = default / fused
    return gains
