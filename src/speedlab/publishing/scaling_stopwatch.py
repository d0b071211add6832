"""What the book says of the published stopwatch on several GPUs: how much of a scaling is exchange, how much is clock.

By arithmetic on the rows of the trial; it measures nothing.
"""

from __future__ import annotations

from typing import Any

from speedlab.publishing import formatting as form
from speedlab.records.experiment import Experiment

# The published program evaluates every 10 steps on one GPU and every 5 on several.
ONE_EVERY, SEVERAL_EVERY = 10, 5
CLEAN, ONE_KEY, SEVERAL_KEY = "training_only", f"evaluation_every_{ONE_EVERY}", f"evaluation_every_{SEVERAL_EVERY}"
PUBLISHED_GPUS = 4


def stopwatch_table(experiment: Experiment) -> str:
    """Tokens/s under each stopwatch on one and on several GPUs, and the scaling that it shows."""
    rates: dict[str, dict[int, float]] = {}
    titles = {}
    for row in experiment.measured:
        rates.setdefault(row["key"], {})[row["gpus"]] = _tokens_per_s(row)
        titles[row["key"]] = row["title"]
    counts = sorted({gpus for values in rates.values() for gpus in values})
    if not counts:
        return "No row of this experiment could be measured.\n"
    lines = ["| in the window | " + " | ".join(f"tokens/s on {gpus}" for gpus in counts) + " | scaling |"]
    lines.append("| --- |" + " ---: |" * (len(counts) + 1))

    def scaling(values: dict[int, float], most: int) -> str:
        return f"{values[most] / values[1]:.2f}x" if most > 1 and {1, most} <= set(values) else form.NOTHING

    for key, values in rates.items():
        cells = [form.count(values.get(gpus)) for gpus in counts]
        lines.append("| " + " | ".join([titles[key], *cells, scaling(values, counts[-1])]) + " |")
    shares = published_shares(experiment)
    if shares:
        between = [form.NOTHING] * (len(counts) - 2)
        cells = [form.count(rates[ONE_KEY][1]), *between, form.count(rates[SEVERAL_KEY][counts[-1]])]
        title = f"one GPU every {ONE_EVERY} steps, {counts[-1]} every {SEVERAL_EVERY}: as published"
        lines.append("| " + " | ".join([title, *cells, f"{shares['published']:.2f}x"]) + " |")
    return "\n".join(lines) + "\n\n" + stopwatch_words(experiment)


def published_shares(experiment: Experiment) -> dict[str, Any]:
    """How the published stopwatch's scaling falls short of the number of GPUs; {} where rows are missing.

    steps: of one window. published, clean: scaling under either stopwatch on `gpus`. exchange: GPUs that are lost in
    the clean one too. clock: what the published stopwatch loses on top. step_ms, evaluation_ms, kept_ms: of one GPU;
    the last two are one evaluation with workers started for it and with workers kept (None where it was not timed).
    clock_alone: what that stopwatch would show on `PUBLISHED_GPUS` that scale perfectly, with this machine's step and
    evaluation.
    """
    rows = {(row["key"], row["gpus"]): row for row in experiment.measured}
    gpus = max((count for _, count in rows), default=1)
    wanted = [(CLEAN, 1), (CLEAN, gpus), (ONE_KEY, 1), (SEVERAL_KEY, gpus)]
    if gpus == 1 or not all(key in rows for key in wanted):
        return {}
    clean_one, clean_several, one, several = (rows[key] for key in wanted)
    published = _tokens_per_s(several) / _tokens_per_s(one)
    clean = _tokens_per_s(clean_several) / _tokens_per_s(clean_one)
    step_ms, evaluation_ms = _step_ms(clean_one), ONE_EVERY * (_step_ms(one) - _step_ms(clean_one))
    kept = rows.get(("persistent_workers", 1))
    seen_one, seen_four = (step_ms + evaluation_ms / every for every in (ONE_EVERY, SEVERAL_EVERY))
    return {
        "gpus": gpus, "steps": clean_one["steps"], "published": published, "clean": clean,
        "exchange": gpus - clean, "clock": clean - published,
        "step_ms": step_ms, "evaluation_ms": evaluation_ms,
        "kept_ms": None if kept is None else kept["evaluate_every"] * (_step_ms(kept) - step_ms),
        "clock_alone": PUBLISHED_GPUS * seen_one / seen_four,
    }  # fmt: skip


def stopwatch_words(experiment: Experiment) -> str:
    """The same in sentences; "" where rows are missing."""
    found = published_shares(experiment)
    if not found:
        return ""
    kept = "" if found["kept_ms"] is None else f", {form.three_digits(found['kept_ms'])} ms where they are kept"
    return (
        f"On one GPU a step takes {form.three_digits(found['step_ms'])} ms and an evaluation "
        f"{form.three_digits(found['evaluation_ms'])} ms with workers that are started for it{kept}. On "
        f"{found['gpus']} GPUs the published way of timing shows {found['published']:.2f}x where training alone scales "
        f"{found['clean']:.2f}x: of the {found['gpus'] - found['published']:.2f} GPUs that seem to be lost, "
        f"{found['exchange']:.2f} are lost to several GPUs and {found['clock']:.2f} to the stopwatch. By formula, "
        f"{PUBLISHED_GPUS} GPUs that scale perfectly, with this step and this evaluation, would show "
        f"{found['clock_alone']:.2f}x. Each row is one window of {found['steps']} steps in one session on one machine, "
        "so rows that differ by some percent do not differ; and the cards and the program that the published figure "
        "comes from have another step and another evaluation.\n"
    )


def _tokens_per_s(row: dict[str, Any]) -> float:
    return 1e3 * row["tokens_per_step"] * row["steps"] / row["window_ms"]


def _step_ms(row: dict[str, Any]) -> float:
    return row["window_ms"] / row["steps"]
