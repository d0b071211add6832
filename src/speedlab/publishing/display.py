"""What a notebook shows, as rich outputs: words, figures with alternative text, the result that programs look for."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import Any

from speedlab.publishing.executed import RESULT_MIME
from speedlab.publishing.plotting import alt_text, svg_text


def show_markdown(text: str) -> None:
    from IPython.display import Markdown, display

    display(Markdown(text))


def show_svg(figure: Any) -> None:
    from IPython.display import HTML, display

    # An image of its own: the alternative text reaches every page, and no two figures share element names.
    picture = b64encode(svg_text(figure).encode()).decode()
    alt = escape(alt_text(figure), quote=True)
    display(HTML(f'<img alt="{alt}" class="chart" style="max-width: 100%" src="data:image/svg+xml;base64,{picture}">'))


def show_result(result: dict[str, Any], text: str) -> None:
    """Emit a notebook's result, which the batch runner and the book look for."""
    from IPython.display import display

    display({RESULT_MIME: result, "text/plain": text}, raw=True)


def clear_progress() -> None:
    from IPython.display import clear_output

    clear_output(wait=True)
