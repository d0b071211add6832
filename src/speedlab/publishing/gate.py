"""What must hold of records and experiments before they are published. CI asks the same of everything committed.

Whether a value is possible at all is checked when a file is read (`records`); here it is whether it may be shown as a
result of this project. Nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from speedlab.cards import device_slug, find_card
from speedlab.labs.registry import EXPERIMENTS
from speedlab.profile import PROFILES
from speedlab.publishing.history import commits_of_sources
from speedlab.records.experiment import Experiment, experiment_text, read_experiments
from speedlab.records.record import Record
from speedlab.records.store import read_records, record_text
from speedlab.scaling_plan import EXPERIMENT_NAMES

FAILED = ("error", "contract_failed")
# A folder in somebody's home: the only private thing that a program puts into a text without being asked.
_HOME = re.compile(r"(?:/home/|/root/|/Users/|[A-Za-z]:\\\\Users)[\w.-]*")


def problems_of_records(records: Iterable[Record]) -> Iterator[str]:
    """One line for each thing that keeps a record from being published."""
    for record in records:
        where = f"{record.device}/{record.ladder}/{record.rung}"
        if record.status in FAILED:
            yield f"{where} has status {record.status} ({' '.join((record.reason or 'no reason').split())[:120]})"
        yield from (f"{where} {what}" for what in _problems_of_either(record, record_text(record)))


def problems_of_experiments(experiments: Iterable[Experiment]) -> Iterator[str]:
    """The same for experiments. A row that failed is a result; an experiment without a measured row is none."""
    for experiment in experiments:
        where = f"{experiment.device}/{experiment.name}"
        if experiment.name not in (*EXPERIMENTS, *EXPERIMENT_NAMES):
            yield f"{where} is no experiment of this package"
        if not experiment.measured:
            yield f"{where} has no measured row"
        yield from (f"{where} {what}" for what in _problems_of_either(experiment, experiment_text(experiment)))


def problems_of_sources(things: Iterable[Record | Experiment], root: Path) -> Iterator[str]:
    """One line for each source hash that no commit holds: the package was changed, or is another one."""
    by_hash = {thing.source_hash: thing for thing in things}
    known = commits_of_sources(by_hash, root)
    for source_hash, thing in by_hash.items():
        if source_hash not in known:
            name = thing.rung if isinstance(thing, Record) else thing.name
            yield (
                f"{thing.device}/{name} was measured by a package that no commit holds (source {source_hash[:12]}): "
                "commit first, then measure"
            )


def problems_of_book(book: Path, root: Path) -> list[str]:
    """Everything that is wrong with the records and experiments of a book folder, for CI.

    Contributed files go through here by being committed. `BadInput` names a file that cannot be read, or mixes
    sessions.
    """
    records = read_records(book / "records")
    experiments = read_experiments(book / "experiments")
    return [
        *problems_of_records(records), *problems_of_experiments(experiments),
        *problems_of_sources([*records, *experiments], root),
    ]  # fmt: skip


def _problems_of_either(thing: Record | Experiment, text: str) -> Iterator[str]:
    if not PROFILES[thing.profile].publishable:
        yield f"has profile {thing.profile}: its speeds mean nothing and stay unpublished"
    slug = device_slug(thing.machine["gpu"])
    if not re.fullmatch(rf"{re.escape(slug)}(-x\d+)?", thing.device):
        yield f"names device {thing.device}, but its machine is {slug}"
    card = find_card(thing.machine["gpu"]) if thing.machine["gpu"] else None
    capability = thing.machine.get("capability")
    if card and capability and tuple(capability) != card.capability:
        yield f"was measured on a {card.title} that played a card of capability {'.'.join(map(str, capability))}"
    if home := _HOME.search(text):
        yield f"holds the path of somebody's home ({home[0]})"
