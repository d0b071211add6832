"""What an experiment of the labs adds to verdicts on torch.compile. It reads rows and measures nothing."""

from __future__ import annotations

from speedlab.folklore.evidence import Lab, typical
from speedlab.publishing import formatting as form


def warm_start(lab: Lab) -> str | None:
    """The first step of a new process that finds everything in the compile cache, beside a later one."""
    warm = lab.row(what="warm", compile_cache="warm")
    step_ms = typical(warm, "step_ms")
    if not warm or not step_ms:
        return None
    first_s = warm["first_step_s"]
    return (
        f"{lab.where} with a warm compile cache the first step of a new process takes {form.three_digits(first_s)} s, "
        f"{form.three_digits(1e3 * first_s / step_ms)} times a later one."
    )


def other_shapes(lab: Lab) -> str | None:
    """How many graphs were compiled by the end, as batches of other sizes came, for each value of `dynamic`."""
    rows = lab.rows(what="recompile")
    if not rows:
        return None
    listed = ", ".join(f"{row['graphs'][-1]} with dynamic={row['dynamic']}" for row in rows)
    batches = ", ".join(str(batch) for batch in rows[0]["batches"])
    return f"{lab.where} graphs compiled for batches of {batches}: {listed}."
