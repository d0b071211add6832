"""Which cells of a notebook a page shows folded or not at all. It reads code and runs none."""

from __future__ import annotations

import ast

# Cells that papermill or a reader needs and a page does not: shown as values in the chapter's own words.
HIDDEN_TAGS = {"parameters": "remove-input", "injected-parameters": "remove-cell"}
FOLDED = "hide-input"  # jupyter-book's: the code is there, behind a button
SHORT = 3  # lines of a call that says by itself what it shows


def page_tags(source: str, tags: list[str]) -> list[str]:
    """The tags of a code cell with those that a page needs added."""
    wanted = [HIDDEN_TAGS[tag] for tag in tags if tag in HIDDEN_TAGS]
    if only_lays_out(source):
        wanted.append(FOLDED)
    return tags + [tag for tag in wanted if tag not in tags]


def only_lays_out(source: str) -> bool:
    """Whether a cell does nothing but lay out tables and figures, at more than a glance's length.

    Which column of a table comes from which field of a record is no part of what a page teaches.
    """
    if len(source.strip().splitlines()) <= SHORT:
        return False
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # a line for the shell, which is something to be seen
        return False
    return any(_shows(statement) for statement in statements) and all(
        _shows(statement) or (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict))
        for statement in statements
    )


def _shows(statement: ast.stmt) -> bool:
    """`lab.show_table(...)` and its like, apart from `show_code`, which names what is to be read."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr.startswith("show_")
        and call.func.attr != "show_code"
    )
