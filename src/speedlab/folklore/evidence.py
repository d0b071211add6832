"""How claims look into records and experiments: rungs, ratios, kernels by name, rows. It judges nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import groupby
from statistics import median
from typing import Any, TypeVar

from speedlab.cards import find_card
from speedlab.folklore.claim import Experiment, Verdict
from speedlab.ladder import NINE_STEPS
from speedlab.profile import PROFILES
from speedlab.records import stats
from speedlab.records.experiment import Experiment as Recorded
from speedlab.records.experiment import MissingField
from speedlab.records.record import Record
from speedlab.records.store import reading_order

Answer = TypeVar("Answer")


def one_session(measured: Record | Recorded) -> str:
    """Where figures come from, and that it was one session of one machine: "in one session on 2 x H200 SXM"."""
    gpu, gpus = measured.machine["gpu"], measured.machine["gpus"]
    card = find_card(gpu) if gpu else None
    return f"in one session on {f'{gpus} x ' if gpus > 1 else ''}{card.title if card else measured.device}"


@dataclass(frozen=True)
class Found:
    """The measured rungs of one device and ladder, that is, of one session."""

    records: dict[str, Record]

    def __getitem__(self, rung: str) -> Record:
        return self.records[rung]

    def __contains__(self, rung: str) -> bool:
        return rung in self.records

    @property
    def where(self) -> str:
        """Opens a sentence of evidence: whose figures these are."""
        record = next(iter(self.records.values()))
        return f"Measured {one_session(record)} (ladder {record.ladder}):"

    def speedup(self, before: str, after: str) -> stats.Ratio:
        """Tokens/s of one rung over those of another, with its interval, widened by what drifted."""
        ratio = stats.speedup(self[before], self[after], drift=stats.drift(self.records.values()))
        assert ratio is not None, "only measured rungs are here"
        return ratio

    def step_ms(self, rung: str) -> float:
        quartiles = stats.step_ms(self[rung])
        assert quartiles is not None, "only measured rungs are here"
        return quartiles.median


def find(
    records: Sequence[Record],
    *rungs: str,
    ladder: str = NINE_STEPS.name,
    device: str | None = None,
    kernels: bool = False,
    memory: bool = False,
) -> Found | None:
    """All measured rungs of the GPU that has these, the one with most rungs where several have them; None: no GPU.

    Toy profiles and CPUs say nothing about speed and are left out. kernels, memory: the rungs must have them.
    """
    wanted = [
        record
        for record in records
        if record.ladder == ladder and record.status == "measured" and not record.on_cpu
        and PROFILES[record.profile].publishable and device in (None, record.device)
    ]  # fmt: skip
    groups = []
    for _, group in groupby(sorted(wanted, key=reading_order), key=lambda record: record.device):
        found = {record.rung: record for record in group}
        if all(
            rung in found
            and (found[rung].kernels or not kernels)
            and (found[rung].peak_reserved_bytes is not None or not memory)
            for rung in rungs
        ):
            groups.append(Found(found))
    return max(groups, key=lambda found: len(found.records)) if groups else None


def from_records(
    *rungs: str,
    needs: str,
    ladder: str = NINE_STEPS.name,
    device: str | None = None,
    kernels: bool = False,
    memory: bool = False,
) -> Callable[[Callable[[Found], Verdict]], Experiment]:
    """Make a function of found rungs an experiment over records, undecided where a rung is missing."""

    def decorate(function: Callable[[Found], Verdict]) -> Experiment:
        @wraps(function)
        def experiment(records: Sequence[Record]) -> Verdict:
            found = find(records, *rungs, ladder=ladder, device=device, kernels=kernels, memory=memory)
            return function(found) if found is not None else Verdict(verdict="not_decided", needs=needs)

        return experiment

    return decorate


@dataclass(frozen=True)
class Lab:
    """The measured rows of one experiment of the labs on one GPU."""

    experiment: Recorded

    @property
    def where(self) -> str:
        """Opens a sentence of evidence: whose figures these are."""
        return f"Measured {one_session(self.experiment)} (experiment {self.experiment.name}):"

    def rows(self, **fields: Any) -> list[dict[str, Any]]:
        """Measured rows that have these values."""
        return [row for row in self.experiment.measured if all(row.get(name) == fields[name] for name in fields)]

    def row(self, **fields: Any) -> dict[str, Any] | None:
        """The first such row."""
        return next(iter(self.rows(**fields)), None)


def typical(row: dict[str, Any] | None, name: str) -> float | None:
    """The median of the samples that a row holds under this name; None where there are none."""
    samples = (row or {}).get(name)
    return median(samples) if samples else None


def from_experiment(
    name: str, *, needs: str = "", known: Callable[[], str] = str, otherwise: Experiment | None = None
) -> Callable[[Callable[[Lab], Verdict | None]], Experiment]:
    """Make a function of an experiment's rows the experiment of a claim, undecided where it was not run on a GPU.

    The function answers None where rows that it needs are missing; rows without a field that it reads are as good as
    missing. known: what can be said without it, by formula. otherwise: what decides it without such a run, in place of
    `needs` and `known`.
    """

    def decorate(function: Callable[[Lab], Verdict | None]) -> Experiment:
        @wraps(function)
        def experiment(records: Sequence[Record], experiments: Sequence[Recorded]) -> Verdict:
            verdict = _told(name, function, experiments)
            if verdict is None and otherwise is not None:
                return otherwise(records)
            return verdict or Verdict(verdict="not_decided", evidence=known(), needs=needs)

        return experiment

    return decorate


def with_sentences(
    *sentences: tuple[str, Callable[[Lab], str | None]],
    answered: bool = False,
) -> Callable[[Experiment], Experiment]:
    """Put measured sentences behind the evidence of an experiment over records, of those labs that ran on a GPU.

    sentences: (name of the experiment, what its rows say). answered: together they are what a decided verdict `needs`,
    which then says no more.
    """

    def decorate(function: Experiment) -> Experiment:
        @wraps(function)
        def experiment(records: Sequence[Record], experiments: Sequence[Recorded]) -> Verdict:
            verdict = function(records)
            said = [_told(name, say, experiments) for name, say in sentences]
            done = answered and all(said) and verdict.verdict != "not_decided"
            evidence = " ".join(filter(None, [verdict.evidence, *said]))
            return replace(verdict, evidence=evidence, needs=None if done else verdict.needs)

        return experiment

    return decorate


def _told(name: str, function: Callable[[Lab], Answer | None], experiments: Sequence[Recorded]) -> Answer | None:
    """What the function makes of the GPU with the most measured rows; None without one, or where a field is missing."""
    labs = [
        Lab(one)
        for one in experiments
        if one.name == name and one.device != "cpu" and PROFILES[one.profile].publishable
    ]
    lab = max(labs, key=lambda lab: len(lab.experiment.measured), default=None)
    if lab is None:
        return None
    try:
        return function(lab)
    except MissingField:
        return None


def calls(record: Record, pattern: str) -> float:
    """Launches per step of the kernels whose name matches."""
    return sum(kernel["calls"] for kernel in record.kernels if re.search(pattern, kernel["name"]))


def kind_calls(record: Record, *kinds: str) -> float:
    """Launches per step of the kernels of these kinds; of all without one."""
    return sum(kernel["calls"] for kernel in record.kernels if not kinds or kernel["kind"] in kinds)


def kind_ms(record: Record, *kinds: str) -> float:
    """Milliseconds per step in the kernels of these kinds; in all without one."""
    return sum(kernel["time_us"] for kernel in record.kernels if not kinds or kernel["kind"] in kinds) / 1e3


def name_ms(record: Record, pattern: str) -> float:
    """Milliseconds per step in the kernels whose name matches."""
    return sum(kernel["time_us"] for kernel in record.kernels if re.search(pattern, kernel["name"])) / 1e3
