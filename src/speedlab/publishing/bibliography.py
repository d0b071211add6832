"""The publications behind the book, and the sources of every published figure, as one page.

Publications come from bibliography.toml. The sources of figures come from records/published.json itself, so that what
the tables call published and what this page lists never differ. It reads no record and fetches nothing.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from speedlab.errors import BadInput
from speedlab.folklore.claims import THEMES
from speedlab.records.published import Source, sources

REQUIRED = {"key", "authors", "title", "where", "url", "group", "about"}
OPTIONAL = {"year"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One publication. year: None for a text that is kept up to date."""

    key: str
    authors: tuple[str, ...]
    year: int | None
    title: str
    where: str
    url: str
    group: str
    about: str

    @property
    def short(self) -> str:
        """As it stands in a sentence: "Dao et al. 2022", "Rabe and Staats 2021", "NVIDIA"."""
        names = [name if name in ("NVIDIA", "Hugging Face") else name.split()[-1] for name in self.authors]
        who = f"{names[0]} et al." if len(names) > 2 or names[-1] == "others" else " and ".join(names)
        return f"{who} {self.year}" if self.year else f"{who}, {self.title}"


def read_entries(text: str) -> tuple[Entry, ...]:
    """The entries of a bibliography file, in its order; `BadInput` names one that is incomplete or there twice."""
    found: dict[str, Entry] = {}
    for values in tomllib.loads(text)["entry"]:
        key = str(values.get("key", "without a key"))
        if REQUIRED - set(values) or set(values) - REQUIRED - OPTIONAL:
            raise BadInput(f"bibliography: entry {key}: needs {sorted(REQUIRED)} and may have {sorted(OPTIONAL)}")
        if not re.fullmatch(r"[a-z0-9-]+", key) or key in found or not values["url"].startswith("https://"):
            raise BadInput(f"bibliography: entry {key}: its key must be new, a-z 0-9 -, and its url https")
        found[key] = Entry(**({"year": None} | values | {"authors": tuple(values["authors"])}))
    return tuple(found.values())


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """All publications."""
    return read_entries(_file())


@lru_cache(maxsize=1)
def authors_of_figures() -> dict[str, str]:
    """Who wrote the sources of published figures, by their keys, as far as it is known."""
    return tomllib.loads(_file())["who"]


def _file() -> str:
    return resources.files("speedlab.publishing").joinpath("bibliography.toml").read_text(encoding="utf-8")


def label_of(key: str) -> str:
    """The anchor of an entry, or of a source of figures."""
    return f"source-{key.replace('_', '-')}"


def short_name(key: str) -> str:
    """How a sentence names the entry or source with this key; `BadInput` for one that is not there."""
    named = {entry.key: entry.short for entry in entries()} | {
        source.key: source.title for source in sources().values()
    }
    if key not in named:
        raise BadInput(f"the bibliography has no {key!r}: there are {', '.join(sorted(named))}")
    return named[key]


def bibliography_section() -> str:
    """The page as Markdown: the sources of published figures, then publications by subject."""
    parts = ["(figures-of-others)=\n## Sources of published figures\n"]
    parts.append(
        "Every number in this book that is called *published* comes from one of these. We measured none of them.\n"
    )
    parts += [_source(source) for source in sources().values()]
    for group in dict.fromkeys(entry.group for entry in entries()):
        parts.append(f"## {group}\n")
        parts += [_entry(entry) for entry in entries() if entry.group == group]
    return "\n".join(parts)


def _source(source: Source) -> str:
    """A source of figures, with the claims on trial that are about it."""
    title = f"[{source.title}]({source.url})" if source.url else source.title
    who = authors_of_figures().get(source.key)
    facts = [f"hardware: {source.hardware}"]
    facts += [f"PyTorch {source.torch}"] if source.torch else []
    facts += [f"statistic: {source.statistic}"] if source.statistic else []
    facts += [f"`torch.compile` mode: {source.compile_mode}"] if source.compile_mode else []
    facts += [] if source.url else ["no address is known to us"]
    claims = sum(source.key in claim.figures for claims in THEMES.values() for claim in claims)
    facts += [f"claims in [folklore on trial](folklore.md) that are about it: {claims}"] if claims else []
    opening = f"**{who}.** {title}." if who else f"**{title}.**"
    return f"({label_of(source.key)})=\n{opening} {_sentence('; '.join(facts))}\n"


def _entry(entry: Entry) -> str:
    who = ", ".join(entry.authors).replace(", and others", " and others")
    year = f" ({entry.year})" if entry.year else ""
    return f"({label_of(entry.key)})=\n**{who}{year}.** [{entry.title}]({entry.url}). {entry.where}. *{entry.about}*\n"


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:].rstrip(".") + "."
