"""Sphinx extension: words of the glossary with their meaning as hover text, Chinese words, and sources.

The first use of a term on a page becomes a link to the glossary by itself, a limited number on each page; pages and
chapters keep plain words in their sources, so that they read well on Colab. {gloss}`HBM` marks a term by hand,
{source}`dao2022` names a publication and leads to its entry in the bibliography. It measures and fetches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxRole

from speedlab import __version__
from speedlab.errors import BadInput
from speedlab.publishing.bibliography import label_of, short_name
from speedlab.publishing.glossary import Term, find_term, uses

MOST_ON_A_PAGE = 10
NOT_ON = ("glossary", "bibliography", "genindex")
# Where a word stands as a name or a number and not as prose.
NOT_INSIDE = (
    nodes.title, nodes.literal, nodes.literal_block, nodes.reference, nodes.table, nodes.caption, nodes.term,
    nodes.abbreviation, nodes.strong, nodes.system_message, nodes.raw, nodes.math, addnodes.pending_xref,
)  # fmt: skip


class UnknownName(ExtensionError):
    """A page marks a term or names a source that its data file does not have."""

    category = "Unknown name"


class GlossRole(SphinxRole):
    """{gloss}`kernel`: the word with its meaning."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            return [_marked(self.text, find_term(self.text), self.env.docname)], []
        except BadInput as error:
            raise UnknownName(f"{self.get_location()}: {{gloss}}`{self.text}`: {error}") from error


class SourceRole(SphinxRole):
    """{source}`dao2022`: author and year, and the way to the entry."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            words = short_name(self.text)
        except BadInput as error:
            raise UnknownName(f"{self.get_location()}: {{source}}`{self.text}`: {error}") from error
        link = addnodes.pending_xref(
            "", nodes.inline("", words), refdomain="std", reftype="ref", reftarget=label_of(self.text),
            refexplicit=True, refwarn=True, refdoc=self.env.docname,
        )  # fmt: skip
        return [link], []


class ChineseRole(SphinxRole):
    """{zh}`词表`: the words are marked as Chinese, for screen readers and for the choice of a font."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        return [nodes.inline(self.rawtext, self.text, classes=["language-zh-Hans"])], []


def _marked(words: str, term: Term, docname: str) -> nodes.Node:
    """The words as they are written, with the meaning as hover text, leading to the glossary."""
    inner = nodes.abbreviation(words, words, explanation=term.meaning, classes=["speedlab-term"])
    return addnodes.pending_xref(
        "", inner, refdomain="std", reftype="term", reftarget=term.term, refexplicit=True, refwarn=True,
        refdoc=docname,
    )  # fmt: skip


def mark_terms(app: Sphinx, doctree: nodes.document) -> None:
    """Mark the first use of each term in the prose of a page."""
    docname = app.env.docname
    if docname in NOT_ON:
        return
    seen = {node["reftarget"] for node in doctree.findall(addnodes.pending_xref) if node.get("reftype") == "term"}
    for text in list(_prose(doctree)):
        parts: list[nodes.Node] = []
        whole, done = str(text), 0
        for use in uses(whole):
            if use.term.term in seen or len(seen) >= MOST_ON_A_PAGE:
                continue
            seen.add(use.term.term)
            parts += [nodes.Text(whole[done : use.start]), _marked(whole[use.start : use.end], use.term, docname)]
            done = use.end
        if parts:
            text.parent.replace(text, [part for part in (*parts, nodes.Text(whole[done:])) if part.astext()])


def _prose(doctree: nodes.document) -> Iterator[nodes.Text]:
    """Texts of paragraphs, without titles, code, links, tables and whatever a cell of a chapter printed."""
    for text in doctree.findall(nodes.Text):
        above, node = [], text.parent
        while node is not None:
            above.append(node)
            node = node.parent
        inside = any(isinstance(node, NOT_INSIDE) or "cell_output" in node.get("classes", ()) for node in above)
        if not inside and any(isinstance(node, nodes.paragraph) for node in above):
            yield text


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role("gloss", GlossRole())
    app.add_role("source", SourceRole())
    app.add_role("zh", ChineseRole())
    app.connect("doctree-read", mark_terms)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
