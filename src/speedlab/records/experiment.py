"""Answers to questions that no ladder asks: a table of rows from one session on one device, as JSON.

A ladder's record holds one training recipe; an experiment may sweep anything: batch sizes, kernels, contexts. Raw
samples only, as in a record: whoever reads it computes medians and ratios. It knows nothing of timing or of pages.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from speedlab.errors import BadInput
from speedlab.profile import PROFILES
from speedlab.records import check
from speedlab.records.check import Check, refuse
from speedlab.records.record import CHECKS as RECORD_CHECKS
from speedlab.records.record import METHOD, SCHEMA, STATUSES
from speedlab.records.store import PACKAGE, REPOSITORY_ROOT, SUMMARIES, json_text, read_json, write_text_atomic

SHARED_WITH_RECORDS = ("session", "device", "profile", "machine", "corpus", "source_hash", "commit", "utc")
CHECKS: dict[str, Check] = {
    "schema": check.whole(minimum=1),
    "method": check.whole(minimum=1),
    "name": check.matching(r"[a-z0-9]+(_[a-z0-9]+)*", "lower-case words and digits joined by _"),
    "settings": check.json_object,
    "rows": check.list_of(check.json_object),
    "ceilings": RECORD_CHECKS["ceilings"],
    "notes": check.list_of(check.text),
    **{name: RECORD_CHECKS[name] for name in SHARED_WITH_RECORDS},
}


class MissingField(BadInput):
    """A row lacks a field that its reader needs: an older program wrote it, or another one."""


class Row(dict):
    """A row of an experiment, as JSON has it. `row["name"]` of a field that is not there is `MissingField`."""

    source = "an experiment"

    def __missing__(self, name: str) -> Any:
        known = ", ".join(map(str, self))
        raise MissingField(f"{self.source}: a row has no field {name}, only {known}: measure this experiment again")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What one experiment gave on one device. Making one checks every value; `BadInput` names what is wrong.

    name: key of the experiment, as in `speedlab experiment --list`. settings: what held for all rows. rows: one object
    for each thing that was tried; `status` is one of a record's, and `reason` says why where it is not "measured".
    Names carry units: `step_ms` and other lists are raw samples.
    """

    name: str
    session: str
    device: str
    profile: str
    rows: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    ceilings: dict[str, Any] | None = None
    machine: dict[str, Any]
    corpus: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    source_hash: str
    commit: str | None = None
    utc: str
    schema: int = SCHEMA
    method: int = METHOD

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise refuse("schema", self.schema, f"{SCHEMA}, the only one that this version reads")
        for name, check_value in CHECKS.items():
            check_value(name, getattr(self, name))
        if (self.device == "cpu") != (self.machine["gpu"] is None):
            raise refuse("device", self.device, f"cpu exactly when machine.gpu is null: it is {self.machine['gpu']!r}")
        for index, row in enumerate(self.rows):
            check.one_of(STATUSES)(f"rows[{index}].status", row.get("status"))
            if row["status"] != "measured":
                check.text(f"rows[{index}].reason", row.get("reason"))
        rows = [Row(row) for row in self.rows]
        for row in rows:
            row.source = f"experiment {self.name} on {self.device}"
        object.__setattr__(self, "rows", rows)

    @property
    def measured(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["status"] == "measured"]

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return {name: values[name] for name in ("schema", "method", "name", *values) if name in values}

    @classmethod
    def from_dict(cls, values: Any, *, source: str) -> Experiment:
        """The experiment with these values. `source`, a file name, opens the message of every error."""
        known = {f.name for f in fields(cls)}
        if not isinstance(values, dict):
            raise BadInput(f"{source}: an experiment is a JSON object, not {type(values).__name__}")
        for name in values:
            if name not in known:
                raise BadInput(f"{source}: experiment field {name} is unknown: it holds {', '.join(CHECKS)}")
        for name in CHECKS:
            if name not in values:
                raise BadInput(f"{source}: experiment field {name} is missing")
        try:
            return cls(**values)
        except BadInput as error:
            raise BadInput(f"{source}: {error}") from None


def committed_experiments() -> Path:
    """Folder of the published experiments: `book/experiments`, or the copy inside an installed package."""
    in_repository = REPOSITORY_ROOT / "book" / "experiments"
    return in_repository if in_repository.is_dir() else PACKAGE / "_experiments"


def experiment_path(root: Path, device: str, name: str) -> Path:
    """`root/<device>/<name>.json`; a name that is no plain word is refused."""
    for what, word in (("device", device), ("experiment", name)):
        if not isinstance(word, str) or not re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", word):
            raise BadInput(f"{what} {word!r} cannot name a file: use lower-case words and digits joined by - or _")
    return Path(root) / device / f"{name}.json"


def write_experiment(root: Path, experiment: Experiment) -> Path:
    """Write it whole or not at all; a toy profile never enters the folder of published experiments."""
    path = experiment_path(root, experiment.device, experiment.name)
    if not PROFILES[experiment.profile].publishable and Path(root).resolve() == committed_experiments().resolve():
        raise BadInput(f"{path}: profile {experiment.profile} means nothing about speed and stays unpublished")
    write_text_atomic(path, experiment_text(experiment))
    return path


def experiment_text(experiment: Experiment) -> str:
    """JSON with one line for each field and each row."""
    return json_text(experiment.to_dict())


def read_experiment(path: Path) -> Experiment:
    """The experiment in this file; `BadInput` names the file and, where there is one, the field that is wrong."""
    path = Path(path)
    values = read_json(path, "experiment")
    experiment = Experiment.from_dict(values, source=str(path))
    if (path.parent.name, path.stem) != (experiment.device, experiment.name):
        raise BadInput(f"{path}: it holds {experiment.name} on {experiment.device}: folder and file must say the same")
    return experiment


def read_experiments(root: Path, name: str | None = None) -> list[Experiment]:
    """All experiments below `root`, or those of one name, by device and name; none where there is no folder."""
    root = Path(root)
    paths = sorted(root.glob(f"*/{name or '*'}.json"))
    return [read_experiment(path) for path in paths if not path.name.startswith(".") and path.name not in SUMMARIES]
