"""Sphinx extension: spaces, arrows and minus signs of running text, as a typesetter would set them.

Sources keep what a keyboard has, so that they read well on Colab and in a terminal. On a page a number is not parted
from its unit, "->" is one arrow, and a negative number has a minus sign. Code stays as it is written.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from speedlab import __version__

UNITS = (
    "ms", "s", "GiB", "MiB", "KiB", "GB", "MB", "KB", "TB", "GB/s", "TB/s", "TFLOP", "TFLOP/s", "GFLOP", "nats", "W",
    "k tokens/s", "tokens/s",
)  # fmt: skip
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?=%|(?:{'|'.join(map(re.escape, UNITS))})(?![\w/]))")
_MINUS = re.compile(r"(?<![\w.)\]}%/-])-(?=\d)")
_ARROW = re.compile(r"(?<=\s)->(?=\s)")
NO_BREAK = "\N{NO-BREAK SPACE}"
_AS_WRITTEN = (nodes.literal, nodes.literal_block, nodes.raw, nodes.math, nodes.math_block, nodes.comment)


def typeset(words: str) -> str:
    """One piece of running text: "-0.1 % -> 5 ms" with a minus sign, an arrow, and spaces at which no line ends."""
    words = _ARROW.sub("→", _MINUS.sub("\N{MINUS SIGN}", words))
    return _BEFORE_UNIT.sub(NO_BREAK, words)


def typeset_page(app: Sphinx, doctree: nodes.document) -> None:
    """Every text of a page that is not code."""
    for text in list(doctree.findall(nodes.Text)):
        above = text.parent
        while above is not None and not isinstance(above, _AS_WRITTEN):
            above = above.parent
        if above is None and (words := typeset(str(text))) != str(text):
            text.parent.replace(text, nodes.Text(words))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", typeset_page)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
