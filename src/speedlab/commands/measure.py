"""Commands that look at this machine and measure on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from speedlab.commands.shared import AsJson, CorpusName, ProfileName, event_text, print_plain_rows, print_rows, words
from speedlab.errors import BadInput
from speedlab.progress import Progress


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can run, and why not the rest."""
    from speedlab.doctor import as_text, examine

    report = examine()
    print(json.dumps(report, indent=1) if as_json else as_text(report))


def ladder(
    name: Annotated[str, typer.Option("--ladder", help="nine-steps, six-steps, alone or removed.")] = "nine-steps",
    profile: ProfileName = "auto",
    corpus: CorpusName = "standard-library",
    rungs: Annotated[str | None, typer.Option(help="Only these rungs, joined by commas.")] = None,
    order: Annotated[
        str, typer.Option(help="Its changes in another order, all of them joined by commas; as-is: its own order.")
    ] = "as-is",
    steps: Annotated[int, typer.Option(help="Timed steps per rung; 0 for what the profile says.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the records below this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Measure a whole ladder in this process, without notebooks."""
    from speedlab.measuring.session import run_ladder
    from speedlab.records.rows import report_rows

    chosen = words(rungs) if rungs is not None else None
    wanted = words(order) if order != "as-is" else None
    with Progress() as progress:
        records = run_ladder(
            name, profile=profile, corpus=corpus, rungs=chosen, order=wanted, steps=steps, out=out,
            report=lambda event: progress.show(event_text(event), event.done, event.total),
        )  # fmt: skip
    print_rows(report_rows(records), "json" if as_json else "table")
    if any(record.status in ("error", "contract_failed") for record in records):
        raise typer.Exit(1)


def kernels(
    rung: Annotated[str, typer.Argument(help="Key of a rung, such as baseline or flash_attention.")],
    name: Annotated[str, typer.Option("--ladder", help="nine-steps or six-steps.")] = "nine-steps",
    profile: ProfileName = "auto",
    shapes: Annotated[bool, typer.Option("--shapes", help="Tell kernels apart by the shapes they work on.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Show what each allocates.")] = False,
    top: Annotated[int, typer.Option(min=1, help="How many of the longest kernels to show.")] = 15,
    trace: Annotated[
        Path | None, typer.Option(help="Write a new file for Perfetto, or TensorBoard: NAME.pt.trace.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every kernel.")] = False,
) -> None:
    """Show which kernels one step of a rung runs, and what it waits for."""
    from speedlab.measuring.kernel_profile import profile_rung
    from speedlab.publishing.kernel_tables import kernel_report

    with Progress() as progress:
        profiled = profile_rung(
            rung, ladder=name, profile=profile, shapes=shapes, memory=memory, trace=trace,
            report=lambda event: progress.show(event_text(event), event.done, event.total),
        )  # fmt: skip
    print(json.dumps(profiled.as_dict(), indent=1) if as_json else kernel_report(profiled, top))


def experiment(
    names: Annotated[list[str] | None, typer.Argument(help="Keys of experiments; --list shows them.")] = None,
    profile: ProfileName = "auto",
    corpus: CorpusName = "standard-library",
    out: Annotated[Path | None, typer.Option(help="Write the result below this folder.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run experiments of the labs on this machine, several in one session."""
    from speedlab.labs.registry import EXPERIMENTS, get_entry

    if list_only:
        print("\n".join(f"{entry.name}  {entry.question}" for entry in EXPERIMENTS.values()))
        return
    if not names:
        raise BadInput("which experiment? name one that `speedlab experiment --list` shows")
    for name in names:
        get_entry(name)
    from speedlab.measuring.experiments import open_bench

    bench = open_bench(profile, corpus) if len(names) > 1 else None
    whole = [
        _one_experiment(name, profile=profile, corpus=corpus, out=out, bench=bench, as_json=as_json) for name in names
    ]
    if not all(whole):
        raise typer.Exit(1)


def _one_experiment(name: str, *, as_json: bool, **how: Any) -> bool:
    """Run and print one; whether no row of it ended in an error."""
    from speedlab.measuring.experiments import run_experiment

    with Progress() as progress:
        done = run_experiment(name, report=lambda event: progress.show(event_text(event), 0, 0), **how)
    if as_json:
        print(json.dumps(done.to_dict(), indent=1))
    else:
        plain = [{key: value for key, value in row.items() if not isinstance(value, list | dict)} for row in done.rows]
        print_plain_rows(plain)
    return not any(row["status"] in ("error", "contract_failed") for row in done.rows)
