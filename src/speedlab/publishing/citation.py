"""How to cite, as the book says it, from CITATION.cff: one file for GitHub, for programs and for the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speedlab.errors import NotAvailable
from speedlab.repository import REPOSITORY_URL

CITATION = Path(__file__).resolve().parents[3] / "CITATION.cff"
REQUIRED = ("cff-version", "message", "title", "authors", "version", "url")


def read_citation(path: Path = CITATION) -> dict[str, Any]:
    """The file as plain values; `NotAvailable` where the package is installed without its repository."""
    import yaml

    if not path.is_file():
        raise NotAvailable(f"no CITATION.cff beside the package: the book is built from a clone of {REPOSITORY_URL}")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    missing = [key for key in REQUIRED if not values.get(key)]
    if missing:
        raise NotAvailable(f"CITATION.cff has no {', '.join(missing)}: add what is missing")
    return values


def citation_section() -> str:
    """A sentence, and an entry for BibTeX, as Markdown."""
    values = read_citation()
    authors = " and ".join(author["name"] for author in values["authors"])
    title, version, url = values["title"], values["version"], values["url"]
    bibtex = (
        f"@software{{gpt2_speed_lab,\n  author  = {{{{{authors}}}}},\n  title   = {{{title}}},\n"
        f"  version = {{{version}}},\n  url     = {{{url}}}\n}}"
    )
    return f"> {authors}. *{title}*, version {version}. <{url}>\n\n```bibtex\n{bibtex}\n```\n"
