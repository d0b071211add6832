"""Which notebooks there are: the ten chapters in order, and the labs. It opens none of them and runs nothing."""

from __future__ import annotations

from pathlib import Path

from speedlab.errors import BadInput, check_choice

LABS = "labs"  # folder of the labs, below notebooks/ and below book/


def find_chapters(notebooks: Path) -> dict[str, Path]:
    """The chapter sources in order, as {stem: path}: files named like `01_causal_mask.py`."""
    found = {path.stem: path for path in sorted(notebooks.glob("[0-9][0-9]_*.py"))}
    if not found:
        raise BadInput(f"no chapters in {notebooks}: expected files named like 01_causal_mask.py")
    return found


def find_labs(notebooks: Path) -> dict[str, Path]:
    """The lab sources by name, as {stem: path}; none where there is no such folder. A number is a chapter's mark."""
    found = {path.stem: path for path in sorted((notebooks / LABS).glob("*.py"))}
    for stem, path in found.items():
        if stem[:1].isdigit():
            raise BadInput(f"{path} is named like a chapter: the name of a lab must not begin with a digit")
    return found


def select(names: list[str], only: str | None) -> list[str]:
    """Those that `only` names, in order: stems, or the numbers of chapters, joined by commas; all of them for None."""
    if only is None:
        return names
    numbers = {str(int(name[:2])): name for name in names if name[:2].isdigit()}
    chosen = set()
    for word in (part.strip() for part in only.split(",")):
        name = numbers.get(word.lstrip("0"), word)
        check_choice("chapter", name, names)
        chosen.add(name)
    return [name for name in names if name in chosen]
