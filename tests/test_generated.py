"""What the pages include, from records to a strict build of the prose pages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from records_helper import make_record, skipped_record

from speedlab.errors import BadInput
from speedlab.ladder import NINE_STEPS, SIX_STEPS, chapters
from speedlab.publishing import facts
from speedlab.publishing.diagrams import DIAGRAMS, alt_text
from speedlab.publishing.generated import FOLDER, generate, reference_device
from speedlab.records.store import write_record
from speedlab.repository import REPOSITORY_URL, colab_url

BOOK = Path(__file__).resolve().parents[1] / "book"
PAGES = sorted(path.stem for path in BOOK.glob("*.md"))


@dataclass(frozen=True)
class Made:
    """A book that was generated once, from which tests only read."""

    book: Path
    records: Path
    run_records: Path
    paths: list[Path]


def copy_of_book(folder: Path) -> Path:
    """The book's own files, without anything that is generated."""
    unwanted = shutil.ignore_patterns("_build", FOLDER, "chapters", "records")
    return Path(shutil.copytree(BOOK, folder / "book", ignore=unwanted))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Made-up records of both ladders on one card and of a comparison of several, and a run of the toy on a CPU."""
    folder = tmp_path_factory.mktemp("made")
    records, run_records = folder / "records", folder / "run"
    for index, rung in enumerate(NINE_STEPS.keys[:-1]):
        write_record(records, make_record(rung, step_ms=250.0 if index < 2 else 260.0 - 10 * index))
    write_record(records, skipped_record("data_parallel", reason="4 processes need 4 GPUs, this machine has 1 GPU"))
    for index, rung in enumerate(SIX_STEPS.keys):
        write_record(records, make_record(rung, ladder="six-steps", step_ms=500.0 - 20 * index, session="six-steps-1"))
    for gpus in (1, 2):
        row = make_record(f"data_parallel_{gpus}", device="nvidia-h200-x2", step_ms=90.0 + gpus, session="two-gpus-1")
        write_record(records, row)
    for rung in ("baseline", "causal_mask"):
        write_record(run_records, make_record(rung, device="cpu", step_ms=40.0))
    book = copy_of_book(folder)
    stale = book / FOLDER / "nine-steps-some-old-card-speed.svg"
    stale.parent.mkdir()
    stale.write_text("<svg/>", encoding="utf-8")
    return Made(book, records, run_records, generate(book, run_records, records=records))


def fragment(book: Path, name: str) -> str:
    return (book / FOLDER / f"{name}.md").read_text(encoding="utf-8")


def included(page: str) -> set[str]:
    words = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    return {Path(name).stem for name in re.findall(rf"\{{include\}} {FOLDER}/(\S+)", words)}


def test_pages_include_every_fragment_and_no_other(made: Made) -> None:
    written = {path.stem for path in made.paths if path.suffix == ".md"}
    assert set().union(*(included(page) for page in PAGES)) == written


def test_every_returned_path_is_there_and_nothing_stale_beside_it(made: Made) -> None:
    assert sorted(made.paths) == sorted(path for path in (made.book / FOLDER).rglob("*") if path.is_file())
    assert {path.stem for path in made.paths if path.parent.name == "diagrams"} == set(DIAGRAMS)


def test_the_same_records_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    again = generate(copy_of_book(tmp_path), made.run_records, records=made.records)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in made.paths]


def test_measured_and_published_stand_apart_under_their_names(made: Made) -> None:
    words = fragment(made.book, "results_nine_steps")
    header = next(line for line in words.splitlines() if line.startswith("| rung"))
    assert header.split(" | ")[-1] == "published tokens/s |"
    assert "published GiB" in words, "in the table of details"
    assert "Measured: nvidia-h200, ladder nine-steps" in words
    baseline = next(line for line in words.splitlines() if line.startswith("| Baseline"))
    assert "| 32,768 |" in baseline, "8 x 1,024 tokens in 250 ms: measured"
    assert "| 12,525 |" in baseline, "published"
    published = fragment(made.book, "published")
    assert "12,525" in published and "32,768" not in published
    assert "Hatched bars" in words, "the caption of the figure says which bars are whose"


def test_every_figure_has_a_name_and_an_alternative_text(made: Made) -> None:
    for name in ("headline", "results_nine_steps", "results_six_steps"):
        words = fragment(made.book, name)
        figures = re.findall(r":::\{figure\} (\S+)\n:name: (\S+)\n:alt: \"(.+)\"\n", words)
        assert words.count("{figure}") == len(figures) > 0
        for file, label, alt in figures:
            assert (made.book / file).is_file()
            assert label == f"fig-{Path(file).stem}"
            assert len(alt) > 40


def test_the_roofline_stands_with_its_numbers_below(made: Made) -> None:
    words = fragment(made.book, "results_nine_steps")
    _, _, after = words.partition("nine-steps-nvidia-h200-roofline.svg")
    assert "| no. | rung | FLOP per byte |" in after
    assert (
        sum(line.startswith("| ") and line.split(" | ")[0].strip("| ").isdigit() for line in after.splitlines()) == 12
    )


def test_several_gpus_have_a_section_of_their_own(made: Made) -> None:
    assert "### 2 x H200 SXM, ladder nine-steps" in fragment(made.book, "results_other")
    assert "2 x H200" not in fragment(made.book, "results_nine_steps")


def test_a_run_of_the_toy_profile_is_labelled(made: Made) -> None:
    words = fragment(made.book, "results_run")
    assert "its speeds mean nothing" in words
    assert "published" not in words
    assert "its speeds mean nothing" not in fragment(made.book, "results_nine_steps")


def test_without_records_the_pages_say_so(tmp_path: Path) -> None:
    book = copy_of_book(tmp_path)
    generate(book, tmp_path / "no-run", records=tmp_path / "none")
    for name in ("headline", "results_nine_steps", "results_six_steps", "results_other", "environment"):
        assert "committed yet" in fragment(book, name)
        assert "|" not in fragment(book, name)
    assert "{result}" not in fragment(book, "headline")
    assert "12,525" in fragment(book, "published")


def test_a_damaged_record_is_named(made: Made, tmp_path: Path) -> None:
    records = Path(shutil.copytree(made.records, tmp_path / "records"))
    path = records / "nvidia-h200" / "nine-steps" / "bfloat16.json"
    path.write_text(path.read_text(encoding="utf-8")[:200], encoding="utf-8")
    with pytest.raises(BadInput, match=r"bfloat16\.json: truncated"):
        generate(copy_of_book(tmp_path), records=records)


def test_the_environment_comes_from_the_records(made: Made) -> None:
    words = fragment(made.book, "environment")
    assert "## H200 SXM, ladder nine-steps" in words and "## 2 x H200 SXM" in words
    for value in ("2.13.0+cu130", "580.1", "700 W", "ba9876543210", "six-steps-1", "5,000,000 tokens"):
        assert value in words


def test_the_table_of_rungs_shows_each_change() -> None:
    words = facts.rungs_table(SIX_STEPS)
    assert '| FlashAttention | `attention: "plain" -> "sdpa"` | rounding, 0.05 nats |' in words
    assert words.count("not kept by the next") == 1
    assert "causal_mask: " not in words


def test_arithmetic_against_a_count_of_the_weights() -> None:
    weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50_257 * 768
    assert f"N is {weights:,}" in facts.arithmetic()
    assert f"= {(6 * weights + 12 * 12 * 768 * 1024) / 1e9:.3f} GFLOP" in facts.arithmetic()


@pytest.mark.parametrize(
    ("slug", "title"),
    [
        ("nvidia-h200", "H200 SXM"),
        ("nvidia-h200-x4", "4 x H200 SXM"),
        ("cpu", "CPU"),
        ("nvidia-rtx-6000", "nvidia-rtx-6000"),
    ],
)
def test_device_titles(slug: str, title: str) -> None:
    assert facts.device_title(slug) == title


def test_contents_list_every_page_and_the_chapters_of_the_ladder() -> None:
    contents = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    files = [entry["file"] for part in contents["parts"] for entry in part["chapters"]]
    assert [file for file in files if file.startswith("chapters/")] == [f"chapters/{stem}" for stem in chapters()]
    assert sorted([contents["root"], *(file for file in files if "/" not in file)]) == PAGES


def test_configuration_names_the_repository_and_executes_nothing() -> None:
    config = yaml.safe_load((BOOK / "_config.yml").read_text(encoding="utf-8"))
    assert config["repository"]["url"] == REPOSITORY_URL
    assert config["execute"]["execute_notebooks"] == "off"
    assert "launch_buttons" not in config
    assert reference_device(BOOK) == "nvidia-h200"
    assert colab_url("02_tensor_cores").startswith("https://colab.research.google.com/github/gpt2-speedlab/")


@pytest.mark.parametrize("page", PAGES)
def test_no_measured_number_is_typed_into_a_page(page: str) -> None:
    words = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    typed = re.findall(r"\d[\d,.]*\s*(?:k\s)?(?:tokens/s|tok/s|ms\b|GiB|MiB|TFLOP|TB/s|x (?:faster|slower))", words)
    assert not typed


def test_pages_need_no_torch() -> None:
    code = (
        "import sys, speedlab.publishing.generated, speedlab.publishing.result_role; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def build(book: Path) -> subprocess.CompletedProcess[str]:
    """The strict build, with stand-ins where the executed chapters will be."""
    (book / "chapters").mkdir(exist_ok=True)
    for stem in chapters():
        cells = [new_markdown_cell(f"# {stem}\n\nA stand-in.")]
        if stem == "07_flash_attention":
            drawn = {"image/svg+xml": DIAGRAMS["hbm_traffic"](), "text/plain": "a diagram"}
            shown = {
                "image": {"alt": alt_text("hbm_traffic")},
                "figure": {"caption": "Traffic.", "name": "fig-traffic"},
            }
            output = new_output("execute_result", data=drawn, execution_count=1)
            cells.append(new_code_cell("1", execution_count=1, outputs=[output], metadata={"mystnb": shown}))
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), book / "chapters" / f"{stem}.ipynb")
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(book)]
    strict = ["-W", "-n", "--keep-going", "--all"]
    return subprocess.run([*command, *strict], capture_output=True, text=True, timeout=240, check=False)


def configure(book: Path, records: Path) -> None:
    path = book / "_config.yml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["sphinx"]["config"]["speedlab_records"] = str(records)
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


def test_strict_build_of_the_pages(made: Made, tmp_path: Path) -> None:
    book = Path(shutil.copytree(made.book, tmp_path / "book"))
    configure(book, made.records)
    done = build(book)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    html = book / "_build" / "html"
    pages = {path.stem: path.read_text(encoding="utf-8") for path in html.rglob("*.html")}
    assert '<span class="speedlab-result">32.8\N{NO-BREAK SPACE}k\N{NO-BREAK SPACE}tokens/s</span>' in pages["intro"]
    assert alt_text("hbm_traffic") in pages["07_flash_attention"]
    for name, words in pages.items():
        # A reader without a network sees the same page: links may lead away, what is loaded may not.
        assert not re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", words), name
        assert "launch-buttons" not in words, name

    # The second build cites a rung that nobody measured.
    with open(book / "method.md", "a", encoding="utf-8") as page:
        page.write("\nIt runs at {result}`nine-steps/data_parallel:tokens_per_s`.\n")
    done = build(book)
    assert done.returncode != 0
    assert "the record has no tokens_per_s (unavailable: 4 processes need 4 GPUs" in done.stdout + done.stderr
