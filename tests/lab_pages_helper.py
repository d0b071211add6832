"""What the tests of the lab pages share: a page run from records alone, and what it showed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from speedlab import lab
from speedlab.publishing.execute import read_source
from speedlab.publishing.plotting import alt_text

LABS = Path(__file__).resolve().parents[1] / "notebooks" / "labs"


def run_page(stem: str) -> None:
    """Execute the code cells of a lab one after another, with the parameters of a run that only shows records."""
    scope: dict[str, Any] = {}
    for cell in read_source(LABS / f"{stem}.py").cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, stem, "exec"), scope)
            if "parameters" in cell.metadata.get("tags", ()):
                scope["source"] = "recorded"


def watch(monkeypatch: pytest.MonkeyPatch, experiments: Path) -> list[str]:
    """The texts that labs show from now on, figures by their alternative text. experiments: folder of the records."""
    seen: list[str] = []
    monkeypatch.delenv("SPEEDLAB_RUN", raising=False)
    monkeypatch.setattr(lab, "committed_experiments", lambda: experiments)
    monkeypatch.setattr(lab, "show_markdown", seen.append)
    monkeypatch.setattr(lab, "show_svg", lambda figure: seen.append(alt_text(figure)))
    monkeypatch.setattr(lab, "show_result", lambda result, text: seen.append(text))
    return seen
