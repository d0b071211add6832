"""The bibliography against everything that cites, and CITATION.cff."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from speedlab import __version__
from speedlab.errors import BadInput, NotAvailable
from speedlab.folklore.claims import THEMES
from speedlab.publishing import bibliography
from speedlab.publishing.bibliography import (
    authors_of_figures,
    bibliography_section,
    entries,
    label_of,
    read_entries,
    short_name,
)
from speedlab.publishing.citation import citation_section, read_citation
from speedlab.records.published import load, sources
from speedlab.repository import REPOSITORY_URL

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").rglob("*.py"), *(ROOT / "src").rglob("*.py")]
# The works without which the chapters could not be.
NEEDED = (
    "dao2022", "dao2023", "shah2024", "shoeybi2019", "micikevicius2018", "nvidia-shapes", "raschka2024",
    "chowdhery2022", "ansel2024", "li2020", "williams2009", "milakov2018", "loshchilov2019", "hendrycks2016", "ba2016",
    "chen2016", "radford2019", "vaswani2017", "tillet2019",
)  # fmt: skip
ENTRY = """
[[entry]]
key = "a1999"
authors = ["A. Author"]
year = 1999
title = "T"
where = "W"
url = "https://example.org"
group = "G"
about = "It."
"""


def test_every_source_of_a_published_figure_is_listed_as_the_file_has_it() -> None:
    section = bibliography_section()
    assert set(load()["sources"]) == set(sources())
    for key, values in load()["sources"].items():
        entry = section.split(f"({label_of(key)})=\n")[1].split("\n\n")[0]
        for name in ("title", "url", "hardware", "torch", "statistic", "compile_mode"):
            assert values.get(name, "").rstrip(".") in entry, (key, name)


def test_the_page_follows_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {key: replace(source, title=f"Another {key}") for key, source in sources().items()}
    changed["new_one"] = replace(changed["karpathy"], key="new_one", title="A new account", url=None)
    monkeypatch.setattr(bibliography, "sources", lambda: changed)
    section = bibliography_section()
    assert "Another raschka" in section and "LLMs-from-scratch, ch05" not in section
    assert "(source-new-one)=\n**A new account.**" in section and "no address is known" in section


def test_every_source_that_a_claim_names_is_listed() -> None:
    named = {key for claims in THEMES.values() for claim in claims for key in claim.figures}
    assert named
    section = bibliography_section()
    assert all(f"({label_of(key)})=" in section for key in named)


def test_authors_are_given_to_sources_that_exist() -> None:
    assert set(authors_of_figures()) <= set(sources())


def test_keys_titles_and_addresses_are_given_once() -> None:
    keys = [*(entry.key for entry in entries()), *sources()]
    assert len(keys) == len(set(keys)) == len({label_of(key) for key in keys})
    assert len({entry.title for entry in entries()}) == len({entry.url for entry in entries()}) == len(entries())
    assert set(NEEDED) <= set(keys)


def test_every_paper_that_a_page_or_a_comment_names_is_listed() -> None:
    """By author and year, "Dao et al. 2022" or "[Dao 2023](", and by address."""
    known = {(entry.authors[0].split()[-1], entry.year) for entry in entries()}
    addresses = {entry.url for entry in entries()}
    year = r"((?:19|20)\d\d)"
    names = rf"([A-Z]\w+)(?:(?:, [A-Z]\w+)* and [A-Z]\w+| et al\.),? \(?{year}\b|\[([A-Z]\w+) {year}\]\("
    cited = 0
    for page in PAGES:
        words = page.read_text(encoding="utf-8")
        for first, when, alone, its_year in re.findall(names, re.sub(r"\s*\n#? ?", " ", words)):
            assert (first or alone, int(when or its_year)) in known, page.name
            cited += 1
        for address in re.findall(r"https://(?:arxiv\.org|doi\.org)/[^\s)\"]+", words):
            assert address in addresses, page.name
            cited += 1
    assert cited > 10


def test_names_in_a_sentence() -> None:
    assert short_name("dao2022") == "Dao et al. 2022"
    assert short_name("rabe2021") == "Rabe and Staats 2021"
    assert short_name("dao2023") == "Dao 2023"
    assert short_name("nvidia-shapes").startswith("NVIDIA, Matrix")
    assert short_name("raschka") == sources()["raschka"].title
    with pytest.raises(BadInput, match=r"no 'nobody1900': there are .*dao2022"):
        short_name("nobody1900")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text + text, "entry a1999: its key must be new"),
        (lambda text: text.replace("https://", "http://"), "its url https"),
        (lambda text: text.replace('about = "It."', ""), "entry a1999: needs"),
        (lambda text: text + 'doi = "1"\n', "entry a1999: needs"),
        (lambda text: text.replace("a1999", "A 1999"), "a-z 0-9 -"),
    ],
)
def test_a_faulty_entry_is_named(change, told: str) -> None:
    assert read_entries(ENTRY)[0].short == "Author 1999"
    with pytest.raises(BadInput, match=told):
        read_entries(change(ENTRY))


def test_citation_is_that_of_this_version() -> None:
    values = read_citation()
    assert values["version"] == __version__ and values["url"] == values["repository-code"] == REPOSITORY_URL
    assert values["cff-version"] == "1.2.0" and values["license"] == "MIT"
    section = citation_section()
    assert f"version {__version__}" in section and "@software{gpt2_speed_lab," in section
    assert section.count("{") == section.count("}")


def test_citation_that_is_missing_or_incomplete_is_named(tmp_path: Path) -> None:
    path = tmp_path / "CITATION.cff"
    with pytest.raises(NotAvailable, match=r"no CITATION\.cff beside the package"):
        read_citation(path)
    path.write_text(yaml.safe_dump({"title": "T", "url": "U"}), encoding="utf-8")
    with pytest.raises(NotAvailable, match="has no cff-version, message, authors, version"):
        read_citation(path)
