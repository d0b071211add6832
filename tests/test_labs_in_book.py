"""Labs beside the chapters: shown from the records by default, measured when asked for, always a page of the book."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
import yaml
from test_book_gate import executed
from toy_chapters import toy_source, write_toys

from speedlab.errors import BadInput, SpeedLabError
from speedlab.publishing import book, reproduce
from speedlab.publishing.contents import READING_ORDER, contents_with_labs
from speedlab.publishing.run_folder import Chapter, Run, newest_complete
from speedlab.publishing.sources import find_labs, select

MACHINE = {"machine_id": "0123456789ab", "torch": "2.13.0", "python": "3.11.7"}
TOC = """\
format: jb-book
root: intro
parts:
- caption: One
  chapters:
  - file: chapters/01_a
- caption: End
  chapters:
  - file: results
"""
LAB = 'assert source == "recorded" or source == "auto"'


def notebooks_with_labs(root: Path, labs: dict[str, str]) -> Path:
    notebooks = write_toys(root / "notebooks", {"01_a": toy_source("01_a")})
    write_toys(notebooks / "labs", labs)
    return notebooks


def plan(notebooks: Path, runs: Path, **changes) -> Run:
    return reproduce.plan(notebooks=notebooks, runs=runs, profile="smoke", machine=MACHINE, **changes)


@pytest.fixture(autouse=True)
def _experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of committed experiments is one of this test; the package stays as it is while tests run."""
    (tmp_path / "experiments" / "nvidia-h200").mkdir(parents=True)
    monkeypatch.setattr(reproduce, "committed_experiments", lambda: tmp_path / "experiments")
    monkeypatch.setattr(reproduce, "source_hash", lambda: "1" * 64)


def test_a_lab_shows_records_unless_it_is_asked_to_measure(tmp_path: Path) -> None:
    notebooks = notebooks_with_labs(tmp_path, {"batch": toy_source("batch", LAB)})
    runs = tmp_path / "runs"
    run = reproduce.reproduce(plan(notebooks, runs), notebooks=notebooks)
    assert [(c.chapter, c.status, c.lab, c.shown_only) for c in run.chapters] == [
        ("01_a", "completed", False, False), ("batch", "completed", True, True),
    ]  # fmt: skip
    assert 'source = "recorded"' in run.page("batch").read_text().replace('\\"', '"')
    assert reproduce.to_run(plan(notebooks, runs)) == []
    # A new recorded experiment makes the page stale, and no chapter.
    (tmp_path / "experiments" / "nvidia-h200" / "new.json").write_text("{}")
    assert reproduce.to_run(plan(notebooks, runs)) == ["batch"]

    measuring = plan(notebooks, runs, labs=True)
    assert (measuring.folder, reproduce.to_run(measuring)) == (run.folder, ["batch"])
    reproduce.reproduce(measuring, notebooks=notebooks)
    assert "injected-parameters" in run.page("batch").read_text()
    # What was measured is as good as what only shows records.
    assert reproduce.to_run(plan(notebooks, runs)) == []


def test_a_lab_added_later_joins_the_run_and_a_failed_one_keeps_it_from_the_book(tmp_path: Path) -> None:
    notebooks = notebooks_with_labs(tmp_path, {})
    runs = tmp_path / "runs"
    first = reproduce.reproduce(plan(notebooks, runs), notebooks=notebooks)
    assert first.complete
    write_toys(notebooks / "labs", {"batch": toy_source("batch", "1 / 0")})
    again = plan(notebooks, runs)
    assert again.folder == first.folder and reproduce.to_run(again) == ["batch"]
    assert again.complete  # nobody has tried the lab yet
    failed = reproduce.reproduce(again, notebooks=notebooks)
    assert not failed.complete and failed.chapter("01_a").status == "completed"
    with pytest.raises(SpeedLabError, match="no complete run"):
        newest_complete(runs)


def test_only_names_labs_too_and_a_lab_is_not_named_like_a_chapter(tmp_path: Path) -> None:
    assert select(["01_a", "10_b", "batch"], "batch,1") == ["01_a", "batch"]
    with pytest.raises(BadInput, match=r"unknown chapter 'bach': choose one of 01_a, batch"):
        select(["01_a", "batch"], "bach")
    write_toys(tmp_path / "labs", {"2_wrong": ""})
    with pytest.raises(BadInput, match=r"2_wrong\.py is named like a chapter"):
        find_labs(tmp_path)


def test_the_contents_name_every_lab_once_and_keep_an_order_that_is_given(tmp_path: Path) -> None:
    toc = tmp_path / "_toc.yml"
    toc.write_text(TOC)
    parts = yaml.safe_load(contents_with_labs(toc, ["a", "b"]))["parts"]
    assert [part["caption"] for part in parts] == ["One", "Labs", "End"]
    assert parts[1]["chapters"] == [{"file": "labs/a"}, {"file": "labs/b"}]
    toc.write_text(TOC + "- caption: Labs\n  chapters:\n  - file: labs/b\n")
    parts = yaml.safe_load(contents_with_labs(toc, ["a", "b"]))["parts"]
    assert parts[2]["chapters"] == [{"file": "labs/b"}, {"file": "labs/a"}]
    assert yaml.safe_load(contents_with_labs(toc, ["b"])) == yaml.safe_load(toc.read_text())
    toc.write_text("format: jb-book\nroot: intro\nchapters:\n- file: chapters/01_a\n")
    parts = yaml.safe_load(contents_with_labs(toc, ["a"]))["parts"]
    assert [part["chapters"] for part in parts] == [[{"file": "chapters/01_a"}], [{"file": "labs/a"}]]
    toc.write_text("a: [")
    with pytest.raises(BadInput, match=r"cannot read .*_toc\.yml"):
        contents_with_labs(toc, [])


def test_labs_stand_in_reading_order(tmp_path: Path) -> None:
    (toc := tmp_path / "_toc.yml").write_text(TOC)
    parts = yaml.safe_load(contents_with_labs(toc, ["another", "compiler", "attention"]))["parts"]
    assert [page["file"] for page in parts[1]["chapters"]] == ["labs/attention", "labs/compiler", "labs/another"]
    committed = find_labs(Path(__file__).parents[1] / "notebooks")
    assert sorted(READING_ORDER) == sorted(committed)


def test_the_book_shows_labs_that_ran_and_the_source_of_those_that_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebooks = notebooks_with_labs(
        tmp_path, {"ran": toy_source("ran", "print('hello')"), "waits": toy_source("waits", "print('later')")}
    )
    folder = tmp_path / "book"
    folder.mkdir()
    (folder / "_config.yml").write_text(
        'title: Toy\nonly_build_toc_files: true\nexecute: {execute_notebooks: "off"}\n'
        'exclude_patterns: ["_generated/**"]\n'
    )
    (folder / "_toc.yml").write_text(TOC)
    (folder / "intro.md").write_text("# Intro\n\nSee [the other lab](labs/waits.ipynb).\n")
    (folder / "results.md").write_text("# Results\n\nWords.\n")
    asked = {"profile": "smoke", "steps": 3, "source": "auto"}
    chapters = [
        Chapter(chapter="01_a", status="completed"), Chapter(chapter="ran", lab=True, status="completed"),
        Chapter(chapter="waits", lab=True),
    ]  # fmt: skip
    run = Run(
        folder=tmp_path / "runs" / "one", kernel="python3", source_hash="1", machine={}, chapters=chapters, **asked
    )
    run.write()
    for name, source in (("01_a", notebooks / "01_a.py"), ("ran", notebooks / "labs" / "ran.py")):
        page = executed(source)
        output = page.cells[-1].outputs[0].data["application/vnd.speedlab.result+json"]
        page.cells[-1].outputs[0].data["application/vnd.speedlab.result+json"] = output | {"chapter": name}
        nbformat.write(page, run.page(name))
    monkeypatch.setattr(book, "write_tables", lambda root, run: None)
    html = book.build_book(tmp_path).parent
    assert "hello" in (html / "labs" / "ran.html").read_text()
    waits = (html / "labs" / "waits.html").read_text()
    assert "did not execute this page" in waits and "later" in waits
    assert 'href="https://colab.research.google.com/' in waits and "notebooks/colab/waits.ipynb" in waits
    assert "Labs" in (html / "intro.html").read_text()
    # A lab that was tried and failed is refused like a chapter.
    spoiled = json.loads(run.page("ran").read_text())
    spoiled["cells"][-1]["outputs"] = []
    run.page("ran").write_text(json.dumps(spoiled))
    with pytest.raises(SpeedLabError, match=r"ran: its last code cell holds no result"):
        book.build_book(tmp_path)
