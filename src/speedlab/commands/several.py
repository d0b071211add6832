"""Commands that need several GPUs of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from speedlab.commands.shared import CorpusName, ProfileName, event_text, print_plain_rows, print_rows, words
from speedlab.errors import BadInput
from speedlab.progress import Progress


def scaling(
    worlds: Annotated[str, typer.Option(help="Numbers of GPUs, rising from 1, joined by commas.")] = "1,2",
    parts: Annotated[
        str, typer.Option(help="Of series, sweep, sharding, stopwatch, timelines, joined by commas; or all.")
    ] = "all",
    recipe: Annotated[
        str, typer.Option(help="LADDER/RUNG, or published, plain, masters, fastest: this one instead of the plan's.")
    ] = "plan",
    profile: ProfileName = "auto",
    corpus: CorpusName = "standard-library",
    budget_s: Annotated[float, typer.Option(min=1.0, help="No row begins later than this many seconds.")] = 540.0,
    out: Annotated[Path | None, typer.Option(help="Write records/ and experiments/ below this folder.")] = None,
) -> None:
    """Measure one, two, four GPUs of this machine in one session.

    Speed, sweeps of the gradient exchange, FSDP2, the published stopwatch, timelines: the important rows first.
    """
    from speedlab import scaling_plan

    numbers = _numbers(worlds)
    chosen = scaling_plan.PARTS if parts == "all" else tuple(words(parts))
    scaling_plan.check_parts(chosen)
    own = None if recipe == "plan" else scaling_plan.base_recipe(recipe)
    from speedlab.measuring.scaling import run_scaling
    from speedlab.records.rows import report_rows

    with Progress() as progress:
        records, experiments = run_scaling(
            numbers, profile=profile, corpus=corpus, parts=chosen, recipe=own, budget_s=budget_s, out=out,
            report=lambda event: progress.show(event_text(event), event.done, event.total),
        )  # fmt: skip
    print_rows(report_rows(records), "table")
    for experiment in experiments:
        print(f"\n{experiment.name}")
        print_plain_rows([_plain(row) for row in experiment.rows])
    rows = [record.status for record in records] + [row["status"] for e in experiments for row in e.rows]
    if any(status in ("error", "contract_failed") for status in rows):
        raise typer.Exit(1)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words(text))
    except ValueError:
        raise BadInput(f"worlds is {text!r}: give whole numbers joined by commas, such as 1,2") from None


def _plain(row: dict) -> dict:
    """What fits a line: no samples, and the median step of a row that has them."""
    from statistics import median

    flat = {name: value for name, value in row.items() if not isinstance(value, list | dict) and name != "title"}
    return ({"key": row["key"], "step_ms_median": median(row["step_ms"])} if row.get("step_ms") else {}) | flat
