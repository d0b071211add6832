"""Whether a faster variant still does the same training: losses of two runs compared as the rung's contract says."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from speedlab.ladder import Rung


class Verdict(NamedTuple):
    """verdict: "reference", "passed", "differs" or "failed". detail: the `contract_detail` object of a record."""

    verdict: str
    detail: dict[str, Any] | None


def judge(rung: Rung, before: str | None, losses_before: list[float] | None, losses: list[float]) -> Verdict:
    """Compare the losses (nats, one per step, from the same weights and batches, dropout off) of two variants.

    `identical` wants them equal bit for bit, `rounding` within the rung's tolerance at every step; `training`
    compares nothing, because its steps see other batches or round otherwise, and reports that it differs.
    """
    bad = next((step for step, loss in enumerate(losses, start=1) if not math.isfinite(loss)), None)
    if bad is not None:
        return Verdict("failed", {"before": before, "note": f"the loss of step {bad} is not finite"})
    if before is None or losses_before is None:
        return Verdict("reference", None)
    if not all(map(math.isfinite, losses_before)):  # a record holds numbers only
        return Verdict("failed", {"before": before, "note": f"losses of {before} are not finite: nothing to compare"})
    detail: dict[str, Any] = {
        "before": before,
        "losses_before": losses_before,
        "tolerance": 0.0 if rung.contract == "identical" else rung.tolerance,
        "largest_difference": None,
        "note": None,
    }
    if rung.contract == "training":
        detail["note"] = "the change is one of the training itself, so losses differ by design: see the loss curves"
        return Verdict("differs", detail)
    if len(losses) != len(losses_before):
        raise ValueError(f"{len(losses)} losses cannot be compared with {len(losses_before)}")
    difference = max(abs(one - two) for one, two in zip(losses_before, losses, strict=True))
    detail["largest_difference"] = difference
    if difference <= detail["tolerance"]:
        return Verdict("passed", detail)
    detail["note"] = (
        f"losses differ from {before} by {difference:.3g} nats, and the contract allows {detail['tolerance']:g}"
    )
    return Verdict("failed", detail)
