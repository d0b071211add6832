"""The glossary: its data, where a text uses a term, and the pages of a real Sphinx build."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from speedlab.errors import BadInput
from speedlab.publishing.book_roles import MOST_ON_A_PAGE, UnknownName
from speedlab.publishing.glossary import find_term, glossary_section, read_terms, terms, uses

TERM = '[[term]]\nterm = "kernel"\nzh = "核函数"\nmeaning = "A program."\n'
SAME_IN_CHINESE = {"FlashAttention", "TF32", "torch.compile", "bfloat16", "float16"}


def found(text: str) -> list[tuple[str, str]]:
    return [(text[use.start : use.end], use.term.term) for use in uses(text)]


def test_every_term_is_complete_and_no_word_belongs_to_two() -> None:
    words = [word.lower() for term in terms() for word in term.words]
    assert len(words) == len(set(words))
    assert len(terms()) > 50
    for term in terms():
        assert term.meaning.endswith(".") and term.meaning[0].isupper()
        assert re.search(r"[\u4e00-\u9fff]", term.zh) or term.term in SAME_IN_CHINESE
        assert '"' not in term.meaning and len(term.meaning) < 200  # it must fit a hover text


def test_terms_stand_in_order_and_all_are_in_both_lists() -> None:
    section = glossary_section()
    assert [term.term for term in terms()] == sorted((term.term for term in terms()), key=str.lower)
    for term in terms():
        assert f"\n{term.term}\n  {{zh}}`{term.zh}`\n\n  {term.meaning}\n" in section
        assert f"| {{zh}}`{term.zh}` | {{term}}`{term.term}` |" in section


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Kernels and a kernel.", [("Kernels", "kernel"), ("kernel", "kernel")]),
        ("It takes a page-locked memory", [("page-locked memory", "pinned memory")]),
        ("An online softmax in FlashAttention", [("online softmax", "online softmax"), ("FlashAttention",) * 2]),
        ("FlashAttention-2, kernelled, subkernel, a/kernel, kernel.name, multi-kernel", []),
        ("the SMs, and the SM.", [("SMs", "SM"), ("SM", "SM")]),
        ("an sm is no unit, tf32 no format", []),
        ("torch.compile. It", [("torch.compile", "torch.compile")]),
        ("mixed precision, then precision", [("mixed precision", "mixed precision")]),
    ],
)
def test_where_a_text_uses_a_term(text: str, marked: list[tuple[str, str]]) -> None:
    assert found(text) == marked


def test_words_of_ordinary_language_are_not_marked() -> None:
    assert found("Each step of the ladder has a record, a batch and a ceiling.") == []


def test_a_term_is_found_by_its_name_and_its_words() -> None:
    assert find_term("hbm").term == "HBM" and find_term("GradScaler").term == "gradient scaler"
    with pytest.raises(BadInput, match=r"no term 'flux': there are activation, .*"):
        find_term("flux")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TERM + TERM, "term kernel is there twice"),
        (TERM.replace('zh = "核函数"', 'zh = " "'), "term kernel: needs zh"),
        (TERM + 'chinese = "x"\n', "term kernel: needs no other keys"),
    ],
)
def test_a_faulty_entry_is_named(text: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        read_terms(text)


def build(folder: Path, body: str) -> str:
    """The article of a page beside a glossary of all terms, from a strict build."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    listed = "\n".join(f"   {term.term}\n      {term.meaning}\n" for term in terms())
    (source / "glossary.rst").write_text(f"Words\n=====\n\n.. glossary::\n\n{listed}", encoding="utf-8")
    (source / "sources.rst").write_text(
        "Sources\n=======\n\n.. _source-dao2022:\n\nDao and others.\n", encoding="utf-8"
    )
    contents = ".. toctree::\n\n   glossary\n   sources\n"
    (source / "index.rst").write_text(f"A kernel\n========\n\n{contents}\n{body}\n", encoding="utf-8")
    settings = {"extensions": ["speedlab.publishing.book_roles"], "html_theme": "basic", "nitpicky": True}
    with patch_docutils(), docutils_namespace():  # as sphinx-build does: docutils' registries are global
        app = Sphinx(
            str(source), None, str(folder / "html"), str(folder / "doctrees"), "html", settings,
            status=None, warning=None, warningiserror=True,
        )  # fmt: skip
        app.build()
    assert app.statuscode == 0
    page = (folder / "html" / "index.html").read_text(encoding="utf-8")
    return page[page.index('role="main"') :].split('class="sphinxsidebar"')[0]


def marks(page: str) -> list[tuple[str, str, str]]:
    """(word, address, meaning) of each hover text."""
    pattern = (
        r'<a class="reference internal" href="([^"]+)"><abbr class="speedlab-term" title="([^"]+)">([^<]+)</abbr></a>'
    )
    return [(word, address, html.unescape(meaning)) for address, meaning, word in re.findall(pattern, page)]


def test_the_first_use_in_prose_is_marked_and_nothing_else(tmp_path: Path) -> None:
    page = build(
        tmp_path,
        "``kernel`` in code, `a kernel <https://example.org>`_ in a link, **kernel** in bold.\n\n"
        "=== ======\na   kernel\n=== ======\n1   HBM\n=== ======\n\n"
        "Here *two* kernels share the HBM of a card; a kernel and HBM.\n",
    )
    assert marks(page) == [
        ("kernels", "glossary.html#term-kernel", find_term("kernel").meaning),
        ("HBM", "glossary.html#term-HBM", find_term("HBM").meaning),
    ]
    assert page.count("<abbr") == 2
    assert "of a card; a kernel and HBM." in page  # the words around them are whole


def test_a_page_has_a_limited_number_of_them(tmp_path: Path) -> None:
    names = [term.term for term in terms() if term.term in term.words]
    page = build(tmp_path, ", ".join(names))
    assert len(marks(page)) == MOST_ON_A_PAGE < len(names)


def test_roles_by_hand(tmp_path: Path) -> None:
    page = build(tmp_path, "The :gloss:`rung` is 阶: :zh:`优化阶梯`. See :source:`dao2022`.")
    assert [(word, address) for word, address, _ in marks(page)] == [("rung", "glossary.html#term-rung")]
    assert re.search(r'<span lang="zh-Hans"[^>]*>优化阶梯</span>', page)
    assert 'href="sources.html#source-dao2022"><span class="std std-ref">Dao et al. 2022</span>' in page


@pytest.mark.parametrize(("role", "told"), [(":gloss:`flux`", "no term 'flux'"), (":source:`flux`", "no 'flux'")])
def test_an_unknown_name_stops_the_build(tmp_path: Path, role: str, told: str) -> None:
    with pytest.raises(UnknownName, match=told):
        build(tmp_path, f"A {role}.")
