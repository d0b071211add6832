"""The reader's exam: the page, the place and the sentence of each answer are still in the book."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

from speedlab.publishing.formatting import words_of
from speedlab.publishing.generated import FOLDER, generate, reference_device
from speedlab.publishing.sources import find_chapters, find_labs
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_records

ROOT = Path(__file__).resolve().parents[1]
BOOK, NOTEBOOKS = ROOT / "book", ROOT / "notebooks"
QUESTIONS = tomllib.loads((ROOT / "tests" / "exam.toml").read_text(encoding="utf-8"))["question"]
FIELDS = {"question", "answer", "page", "anchor", "sentence"}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fragments that pages include, made from the committed records."""
    unwanted = shutil.ignore_patterns("_build", FOLDER, "chapters", "labs", "records", "experiments")
    book = Path(shutil.copytree(BOOK, tmp_path_factory.mktemp("exam") / "book", ignore=unwanted))
    generate(book)
    return book / FOLDER


def source_of(page: str, generated: Path) -> str:
    """A page as its sources say it: a notebook's prose and metadata, or Markdown with its fragments."""
    if "/" in page:
        folder, stem = page.split("/")
        path = {"chapters": find_chapters, "labs": find_labs}[folder](NOTEBOOKS)[stem]
        return re.sub(r"^# ?", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    words = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    fragments = rf"```\{{include\}} {FOLDER}/(\S+)\n```"
    return re.sub(fragments, lambda match: (generated / match[1]).read_text(encoding="utf-8"), words)


def anchors(source: str) -> set[str]:
    """Headings, and names of figures."""
    headings = {heading.strip() for heading in re.findall(r"^#+ (.+)$", source, re.MULTILINE)}
    figures = re.findall(r"^:name: (\S+)$", source, re.MULTILINE) + re.findall(r'"name": "(fig-[^"]+)"', source)
    return headings | set(figures)


def squeezed(words: str) -> str:
    return " ".join(words.split())


def missing(question: dict, generated: Path) -> list[str]:
    """What of a question's answer the book does not hold."""
    source = source_of(question["page"], generated)
    found = []
    if question["anchor"] not in anchors(source):
        found.append(f"{question['page']} has no heading or figure {question['anchor']!r}")
    if squeezed(question["sentence"]) not in squeezed(source):
        found.append(f"{question['page']} does not say {question['sentence']!r}")
    return found


def test_there_are_thirty_questions_and_each_is_asked_once() -> None:
    assert len(QUESTIONS) == 30 == len({question["question"] for question in QUESTIONS})
    assert all(set(question) - {"results"} == FIELDS for question in QUESTIONS)
    assert all(all(question[name].strip() for name in FIELDS) for question in QUESTIONS)


def test_every_chapter_is_asked_about() -> None:
    asked = {question["page"] for question in QUESTIONS}
    assert {f"chapters/{stem}" for stem in find_chapters(NOTEBOOKS)} <= asked


def test_every_page_is_in_the_contents() -> None:
    contents = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    files = {entry["file"] for part in contents["parts"] for entry in part["chapters"]} | {contents["root"]}
    files |= {f"labs/{stem}" for stem in find_labs(NOTEBOOKS)}  # the build adds those
    assert {question["page"] for question in QUESTIONS} <= files


@pytest.mark.parametrize("question", QUESTIONS, ids=[f"{number:02}" for number in range(1, len(QUESTIONS) + 1)])
def test_page_place_and_sentence_are_there(question: dict, generated: Path) -> None:
    assert missing(question, generated) == []


def test_a_sentence_or_a_place_that_is_gone_is_found_out(generated: Path) -> None:
    question = QUESTIONS[0]
    assert missing(question | {"sentence": "The model holds one parameter."}, generated)
    assert missing(question | {"anchor": "fig-of-nothing"}, generated)


def test_answers_that_need_a_record_get_its_numbers() -> None:
    rows = {(row["device"], row["ladder"], row["rung"]): row for row in report_rows(read_records(committed_root()))}
    device = reference_device(BOOK)
    asked = [question for question in QUESTIONS if "results" in question]
    assert asked
    for question in asked:
        words = []
        for target in question["results"]:
            name, key = target.split(":")
            words.append(words_of(rows[(device, *name.split("/"))], key))
        assert re.search(r"\d", question["answer"].format(*words))


def test_no_answer_types_a_measured_number() -> None:
    words = " ".join(question["answer"] for question in QUESTIONS)
    assert not re.search(r"\d[\d,.]*\s*(?:tokens/s|ms\b|x (?:faster|slower))", words)


def test_the_log_has_a_row_for_each_sitting_or_says_that_there_was_none() -> None:
    log = (ROOT / "tests" / "exam_log.md").read_text(encoding="utf-8")
    rows = [line for line in log.splitlines() if re.match(r"\| (?!sitting|---)", line)]
    assert rows
    assert ("none yet" in rows[0]) == ("No reader has taken the exam yet." in log)
