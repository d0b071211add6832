"""What others ran into with notebooks and books, each as a test of what this program does instead.

The numbers are stable names of the entries; see test_pitfalls.py for those of the measuring side.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
import yaml
from test_book_gate import executed
from toy_chapters import toy_source, write_toys

from speedlab.errors import BadInput, SpeedLabError
from speedlab.publishing import reproduce
from speedlab.publishing.book import check_run
from speedlab.publishing.colab import colab_notebook
from speedlab.publishing.execute import check_kernel, check_parameters, convert, read_source
from speedlab.publishing.executed import problems_of
from speedlab.publishing.run_folder import Run
from speedlab.publishing.sources import find_chapters, find_labs
from speedlab.publishing.summary import exit_code
from speedlab.repository import colab_url

ROOT = Path(__file__).resolve().parents[1]
LABS = find_labs(ROOT / "notebooks")
SOURCES = find_chapters(ROOT / "notebooks") | LABS
MACHINE = {"machine_id": "0123456789ab", "torch": "2.13.0", "python": "3.11.7"}
ASKED = {"profile": "smoke", "steps": 7, "source": "auto"}

TOYS = {
    "01_killed": toy_source(
        "01_killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    ),
    "02_exits": toy_source("02_exits", "import sys\nsys.exit(0)"),
    # A header that names no kernel, a file written to where it runs, a plot.
    "03_plain": re.sub(
        r"# kernelspec:(?s:.*?)# ---", "# ---",
        toy_source(
            "03_plain",
            "import os, pathlib\nimport matplotlib.pyplot as plt\npathlib.Path('here.txt').write_text(os.getcwd())\n"
            "plt.plot([1, 2]);",
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The toys, executed from another folder than theirs, over an earlier page of the first."""
    folder = tmp_path_factory.mktemp("pitfalls")
    notebooks = write_toys(folder / "notebooks", TOYS)
    planned = reproduce.plan(notebooks=notebooks, runs=folder / "runs", profile="smoke", machine=MACHINE)
    planned.folder.mkdir(parents=True)
    planned.page("01_killed").write_text("the page of an earlier run")
    return reproduce.reproduce(planned, notebooks=notebooks)


def test_03_parameters_are_never_ignored_quietly(tmp_path: Path) -> None:
    sources = {
        "01_untagged": toy_source("01_untagged").replace(' tags=["parameters"]', ""),
        "02_misspelt": toy_source("02_misspelt").replace("steps: int", "stepz: int"),
        "03_own_mind": toy_source("03_own_mind"),
    }
    notebooks = write_toys(tmp_path, sources)
    for stem, words in (("01_untagged", "no cell tagged parameters"), ("02_misspelt", "has no parameter 'steps'")):
        convert(notebooks / f"{stem}.py", tmp_path / f"{stem}.ipynb")
        with pytest.raises(BadInput, match=words):
            check_parameters(tmp_path / f"{stem}.ipynb", ASKED)
    # What it says that it ran with is compared with what was asked for.
    assert "it ran with steps=3, asked was 7" in problems_of(
        executed(notebooks / "03_own_mind.py"), "01_a", asked=ASKED
    )


@pytest.mark.parametrize("stem", SOURCES)
def test_03_every_notebook_has_one_parameters_cell_in_both_forms(stem: str) -> None:
    for cells in (read_source(SOURCES[stem]).cells, nbformat.reads(colab_notebook(SOURCES[stem]), 4).cells):
        assert sum("parameters" in cell.metadata.get("tags", ()) for cell in cells) == 1


def test_05_a_notebook_that_failed_is_not_published(run: Run, tmp_path: Path) -> None:
    with pytest.raises(SpeedLabError, match=r"cannot be published: .*02_exits: not executed"):
        check_run(run, write_toys(tmp_path / "notebooks", TOYS))
    assert not run.page("02_exits").exists() and (run.folder / "failed" / "02_exits.ipynb").is_file()


def test_06_a_killed_kernel_is_out_of_memory_whatever_the_notebook_says(run: Run) -> None:
    chapter = run.chapter("01_killed")
    assert chapter.status == "out_of_memory"
    assert "probably out of memory" in chapter.reason and "code cell 3 (import os, signal)" in chapter.reason
    left = nbformat.read(run.folder / "failed" / "01_killed.ipynb", as_version=4)
    cells = [cell for cell in left.cells if cell.cell_type == "code"]
    # The cell that killed it counts as completed for papermill, and so does the one after it.
    assert cells[-1].metadata["papermill"]["status"] == "completed"
    assert run.page("01_killed").read_text() == "the page of an earlier run"
    assert run.chapter("03_plain").status == "completed" and exit_code(run, list(TOYS)) == 1


def test_07_a_notebook_that_leaves_early_is_a_failure(run: Run) -> None:
    assert run.chapter("02_exits").status == "failed" and "sys.exit" in run.chapter("02_exits").reason


@pytest.mark.parametrize("stem", SOURCES)
def test_07_and_09_no_source_hides_a_failure_or_holds_what_was_injected(stem: str) -> None:
    notebook = read_source(SOURCES[stem])
    tags = {tag for cell in notebook.cells for tag in cell.metadata.get("tags", ())}
    assert tags.isdisjoint({"raises-exception", "injected-parameters"})
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert re.findall(r"sys\.exit|(?<![\w.])exit\(|^\s*[!%]|sys\.path", code, re.MULTILINE) == []


def test_08_a_source_without_a_kernel_runs_with_the_one_of_this_environment(run: Run) -> None:
    assert run.chapter("03_plain").status == "completed"
    page = nbformat.read(run.page("03_plain"), as_version=4)
    assert page.metadata.papermill.parameters == {"profile": "smoke", "steps": 0, "source": "auto"}
    with pytest.raises(BadInput, match=r"unknown kernel 'my-conda-env': choose one of .*python3"):
        check_kernel("my-conda-env")


def test_09_conversion_goes_one_way(tmp_path: Path) -> None:
    source = write_toys(tmp_path, {"01_a": toy_source("01_a")}) / "01_a.py"
    before = (source.read_bytes(), source.stat().st_mtime_ns)
    convert(source, tmp_path / "01_a.ipynb")
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    texts += [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", ".ci/run", "README.md")]
    assert [text for text in texts if "--sync" in text or "jupytext.write" in text] == []


@pytest.mark.parametrize("stem", SOURCES)
def test_24_open_in_colab_opens_a_notebook_that_is_there(stem: str) -> None:
    links = re.findall(r"https://colab\.research\.google\.com/[^\s)\"'>\]]+", SOURCES[stem].read_text(encoding="utf-8"))
    assert len(links) == 1 or stem in LABS  # the page of a lab gets the same link when it is staged
    path = re.fullmatch(r".*/blob/main/(notebooks/colab/\w+\.ipynb)", [*links, colab_url(stem)][0])[1]
    assert path == f"notebooks/colab/{stem}.ipynb"
    assert nbformat.read(ROOT / path, as_version=4).nbformat == 4
    if (ROOT / ".git").exists():
        ignored = subprocess.run(["git", "-C", str(ROOT), "check-ignore", "-q", path], check=False)
        assert ignored.returncode == 1  # it is committed with the rest


def test_25_jupyter_book_is_version_1() -> None:
    assert importlib.metadata.version("jupyter-book").startswith("1.")
    pattern = re.compile(r"jupyter-book(?![\w.-]*\s*(?:>=1|==1))[\"']?\s*$", re.MULTILINE)
    files = ("pyproject.toml", "environment.yml", "constraints.txt", "Makefile", "README.md", ".ci/run")
    unpinned = [name for name in files if pattern.search((ROOT / name).read_text(encoding="utf-8"))]
    assert unpinned == []


def test_37_nothing_is_glued_across_pages() -> None:
    pages = [*(ROOT / "book").glob("*.md"), *SOURCES.values()]
    assert [page.name for page in pages if re.search(r"\bglue\b", page.read_text(encoding="utf-8"))] == []


def test_38_the_book_loads_no_widgets_and_no_scripts_from_elsewhere() -> None:
    config = yaml.safe_load((ROOT / "book" / "_config.yml").read_text(encoding="utf-8"))
    assert config["sphinx"]["config"]["nb_ipywidgets_js"] == {} and "launch_buttons" not in config
    imported = set()
    for source in SOURCES.values():
        for cell in (cell for cell in read_source(source).cells if cell.cell_type == "code"):
            nodes = list(ast.walk(ast.parse(cell.source)))
            imported |= {alias.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for alias in n.names}
            imported |= {n.module.split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    assert imported.isdisjoint({"ipywidgets", "plotly", "bokeh", "altair"})
    pages = [*(ROOT / "book").glob("*.md"), *SOURCES.values()]
    assert [page.name for page in pages if "<script" in page.read_text(encoding="utf-8")] == []


def test_39_a_chapter_works_in_its_run_folder_wherever_it_was_started(run: Run) -> None:
    assert (run.folder / "here.txt").read_text() == str(run.folder)


def test_40_a_kernel_draws_with_a_backend_of_its_own(run: Run) -> None:
    page = nbformat.read(run.page("03_plain"), as_version=4)
    shown = [output for cell in page.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown)
