"""The result table of README is the one that the committed records make."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedlab.errors import BadInput
from speedlab.publishing.readme import END, START, updated

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_table_is_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert updated(text) == text, "run `python -m speedlab.publishing.readme`"


def test_a_stale_table_is_replaced_and_nothing_else() -> None:
    stale = f"before\n{START}\n\n| old | table |\n\n{END}\nafter\n"
    fresh = updated(stale)
    assert fresh.startswith(f"before\n{START}\n") and fresh.endswith(f"{END}\nafter\n")
    assert "| old | table |" not in fresh
    assert updated(fresh) == fresh


def test_missing_marks_are_one_line() -> None:
    with pytest.raises(BadInput, match=r"must hold the line"):
        updated("no table here")
