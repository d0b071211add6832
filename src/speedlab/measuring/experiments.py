"""Runs one experiment of the registry on this machine and makes the file of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from speedlab.device import capabilities
from speedlab.errors import NotAvailable
from speedlab.labs.registry import get_entry
from speedlab.measuring.events import Event, Report, say_nothing
from speedlab.measuring.workbench import Workbench
from speedlab.profile import get_profile
from speedlab.records.experiment import Experiment, write_experiment
from speedlab.records.store import check_writable


def run_experiment(
    name: str,
    *,
    profile: str = "auto",
    corpus: str = "standard-library",
    out: Path | None = None,
    report: Report = say_nothing,
    bench: Workbench | None = None,
) -> Experiment:
    """Measure one experiment here. out: folder that receives <device>/<name>.json; None writes nothing.

    bench: the workbench of a session that goes on, so that several experiments share machine, tokens and weights.
    `NotAvailable` where the experiment needs a GPU and there is none.
    """
    from speedlab.measuring.ceiling import measure_ceilings

    entry = get_entry(name)
    machine = bench.machine if bench else capabilities()
    if entry.gpu and machine.device_type != "cuda":
        raise NotAvailable(f"experiment {name} needs a GPU, and there is none here: see the recorded one in the book")
    if out is not None:
        check_writable(out)
    if bench is None:
        bench = Workbench(get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes), machine, corpus=corpus)
    if bench.ceilings is None:
        bench.ceilings = measure_ceilings(machine)

    def say(text: str) -> None:
        report(Event(kind="note", text=text))

    module, _, function = entry.function.partition(":")
    call: Callable = getattr(import_module(module), function)
    rows = []
    for row in call(bench, say):
        rows.append(row)
        report(Event(kind="row", text=_one_line(row), done=len(rows)))
    experiment = Experiment(
        name=name,
        session=bench.id,
        device=bench.device_slug,
        profile=bench.profile.name,
        rows=rows,
        ceilings=bench.ceilings,
        machine=bench.machine_record,
        corpus=bench.corpus_record,
        utc=datetime.now(UTC).isoformat(timespec="seconds"),
        **bench.provenance,
    )
    if out is not None:
        write_experiment(out, experiment)
    return experiment


def open_bench(profile: str = "auto", corpus: str = "standard-library") -> Workbench:
    """The workbench that several experiments of one session share."""
    machine = capabilities()
    return Workbench(get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes), machine, corpus=corpus)


def _one_line(row: dict) -> str:
    """The row without its long lists and its gaps, for whoever watches."""
    return ", ".join(f"{name} {value}" for name, value in row.items() if not isinstance(value, list | dict | None))
