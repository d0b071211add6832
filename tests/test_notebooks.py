"""The ten chapters and the labs as sources, and their Colab forms: what must hold before anything is executed."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import nbformat
import papermill
import pytest

from speedlab.ladder import chapters
from speedlab.publishing.colab import colab_notebook, write_colab_notebooks
from speedlab.publishing.execute import convert, read_source
from speedlab.publishing.sources import find_chapters, find_labs
from speedlab.repository import colab_url

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
STEMS = tuple(chapters())
HEADINGS = (
    "What changes", "Why it should be faster", "The change", "Measured", "What ran", "Same training?", "On other cards",
    "What we learned", "Try it yourself",
)  # fmt: skip
PARAMETERS = {"profile": ("str", '"auto"'), "steps": ("int", "0"), "source": ("str", '"auto"')}
# What hides a failure from papermill, or works in one folder only.
FORBIDDEN = {
    "leaving with an exit code that looks like success": r"\b(sys\.exit|os\._exit|exit|quit)\s*\(",
    "a shell or magic command, whose failure goes unnoticed": r"^\s*[!%]",
    "a path trick instead of the installed package": r"\bsys\.path\b",
    "a path of one machine": r"""["'](/|~/|[A-Z]:\\)""",
}

LABS = tuple(find_labs(NOTEBOOKS))
every_chapter = pytest.mark.parametrize("stem", (*STEMS, *LABS))  # labs keep to the same form


def source_of(stem: str) -> Path:
    return (find_chapters(NOTEBOOKS) | find_labs(NOTEBOOKS))[stem]


def code_cells(stem: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in read_source(source_of(stem)).cells if cell.cell_type == "code"]


def test_there_are_exactly_the_ten_chapters_of_the_ladder() -> None:
    assert len(STEMS) == 10
    assert sorted(path.name for path in NOTEBOOKS.glob("*.py")) == [f"{stem}.py" for stem in STEMS]
    assert list(find_chapters(NOTEBOOKS)) == list(STEMS)
    assert list(NOTEBOOKS.glob("*.ipynb")) == []


@every_chapter
def test_the_header_names_the_kernel_that_every_machine_has(stem: str) -> None:
    kernel = read_source(source_of(stem)).metadata.kernelspec
    assert (kernel.name, kernel.language) == ("python3", "python")


@every_chapter
def test_there_is_one_parameters_cell_with_the_common_parameters(stem: str, tmp_path: Path) -> None:
    tagged = [cell for cell in code_cells(stem) if "parameters" in cell.metadata.get("tags", ())]
    assert len(tagged) == 1
    convert(source_of(stem), tmp_path / "chapter.ipynb")
    found = papermill.inspect_notebook(str(tmp_path / "chapter.ipynb"))
    assert {name: (p["inferred_type_name"], p["default"]) for name, p in found.items()} == PARAMETERS
    assert [name for name, parameter in found.items() if not parameter["help"]] == []


@every_chapter
def test_nothing_that_papermill_injected_or_forgives_is_in_the_source(stem: str) -> None:
    tags = {tag for cell in read_source(source_of(stem)).cells for tag in cell.metadata.get("tags", ())}
    assert tags.isdisjoint({"injected-parameters", "raises-exception", "skip-execution"})


@every_chapter
@pytest.mark.parametrize("why", FORBIDDEN)
def test_no_code_hides_a_failure_or_depends_on_a_folder(stem: str, why: str) -> None:
    pattern = re.compile(FORBIDDEN[why], re.MULTILINE)
    assert [cell.source for cell in code_cells(stem) if pattern.search(cell.source)] == [], why


@every_chapter
def test_the_headings_are_those_of_every_chapter_in_order(stem: str) -> None:
    text = "\n".join(cell.source for cell in read_source(source_of(stem)).cells if cell.cell_type == "markdown")
    assert tuple(re.findall(r"^## (.+?)\s*$", text, re.MULTILINE)) == HEADINGS
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


@every_chapter
def test_a_chapter_is_short_and_defines_no_class(stem: str) -> None:
    cells = code_cells(stem)
    assert 6 <= len(cells) <= 11
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell.source))]
    assert [node.name for node in nodes if isinstance(node, ast.ClassDef)] == []
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [node.name for node in functions if node.end_lineno - node.lineno > 5] == []


@every_chapter
def test_no_measured_number_is_typed_in_prose(stem: str) -> None:
    text = "\n".join(cell.source for cell in read_source(source_of(stem)).cells if cell.cell_type == "markdown")
    assert re.findall(r"[^\n]*\d\s?(?:tok/s|tokens/s|GiB reserved|ms per step|ms/step)[^\n]*", text) == []


@pytest.mark.parametrize("stem", LABS)
def test_a_lab_ends_with_its_result(stem: str) -> None:
    assert code_cells(stem)[-1].source == "lab.finish()"


@every_chapter
def test_every_colab_link_opens_this_chapter(stem: str) -> None:
    links = re.findall(r"https://colab\.research\.google\.com/[^\s)\"'>\]]+", source_of(stem).read_text())
    assert set(links) == {colab_url(stem)}
    assert colab_url(stem).endswith(f"/notebooks/colab/{stem}.ipynb")


@every_chapter
def test_the_colab_notebook_is_the_one_of_this_source(stem: str) -> None:
    """`make colab` writes it again."""
    assert (NOTEBOOKS / "colab" / f"{stem}.ipynb").read_text(encoding="utf-8") == colab_notebook(source_of(stem))


@every_chapter
def test_the_colab_notebook_holds_the_cells_of_the_source_and_two_more(stem: str) -> None:
    notebook = json.loads(colab_notebook(source_of(stem)))
    nbformat.validate(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 4)
    assert [cell for cell in notebook["cells"] if "id" in cell or cell.get("outputs")] == []
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code[2:] == [cell.source for cell in code_cells(stem)]
    assert f'runtime_text("{stem}")' in code[1]
    assert sum("parameters" in cell["metadata"].get("tags", ()) for cell in notebook["cells"]) == 1


def test_the_install_cell_leaves_torch_and_numpy_alone() -> None:
    code = json.loads(colab_notebook(source_of(STEMS[0])))["cells"]
    install = "".join(next(cell for cell in code if cell["cell_type"] == "code")["source"])
    ast.parse(install)
    assert "--no-deps" in install and "check=True" in install and "restart the runtime" in install


def test_no_colab_notebook_is_without_a_source() -> None:
    assert sorted(path.stem for path in (NOTEBOOKS / "colab").iterdir()) == sorted((*STEMS, *LABS))


def test_conversion_removes_what_has_no_source(tmp_path: Path) -> None:
    (tmp_path / "99_gone.ipynb").write_text("{}")
    written = write_colab_notebooks(NOTEBOOKS, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(written) and len(written) == len(STEMS) + len(LABS)
