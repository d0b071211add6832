"""The few SVG shapes that the diagrams are drawn with; it knows nothing of what they show.

A drawing stands on a light panel of its own. An SVG inside an `<img>` cannot see the page's theme, so a transparent
one would lose its dark text on a dark page; the panel reads well on both, in the book, in Jupyter and in Colab.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

# Okabe and Ito's palette, told apart under every common form of colour blindness, and two greys.
BLUE, ORANGE, GREEN, VERMILION, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9"
INK, FAINT, RULE, PANEL = "#1b1f24", "#565d66", "#c3c8cf", "#ffffff"

FONTS = "system-ui, -apple-system, Segoe UI, Roboto, sans-serif"
FONT_SIZE = 15  # pixels; a drawing 480 wide still shows it at 11 on a phone


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = FONT_SIZE,
    fill: str = INK,
    anchor: str = "start",
    bold: bool = False,
) -> str:
    """Words on the baseline `y`; `anchor` is start, middle or end."""
    weight = ' font-weight="600"' if bold else ""
    look = f'font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:g}" y="{y:g}" {look}>{escape(words)}</text>'


def rectangle(
    x: float, y: float, width: float, height: float, *, fill: str = "none", stroke: str = "none", line: float = 1
) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}" '
        f'stroke-width="{line:g}"/>'
    )


def cell(
    x: float, y: float, width: float, height: float, words: str, *, fill: str, ink: str = INK, size: float = FONT_SIZE
) -> str:
    """A filled box with words in its middle."""
    return rectangle(x, y, width, height, fill=fill, stroke=INK, line=0.8) + text(
        x + width / 2, y + height / 2 + size * 0.35, words, size=size, fill=ink, anchor="middle"
    )


def grid(
    x: float, y: float, rows: int, columns: int, size: float, *, marked: Iterable[tuple[int, int]], mark: str
) -> str:
    """A matrix of square cells, some of them marked by a colour; (row, column) counts from the top left."""
    chosen = set(marked)
    return "".join(
        rectangle(
            x + column * size, y + row * size, size, size,
            fill=mark if (row, column) in chosen else PANEL, stroke=FAINT, line=0.6,
        )
        for row in range(rows)
        for column in range(columns)
    )  # fmt: skip


def key(x: float, y: float, fill: str, words: str) -> str:
    """One entry of a legend: a small square and what it stands for."""
    return rectangle(x, y - 12, 14, 14, fill=fill, stroke=INK, line=0.8) + text(x + 22, y, words, size=14)


def document(width: int, height: int, title: str, description: str, shapes: Iterable[str]) -> str:
    """The whole drawing. Title and description are for those who cannot see it."""
    frame = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="{PANEL}" stroke="{RULE}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="{FONTS}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>\n{frame}\n"
        + "\n".join(shapes)
        + "\n</svg>\n"
    )
