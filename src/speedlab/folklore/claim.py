"""What a claim and a verdict are. It knows no particular claim, no page, and how to measure nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from speedlab.errors import BadInput, check_choice
from speedlab.records.experiment import Experiment as Recorded
from speedlab.records.published import sources
from speedlab.records.record import Record

VERDICTS = ("confirmed", "refuted", "depends", "not_decided")
# What an experiment looks at: records of ladders, experiments of the labs, or neither. "nothing yet": it takes a run
# that nobody has made.
EVIDENCE = ("records", "experiments", "data sheets", "formula", "source code", "nothing yet")
GROUPS = range(1, 33)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an experiment found.

    evidence: sentences whose numbers were computed, never typed; on_what: what a claim depends on; needs: the run
    that would decide it, or that would say more.
    """

    verdict: str
    evidence: str = ""
    on_what: str | None = None
    needs: str | None = None

    def __post_init__(self) -> None:
        check_choice("verdict", self.verdict, VERDICTS)
        if (self.verdict == "depends") != (self.on_what is not None):
            raise BadInput(f"verdict {self.verdict}: on_what is given exactly when the verdict is depends")
        if self.verdict == "not_decided" and not self.needs:
            raise BadInput("verdict not_decided: say in `needs` which run would decide it")
        if self.verdict != "not_decided" and not self.evidence:
            raise BadInput(f"verdict {self.verdict}: there is no verdict without evidence")


# Of the records, and where the evidence is "experiments" of these as well.
Experiment: TypeAlias = Callable[..., Verdict]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that people say, and the experiment that judges it.

    claim: in our own words; expectation: what we expect, and why; experiment: records (and experiments of the labs,
    where the evidence is of that kind) -> Verdict, the first line of its docstring says what it does; figures: keys of
    the published sources whose figures it is about.
    """

    key: str
    group: int
    claim: str
    expectation: str
    evidence_kind: str
    experiment: Experiment
    said_by: str = "common advice"
    figures: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("kind of evidence", self.evidence_kind, EVIDENCE)
        if self.group not in GROUPS:
            raise BadInput(f"claim {self.key}: group {self.group} is none of {GROUPS[0]} to {GROUPS[-1]}")
        if not (self.experiment.__doc__ or "").strip():
            raise BadInput(f"claim {self.key}: the docstring of its experiment must say what the experiment is")
        for key in self.figures:
            check_choice(f"claim {self.key}: published source", key, sources())

    @property
    def experiment_words(self) -> str:
        """What the experiment does, in one line."""
        return self.experiment.__doc__.strip().splitlines()[0]

    def judge(self, records: Sequence[Record], experiments: Sequence[Recorded] = ()) -> Verdict:
        """The verdict that these records and experiments of the labs, data sheets and formulas bear out."""
        if self.evidence_kind == "experiments":
            return self.experiment(records, experiments)
        return self.experiment(records)


def pending(needs: str, evidence: Callable[[], str] = str) -> Experiment:
    """The experiment of a claim that takes a run which nobody has made: `needs` says which.

    evidence: what is known without it, by formula.
    """

    def experiment(records: Sequence[Record]) -> Verdict:
        """None in this package yet."""
        return Verdict(verdict="not_decided", evidence=evidence(), needs=needs)

    return experiment
