"""The page of claims: each with its experiment, its verdict and its evidence. It judges nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

from speedlab.folklore.claim import VERDICTS, Claim, Verdict
from speedlab.folklore.claims import THEMES
from speedlab.publishing.tables import Table
from speedlab.records.experiment import Experiment
from speedlab.records.published import sources
from speedlab.records.record import Record

WORDS = {"confirmed": "confirmed", "refuted": "refuted", "depends": "it depends", "not_decided": "not decided yet"}


def folklore_section(records: Sequence[Record], experiments: Sequence[Experiment] = ()) -> str:
    """A count by verdict, then every claim under the heading of its theme, as Markdown."""
    judged = {
        theme: [(claim, claim.judge(records, experiments)) for claim in claims] for theme, claims in THEMES.items()
    }
    verdicts = [verdict for pairs in judged.values() for _, verdict in pairs]
    parts = [_counts(verdicts)]
    for theme, pairs in judged.items():
        parts.append(f"## {theme}\n\n{_overview(pairs)}")
        parts += [_entry(claim, verdict) for claim, verdict in pairs]
    return "\n".join(parts)


def _counts(verdicts: Sequence[Verdict]) -> str:
    cells = [(WORDS[name], f"{sum(verdict.verdict == name for verdict in verdicts)}") for name in VERDICTS]
    cells.append(("all", f"{len(verdicts)}"))
    return Table("", ("verdict", "claims"), tuple(cells), frozenset({"claims"})).markdown()


def _overview(pairs: Sequence[tuple[Claim, Verdict]]) -> str:
    cells = tuple((claim.claim, WORDS[verdict.verdict]) for claim, verdict in pairs)
    return Table("", ("claim", "verdict"), cells).markdown()


def _entry(claim: Claim, verdict: Verdict) -> str:
    """One claim: a heading and a list, each item opening with what it is."""
    answer = WORDS[verdict.verdict] + (f", on {verdict.on_what}" if verdict.on_what else "")
    items = [
        ("Said by", claim.said_by + "".join(_source(key) for key in claim.figures)),
        ("We expect", claim.expectation),
        ("Experiment", claim.experiment_words),
        ("Looks at", claim.evidence_kind),
        ("Verdict", f"**{answer}**"),
        ("Evidence", verdict.evidence),
        ("Would decide it" if verdict.verdict == "not_decided" else "Would say more", verdict.needs),
    ]
    lines = [f"- *{name}:* {words}" for name, words in items if words]
    return f"### {claim.group}. {claim.claim}\n\n" + "\n".join(lines) + "\n"


def _source(key: str) -> str:
    source = sources()[key]
    title = f"[{source.title}]({source.url})" if source.url else source.title
    return f"; figures published in {title}, {source.hardware}"
