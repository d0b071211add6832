"""How claims look into the recorded experiments of the labs. It judges nothing and imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from statistics import median
from typing import Any

from speedlab.folklore.claim import Experiment as Judge
from speedlab.folklore.claim import Verdict
from speedlab.profile import PROFILES
from speedlab.publishing.facts import device_title
from speedlab.records.experiment import Experiment, committed_experiments, read_experiments
from speedlab.records.record import Record

Row = dict[str, Any]


class MissingRow(LookupError):
    """An experiment that lacks the row a verdict needs: it failed there, or comes from an older program."""


def recorded(name: str) -> Experiment | None:
    """The committed experiment of the GPU with the most measured rows; toys and CPUs say nothing about speed."""
    found = [
        experiment
        for experiment in read_experiments(committed_experiments(), name)
        if experiment.device != "cpu" and PROFILES[experiment.profile].publishable
    ]
    return max(found, key=lambda experiment: len(experiment.measured), default=None)


def judged_by(
    name: str, *, needs: str, evidence: Callable[[], str] = str
) -> Callable[[Callable[[Experiment], Verdict]], Judge]:
    """Make a function of a recorded experiment the judge of a claim, undecided where it or a row of it is missing.

    evidence: what is known without it, by formula.
    """

    def decorate(function: Callable[[Experiment], Verdict]) -> Judge:
        @wraps(function)
        def judge(records: Sequence[Record]) -> Verdict:
            experiment = recorded(name)
            if experiment is not None:
                try:
                    return function(experiment)
                except MissingRow:
                    pass
            return Verdict(verdict="not_decided", evidence=evidence(), needs=needs)

        return judge

    return decorate


def measured_words(name: str, say: Callable[[Experiment], str]) -> str:
    """A sentence to stand behind evidence by formula, if the experiment was recorded; otherwise nothing."""
    experiment = recorded(name)
    if experiment is None:
        return ""
    try:
        return f" {where(experiment)} {say(experiment)}"
    except MissingRow:
        return ""


def where(experiment: Experiment) -> str:
    """Opens a sentence of evidence: whose figures these are."""
    return f"Measured on {device_title(experiment.device)} (experiment {experiment.name}):"


def rows(experiment: Experiment, **what: Any) -> list[Row]:
    """The measured rows that hold these values."""
    return [row for row in experiment.measured if all(row.get(name) == value for name, value in what.items())]


def row(experiment: Experiment, **what: Any) -> Row:
    """The one measured row that holds these values; `MissingRow` where there is none."""
    found = rows(experiment, **what)
    if not found:
        raise MissingRow(f"{experiment.name} has no measured row with {what}")
    return found[0]


def tokens_per_s(measured: Row) -> float:
    return measured["tokens_per_step"] / (median(measured["step_ms"]) / 1e3)


def step_ms(measured: Row) -> float:
    return median(measured["step_ms"])
