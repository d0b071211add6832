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

# Colab has torch, numpy and matplotlib loaded and fitting its driver; replacing one breaks the session. So nothing is
# resolved: of the package's own needs those are installed that are not there, each without its needs.
KEPT = ("torch", "numpy")
NEEDED = {"tiktoken": "tiktoken", "typer": "typer", "rich": "rich", "pynvml": "nvidia-ml-py"}  # module: package
INSTALL_CELL = f"""\
# Installs the package and only what it lacks; PyTorch and NumPy stay as they are.
import importlib.metadata, importlib.util, subprocess, sys

kept = {{name: importlib.metadata.version(name) for name in {KEPT!r}}}
if importlib.util.find_spec("speedlab") is None:
    needed = {NEEDED!r}
    packages = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    packages.append("speedlab @ git+{REPOSITORY_URL}@{BRANCH}")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *packages], check=True)
    importlib.invalidate_caches()
    after = {{name: importlib.metadata.version(name) for name in kept}}
    assert after == kept, f"the installation changed {{kept}} into {{after}}: restart the runtime"
print("left as they are:", ", ".join(f"{{name}} {{version}}" for name, version in kept.items()))
"""
RUNTIME_CELL = """\
# What this runtime can do. To keep the results, set keep to True: they then go to your Drive, otherwise to ./runs.
import os

from speedlab.outlook import runtime_text

keep = False
if keep:
    from google.colab import drive

    drive.mount("/content/drive")
    os.environ["SPEEDLAB_RUNS"] = "/content/drive/MyDrive/speedlab-runs"
print(runtime_text("{stem}"))
"""


def colab_notebook(source: Path) -> str:
    """The text of one converted chapter: its cells, with two before the first code cell: install, and look around."""
    cells = [
        {"cell_type": cell.cell_type, "metadata": _tags(cell.metadata), "source": cell.source.splitlines(True)}
        for cell in read_source(source).cells
    ]
    first_code = next((n for n, cell in enumerate(cells) if cell["cell_type"] == "code"), len(cells))
    for text in (RUNTIME_CELL.format(stem=source.stem), INSTALL_CELL):
        cells.insert(first_code, {"cell_type": "code", "metadata": {}, "source": text.rstrip("\n").splitlines(True)})
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
