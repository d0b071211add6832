"""The {result} role in real Sphinx builds of a one-page project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from records_helper import make_record, skipped_record, spread
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from speedlab.errors import BadInput
from speedlab.publishing.formatting import format_value, words_of
from speedlab.publishing.result_role import MissingResult
from speedlab.records.rows import report_rows
from speedlab.records.store import write_record


class Project:
    """A page with one sentence, and a folder of records beside it."""

    def __init__(self, folder: Path) -> None:
        self.source, self.records, self.output = folder / "source", folder / "records", folder / "html"
        self.source.mkdir()
        self.settings = {
            "extensions": ["speedlab.publishing.result_role"],
            "speedlab_records": str(self.records),
            "html_theme": "basic",
        }

    def build(self, sentence: str | None = None) -> str:
        """The text of the page after a build; without a sentence the page's source stays untouched."""
        if sentence is not None:
            (self.source / "index.rst").write_text(f"Page\n====\n\n{sentence}\n", encoding="utf-8")
        doctrees = self.output.parent / "doctrees"
        with patch_docutils(), docutils_namespace():  # as sphinx-build does: docutils' registries are global
            app = Sphinx(
                str(self.source), None, str(self.output), str(doctrees), "html", self.settings,
                status=None, warning=None, warningiserror=True,
            )  # fmt: skip
            app.build()
        assert app.statuscode == 0
        return (self.output / "index.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    write_record(made.records, make_record("baseline", step_ms=250.0))
    write_record(made.records, make_record("causal_mask", step_ms=250.05))
    write_record(made.records, make_record("tensor_cores", step_ms=100.0))
    write_record(made.records, skipped_record("torch_compile", status="out_of_memory", reason="asked for 90 GiB"))
    return made


def test_numbers_of_a_record_stand_in_the_sentence(project: Project) -> None:
    page = project.build(
        "From :result:`nvidia-h200/nine-steps/baseline:tokens_per_s` to "
        ":result:`nine-steps/tensor_cores:tokens_per_s`, :result:`nine-steps/tensor_cores:verdict_total`, "
        ":result:`nine-steps/tensor_cores:peak_reserved_bytes`."
    )
    # 8 sequences of 1,024 tokens in 250 ms and in 100 ms.
    assert '<span class="speedlab-result">32.8 k tokens/s</span>' in page
    assert '<span class="speedlab-result">81.9 k tokens/s</span>' in page
    assert ">2.50x faster</span>" in page
    assert ">26.0 GiB</span>" in page


def test_a_ratio_inside_the_spread_is_no_number(project: Project) -> None:
    assert ">no clear difference</span>" in project.build(":result:`nine-steps/causal_mask:speedup_step`")


def test_a_changed_record_changes_the_page(project: Project) -> None:
    assert ">250 ms</span>" in project.build(":result:`nine-steps/baseline:step_ms_median`")
    path = write_record(project.records, make_record("baseline", step_ms=200.0))
    later = path.stat().st_mtime + 10
    os.utime(path, (later, later))
    assert ">200 ms</span>" in project.build()


def test_a_changed_neighbour_changes_a_ratio(project: Project) -> None:
    assert ">2.50x</span>" in project.build(":result:`nine-steps/tensor_cores:speedup_total`")
    path = write_record(project.records, make_record("baseline", step_ms=400.0))
    later = path.stat().st_mtime + 10
    os.utime(path, (later, later))
    assert ">4.00x</span>" in project.build()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nine-steps/bfloat16:tokens_per_s", "no record nvidia-h200/nine-steps/bfloat16.*baseline"),
        ("tesla-t4/nine-steps/baseline:tokens_per_s", "no record tesla-t4/nine-steps/baseline"),
        ("nine-steps/baseline:tokens", "unknown key 'tokens': choose one of .*tokens_per_s"),
        ("nine-steps/torch_compile:tokens_per_s", "no tokens_per_s .out_of_memory: asked for 90 GiB"),
        ("nine-steps/baseline:speedup_step", "no speedup_step .measured"),
        ("nine-steps/baseline:substitutions", "a sentence can hold a number or a word"),
        ("../secrets/nine-steps/baseline:mfu", "write it as device/ladder/rung:key"),
        ("baseline", "write it as device/ladder/rung:key"),
    ],
)
def test_what_nobody_measured_stops_the_build(project: Project, target: str, told: str) -> None:
    with pytest.raises(MissingResult, match=told) as caught:
        project.build(f"It runs at :result:`{target}`.")
    assert "index.rst:4" in str(caught.value), "names the page and the line"
    assert not (project.output / "index.html").exists()


def test_without_any_records_a_citation_stops_the_build(tmp_path: Path) -> None:
    with pytest.raises(MissingResult, match="no folder of records"):
        Project(tmp_path).build(":result:`nine-steps/baseline:mfu`")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("tokens_per_s", 412_345.6, "412 k tokens/s"),
        ("tokens_per_s_q1", 999.4, "999 tokens/s"),
        ("step_ms_median", 9.994, "9.99 ms"),
        ("step_ms_median", 9.996, "10.0 ms"),
        ("step_ms_median", 1043.2, "1,043 ms"),
        ("peak_allocated_bytes", 26.2617 * 2**30, "26.3 GiB"),
        ("speedup_total", 11.349, "11.3x"),
        ("scaling", 1.954, "1.95x"),
        ("mfu", 0.4312, "43.1 %"),
        ("compile_s", 41.23, "41.2 s"),
        ("energy_j_per_million_tokens", 1_443.7, "1,444 J per million tokens"),
        ("tokens_per_joule", 692.6, "693 tokens/J"),
        ("world_size", 4, "4"),
        ("dtype", "bfloat16", "bfloat16"),
    ],
)
def test_formats(key: str, value: object, words: str) -> None:
    assert format_value(key, value) == words


def test_slower_is_said_so() -> None:
    records = [make_record("baseline", step_ms=200.0), make_record("causal_mask", step_ms=250.0)]
    row = report_rows(records)[1]
    assert words_of(row, "verdict_step") == "1.25x slower"
    assert words_of(row, "speedup_step") == "0.80x"
    noisy = make_record("causal_mask", step_ms=205.0)
    row = report_rows([make_record("baseline", step_ms=200.0, drift_step_ms=spread(208.0)), noisy])[1]
    assert words_of(row, "verdict_step") == "no clear difference"


@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}])
def test_what_is_neither_number_nor_word_is_refused(value: object) -> None:
    with pytest.raises(BadInput, match="mfu is"):
        format_value("mfu", value)
