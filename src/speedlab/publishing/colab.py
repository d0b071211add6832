"""Converts chapters and labs for Colab: notebooks without outputs that install the package first. One direction only.

The result depends on the sources alone, byte for byte: nbformat 4.4 knows no random cell ids.
`python -m speedlab.publishing.colab` writes `notebooks/colab/`, which git keeps and a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path

from speedlab.publishing.checkout import checkout_root
from speedlab.publishing.execute import read_source
from speedlab.publishing.sources import find_chapters, find_labs
from speedlab.records.store import write_text_atomic
from speedlab.repository import BRANCH, REPOSITORY_URL

# Colab has torch, numpy and matplotlib loaded and fitting its driver; replacing one breaks the session, so nothing
# that the package depends on is installed but tiktoken, whose own needs Colab brings along.
INSTALL_CELL = f"""\
# Installs the package where it is missing, and leaves PyTorch and NumPy as they are.
import importlib.metadata, importlib.util, subprocess, sys

if importlib.util.find_spec("speedlab") is None:
    before = {{name: importlib.metadata.version(name) for name in ("torch", "numpy")}}
    packages = ["tiktoken", "speedlab @ git+{REPOSITORY_URL}@{BRANCH}"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *packages], check=True)
    importlib.invalidate_caches()
    after = {{name: importlib.metadata.version(name) for name in before}}
    assert after == before, f"the installation changed {{before}} into {{after}}: restart the runtime"
"""


def colab_notebook(source: Path) -> str:
    """The text of one converted chapter: its cells, with the install cell before the first code cell."""
    cells = [
        {"cell_type": cell.cell_type, "metadata": _tags(cell.metadata), "source": cell.source.splitlines(True)}
        for cell in read_source(source).cells
    ]
    first_code = next((n for n, cell in enumerate(cells) if cell["cell_type"] == "code"), len(cells))
    install = {"cell_type": "code", "metadata": {}, "source": INSTALL_CELL.rstrip("\n").splitlines(True)}
    cells.insert(first_code, install)
    for cell in cells:
        if cell["cell_type"] == "code":
            cell |= {"execution_count": None, "outputs": []}
    notebook = {
        "cells": cells,
        "metadata": {
            "accelerator": "GPU",
            "colab": {"provenance": []},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write_colab_notebooks(notebooks: Path, target: Path) -> list[Path]:
    """Convert every chapter and lab into `target` and remove notebooks there that have no source any more."""
    written = []
    for stem, source in (find_chapters(notebooks) | find_labs(notebooks)).items():
        path = target / f"{stem}.ipynb"
        write_text_atomic(path, colab_notebook(source))
        written.append(path)
    for path in target.glob("*.ipynb"):
        if path not in written:
            path.unlink()
    return written


def _tags(metadata: dict) -> dict:
    return {"tags": list(metadata["tags"])} if metadata.get("tags") else {}


if __name__ == "__main__":
    folder = checkout_root() / "notebooks"
    for path in write_colab_notebooks(folder, folder / "colab"):
        print(path.relative_to(folder.parent))
