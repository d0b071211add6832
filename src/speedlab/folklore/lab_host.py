"""Verdicts from experiments of the labs on formats under autocast, loading, the busy counter, and errors of DDP."""

from __future__ import annotations

from speedlab.folklore.claim import Verdict
from speedlab.folklore.evidence import Lab, from_experiment, typical
from speedlab.publishing import formatting as form

# A step that takes so much less is worth another process.
WORTH_A_WORKER = 0.97
GROWN_BYTES = 2**20
# A counter that says so many times the share of the card that works does not say how much of it works.
FAR_ABOVE = 5


@from_experiment("folklore_micro", needs="the format of each operation's answer under autocast on a GPU")
def autocast_formats(lab: Lab) -> Verdict | None:
    """Ask each operation of a transformer under autocast for its format."""
    answers = {row["operation"]: row["answers_in"] for row in lab.rows(what="autocast")}
    if not answers:
        return None
    wide = [name for name, dtype in answers.items() if dtype == "float32"]
    half = [name for name, dtype in answers.items() if dtype != "float32"]
    return Verdict(
        verdict="refuted" if wide else "confirmed",
        evidence=f"{lab.where} in float32: {', '.join(wide) or 'none'}; in 16 bits: {', '.join(half) or 'none'}.",
    )


@from_experiment(
    "data_pipeline", needs="time waiting for the loader against the number of workers, ids in memory and text parsed"
)
def worker_rules(lab: Lab) -> Verdict | None:
    """Compare the step over the number of loader processes, with ids that lie ready and with text that is parsed."""
    best: dict[str, int] = {}
    parts = []
    for source in ("memory_mapped", "tokenised_online"):
        times = {
            row["workers"]: typical(row, "step_ms")
            for row in lab.rows(source=source, carried="pinned_non_blocking")
            if typical(row, "step_ms")
        }
        if 0 not in times or len(times) < 2:
            return None
        fastest = min(times, key=times.__getitem__)
        best[source] = fastest if times[fastest] < WORTH_A_WORKER * times[0] else 0
        listed = ", ".join(f"{form.three_digits(ms)} with {workers}" for workers, ms in sorted(times.items()))
        parts.append(f"{source.replace('_', ' ')}: {listed}")
    text = f"{lab.where} ms per step by loader processes, {'; '.join(parts)}."
    cores = lab.experiment.machine.get("cores")
    if not any(best.values()):
        return Verdict(verdict="refuted", evidence=f"{text} None is needed, whatever the cores ({cores}).")
    if all(best.values()):
        return Verdict(verdict="depends", on_what="the cost of a sample", evidence=text)
    return Verdict(
        verdict="refuted", evidence=f"{text} The cost of a sample decides, not the number of cores ({cores}) or GPUs."
    )


def carried(lab: Lab) -> str | None:
    """The shortest step of the ladder by the way in which its batch is carried, loaded in the same process."""
    rows = {row["carried"]: typical(row, "step_ms") for row in lab.rows(source="memory_mapped", workers=0)}
    times = {way.replace("_", " "): ms for way, ms in rows.items() if ms}
    if len(times) < 2:
        return None
    listed = ", ".join(f"{form.three_digits(ms)} {way}" for way, ms in times.items())
    return f"{lab.where} ms of a shorter step: {listed}."


@from_experiment("folklore_host", needs="memory of workers over an epoch, a Python list against one array")
def worker_memory(lab: Lab) -> Verdict | None:
    """Read the private memory of a loader process over epochs: list against array, kept against started anew."""
    rows = {(row["held"], row["persistent"]): row for row in lab.rows(what="worker")}
    wanted = [(held, persistent) for held in ("a list", "an array") for persistent in (True, False)]
    if not all(key in rows for key in wanted):
        return None
    grown = {key: max(rows[key]["last_bytes"]) - rows[key]["first_bytes"][0] for key in wanted}
    kept, anew, packed = (grown[key] for key in (("a list", True), ("a list", False), ("an array", True)))
    cured = grown["a list", True] < GROWN_BYTES
    return Verdict(
        verdict="confirmed" if cured else "refuted",
        evidence=f"{lab.where} over {rows[wanted[0]]['samples']:,} short texts in a Python list a loader process grows "
        f"by {form.three_digits(kept / 2**20)} MiB where it is kept and by {form.three_digits(anew / 2**20)} MiB where "
        f"it is started anew for each epoch; over an array by {form.three_digits(packed / 2**20)} MiB. Reading an "
        "object writes its reference count, and the page under it is copied.",
    )


@from_experiment("folklore_micro", needs="the busy counter, read by NVML while a tiny kernel runs again and again")
def busy_counter(lab: Lab) -> Verdict | None:
    """Read the counter while a kernel adds one to one number, and while the baseline trains."""
    tiny, step = (lab.row(what="utilization", work=work) for work in ("one number", "baseline"))
    multiprocessors = lab.experiment.machine.get("multiprocessors")
    if not tiny or not multiprocessors:
        return None
    # One thread keeps one multiprocessor at most, even if it ran all the time.
    used = 1 / multiprocessors
    other = f"; in training steps of the baseline {step['busy_percent']} %" if step else ""
    return Verdict(
        verdict="refuted" if tiny["busy_percent"] / 100 > FAR_ABOVE * used else "confirmed",
        evidence=f"{lab.where} the counter says {tiny['busy_percent']} % while one thread adds one to one number, over "
        f"and over, in one of {multiprocessors} multiprocessors, which is {form.percent(used)} of the card at most"
        f"{other}. It counts the time in which any kernel runs; between such small kernels there are pauses.",
    )


@from_experiment("folklore_host", needs="torch.cat, an unused layer and reentrant checkpointing under DDP in turn")
def finished_reduction(lab: Lab) -> Verdict | None:
    """Train small models under DDP for two steps: torch.cat, an unused layer, a layer checkpointed twice."""
    errors = {row["case"]: row["error"] for row in lab.rows(what="ddp") if "error" in row}
    if not {"torch.cat", "unused layer"} <= errors.keys():
        return None
    listed = "; ".join(f'{case}: "{error}"' if error else f"{case}: no error" for case, error in errors.items())
    return Verdict(verdict="confirmed" if errors["torch.cat"] else "refuted", evidence=f"{lab.where} {listed}.")
