"""The words of the book from one file, in English and Chinese: the glossary page, and where a page uses a term.

It knows text only; how a page is built, and what a link looks like, is decided by the Sphinx extension.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from speedlab.errors import BadInput
from speedlab.publishing.tables import Table

FIELDS = {"term", "zh", "meaning", "words"}


@dataclass(frozen=True, kw_only=True)
class Term:
    """One entry. words: the forms that are marked in a page; none for a term that is only in the glossary."""

    term: str
    zh: str
    meaning: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Use:
    """A term in a text: its place, as indices into the text."""

    start: int
    end: int
    term: Term


def read_terms(text: str) -> tuple[Term, ...]:
    """The terms of a glossary file, alphabetically. `BadInput` names an entry that is incomplete or there twice."""
    found = []
    for entry in tomllib.loads(text)["term"]:
        name = entry.get("term", "without a name")
        missing = [key for key in ("term", "zh", "meaning") if not str(entry.get(key, "")).strip()]
        if missing or set(entry) - FIELDS:
            raise BadInput(f"glossary: term {name}: needs {', '.join(missing) or 'no other keys'}; keys are {FIELDS}")
        if any(other.term.lower() == name.lower() for other in found):
            raise BadInput(f"glossary: term {name} is there twice: remove one of them")
        words = tuple(entry.get("words", (name,)))
        found.append(Term(term=name, zh=entry["zh"], meaning=entry["meaning"], words=words))
    return tuple(sorted(found, key=lambda term: term.term.lower()))


@lru_cache(maxsize=1)
def terms() -> tuple[Term, ...]:
    """All terms of the book."""
    return read_terms(resources.files("speedlab.publishing").joinpath("glossary.toml").read_text(encoding="utf-8"))


def find_term(name: str) -> Term:
    """The term with this name or one of its words, whatever the case of its letters."""
    wanted = name.strip().lower()
    for term in terms():
        if wanted in {term.term.lower(), *(word.lower() for word in term.words)}:
            return term
    raise BadInput(f"the glossary has no term {name!r}: there are {', '.join(term.term for term in terms())}")


def uses(text: str) -> Iterator[Use]:
    """Where a text uses a term, from left to right and without overlap; of two that begin together the longer one."""
    by_word, pattern = _pattern()
    for match in pattern.finditer(text):
        word = match[1]
        term = by_word.get(word) or by_word.get(word[0].lower() + word[1:])
        if term is not None:
            yield Use(match.start(), match.end(), term)


@lru_cache(maxsize=1)
def _pattern() -> tuple[dict[str, Term], re.Pattern[str]]:
    """Words to terms, and one expression for all; the first letter may be a capital, as at the start of a sentence."""
    by_word = {word: term for term in terms() for word in term.words}
    forms = sorted(by_word, key=len, reverse=True)
    either = "|".join(f"[{re.escape(f[0].upper() + f[0].lower())}]{re.escape(f[1:])}" for f in forms)
    return by_word, re.compile(rf"(?<![\w.`/-])({either})s?(?![\w`/-]|\.\w)")


def glossary_section() -> str:
    """The glossary as Markdown: every term with its Chinese word and its meaning, then the Chinese words alone."""
    entries = "\n\n".join(f"{term.term}\n  {{zh}}`{term.zh}`\n\n  {term.meaning}" for term in terms())
    cells = tuple((f"{{zh}}`{term.zh}`", f"{{term}}`{term.term}`") for term in terms())
    index = Table("", ("中文", "English"), cells).markdown()
    return f":::{{glossary}}\n{entries}\n:::\n\n## From 中文 to English\n\n{index}"
