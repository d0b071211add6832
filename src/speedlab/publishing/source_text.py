"""The package's own source as a page shows it: long comments and docstrings are set to the width of a page.

What runs is not touched: only lines of prose are wrapped, and code lines stay as they are written.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from typing import Any

PAGE_LETTERS = 88
FILLED_LETTERS = 100  # from here on a line of the source was ended by its margin


def source_block(thing: Any) -> str:
    """The source of a class, function or module-level table as a fenced block. thing: itself, or (module, name)."""
    source = _assignment(*thing) if isinstance(thing, tuple) else textwrap.dedent(inspect.getsource(thing))
    return f"```python\n{wrap_prose(source.rstrip())}\n```\n"


def wrap_prose(source: str, width: int = PAGE_LETTERS) -> str:
    """The source with its docstrings and its comments on lines of their own wrapped to `width` letters."""
    lines = source.splitlines()
    prose = _prose_lines(source)
    wrapped: list[str] = []
    number = 0
    while number < len(lines):
        line, mark = lines[number], prose.get(number + 1)
        number += 1
        if mark is None or len(line) <= width:
            wrapped.append(line)
            continue
        while number < len(lines) and prose.get(number + 1) == mark and _goes_on(lines[number - 1], lines[number]):
            line += " " + lines[number].strip().removeprefix(mark)
            number += 1
        indent = re.match(r"\s*", line).group()  # type: ignore[union-attr]
        wrapped += textwrap.wrap(
            line.strip(), width, initial_indent=indent, subsequent_indent=indent + mark, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(wrapped)


def _goes_on(line: str, following: str) -> bool:
    """Whether a sentence goes on in the next line: the first is filled, and the next begins nothing of its own."""
    words = following.strip().removeprefix("# ")
    starts = not words or words.startswith('"""') or re.match(r"\w+:|[*-] ", words)
    return len(line) >= FILLED_LETTERS and not starts and not line.rstrip().endswith('"""')


def _prose_lines(source: str) -> dict[int, str]:
    """Lines that hold nothing but prose, as {line number: what a line that goes on begins with}."""
    prose: dict[int, str] = {}
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source + "\n").readline):
        first, last = token.start[0], token.end[0]
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            prose[first] = "# "
        elif token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            prose.update(dict.fromkeys(range(first, last + 1), ""))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    return prose


def _assignment(module: Any, name: str) -> str:
    """The source of `name = ...` in a module, with the comment above it."""
    text = inspect.getsource(module)
    lines = text.splitlines()
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            start = node.lineno - 1
            while start and lines[start - 1].startswith("#"):
                start -= 1
            return "\n".join(lines[start : node.end_lineno])
    raise ValueError(f"{module.__name__} assigns no {name}")
