"""The table of contents that jupyter-book is given: the committed one, with the labs that it does not name added.

It knows names of files only; what a page says and whether it is fit to be shown is decided elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speedlab.errors import BadInput
from speedlab.publishing.sources import LABS

CAPTION = "Labs"
# As a reader would go through them: inside the chapters' changes, what a card can hold, what feeds it, all of it.
READING_ORDER = (
    "attention", "precision", "compiler", "checkpointing", "accumulation", "memory_planner", "batch_probe",
    "data_pipeline", "together", "past_the_ladder",
)  # fmt: skip


def contents_with_labs(toc: Path, labs: list[str]) -> str:
    """The text of a `_toc.yml` that names every lab once.

    Labs that the committed file names keep their place there; the others follow in the part "Labs", in reading
    order, and those that this order does not know in the order given. Where the file has no such part, it follows the
    part of the chapters, or stands before the last one.
    """
    import yaml

    try:
        contents: dict[str, Any] = yaml.safe_load(toc.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise BadInput(f"cannot read {toc}: {' '.join(str(error).split())[:200]}") from error
    ordered = [lab for lab in READING_ORDER if lab in labs] + [lab for lab in labs if lab not in READING_ORDER]
    missing = [lab for lab in ordered if f"{LABS}/{lab}" not in _files(contents)]
    if missing:
        if "parts" not in contents:  # a book without parts has one list of chapters
            contents["parts"] = [{"caption": "Chapters", "chapters": contents.pop("chapters", [])}]
        parts = contents["parts"]
        part = next((part for part in parts if part.get("caption") == CAPTION), None)
        if part is None:
            part = {"caption": CAPTION, "chapters": []}
            chapters = [index for index, one in enumerate(parts) if any(f.startswith("chapters/") for f in _files(one))]
            parts.insert(chapters[-1] + 1 if chapters else max(1, len(parts) - 1), part)
        part["chapters"] = [*part.get("chapters", []), *({"file": f"{LABS}/{lab}"} for lab in missing)]
    return yaml.safe_dump(contents, sort_keys=False, allow_unicode=True)


def _files(value: Any) -> set[str]:
    """Every `file:` anywhere below a value of the table of contents."""
    if isinstance(value, list):
        return set().union(*map(_files, value))
    if not isinstance(value, dict):
        return set()
    own = {value["file"].removesuffix(".ipynb")} if isinstance(value.get("file"), str) else set()
    return own.union(*(_files(item) for item in value.values()))
