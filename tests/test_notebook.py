"""A chapter's calls outside a notebook: what they show, what they write, and the result that they end in."""

import json
import re
from base64 import b64decode

import IPython.display
import numpy as np
import pytest
from data_helper import one_line_error
from model_helper import short_collections
from records_helper import make_record

from speedlab import notebook
from speedlab.data.tokens import TokenFile
from speedlab.device import Capabilities
from speedlab.errors import BadInput
from speedlab.ladder import NINE_STEPS, before_and_after, chapters
from speedlab.measuring import workbench
from speedlab.model import layers
from speedlab.notebook import Chapter
from speedlab.profile import PROFILES, SMOKE
from speedlab.publishing.executed import RESULT_FIELDS, RESULT_MIME, problems_of_result
from speedlab.records.store import read_record, write_record


class Shown(list):
    """What a notebook would show, in order: Markdown and pictures, and raw bundles."""

    @property
    def text(self):
        return "\n".join(thing.data for thing in self if isinstance(thing, IPython.display.Markdown))

    @property
    def pictures(self):
        return [thing.data for thing in self if isinstance(thing, IPython.display.HTML)]

    @property
    def result(self):
        [bundle] = [thing for thing in self if isinstance(thing, dict)]
        return bundle[RESULT_MIME]


@pytest.fixture
def shown(monkeypatch):
    things = Shown()
    monkeypatch.setattr(IPython.display, "display", lambda *objects, **options: things.extend(objects))
    monkeypatch.setattr(IPython.display, "clear_output", lambda **options: None)
    return things


@pytest.fixture
def no_records(monkeypatch, tmp_path):
    """Nothing is committed."""
    monkeypatch.setattr(notebook, "committed_root", lambda: tmp_path / "nothing")


@pytest.fixture
def committed(monkeypatch, tmp_path):
    """Records of a whole ladder on an H200, and of a lone rung on another device."""
    root = tmp_path / "committed"
    for number, key in enumerate(NINE_STEPS.keys[:-1]):
        before, rung = NINE_STEPS.before(key), NINE_STEPS.rung(key)
        detail = {
            "before": before, "losses_before": [10.95, 10.2, 9.88],
            "largest_difference": 0.002 if rung.tolerance else 0.0, "note": "by design",
            "tolerance": rung.tolerance or 0.0,
        }  # fmt: skip
        write_record(root, make_record(key, step_ms=250.0 - 15 * number, contract_detail=before and detail))
    write_record(root, make_record("bfloat16", device="nvidia-h200-x2"))
    monkeypatch.setattr(notebook, "committed_root", lambda: root)
    return root


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"stem": "11_more"}, ["'11_more'", "01_causal_mask", "10_data_parallel"]),
        ({"stem": "01_causal_mask", "profile": "huge"}, ["'huge'", *PROFILES, "auto"]),
        ({"stem": "01_causal_mask", "source": "guess"}, ["'guess'", "measure", "recorded", "auto"]),
        ({"stem": "01_causal_mask", "steps": -1}, ["steps", "-1"]),
        ({"stem": "01_causal_mask", "steps": "9"}, ["steps", "'9'"]),
    ],
)
def test_wrong_parameters_are_refused_in_the_first_cell(arguments, parts):
    one_line_error(BadInput, lambda: Chapter(**arguments), *parts)


@pytest.mark.parametrize("stem", chapters())
def test_every_chapter_shows_its_change_and_what_becomes_of_it_elsewhere(stem, shown, no_records):
    chapter = Chapter(stem)
    chapter.show_change()
    for rung in chapters()[stem]:
        [(field, value)] = rung.change.items()
        assert rung.title in shown.text and field in shown.text and str(value) in shown.text
        assert rung.expectation in shown.text
    chapter.show_other_cards()
    assert "T4" in shown.text and "H200" in shown.text and "CPU" in shown.text


def test_code_is_shown_as_it_is_and_not_as_a_copy(shown, no_records):
    chapter = Chapter("06_native_layers")
    chapter.show_code(layers.HandwrittenLayerNorm, layers.layer_set, (layers, "LAYERS"))
    assert shown.text.count("```python") == 3
    assert "x_BTC.var(dim=-1, keepdim=True, unbiased=False)" in shown.text
    assert '"native": LayerSet(nn.LayerNorm, NativeGELU),\n}' in shown.text


def test_without_records_a_chapter_that_only_shows_them_says_so(shown, no_records, monkeypatch):
    monkeypatch.setattr(notebook, "capabilities", lambda: pytest.fail("this machine was asked"))
    chapter = Chapter("03_fused_adamw", source="recorded")
    assert not chapter.measures
    for call in (
        chapter.show_prediction, chapter.measure, chapter.show_kernels, chapter.show_contract, chapter.show_lesson,
        chapter.finish,
    ):  # fmt: skip
        call()
    assert "No recorded prediction" in shown.text and "No records are committed" in shown.text
    assert shown.result["status"] == "recorded" and shown.result["session"] is None and shown.result["records"] == []


@pytest.mark.parametrize("stem", [stem for stem in chapters() if stem != "10_data_parallel"])
def test_recorded_rows_are_shown_for_devices_that_have_all_of_them(stem, shown, committed):
    chapter = Chapter(stem, source="recorded")
    assert list(chapter.recorded) == ["nvidia-h200"]
    assert [record.rung for record in chapter.recorded["nvidia-h200"]] == list(before_and_after(stem))
    chapter.show_prediction()
    chapter.measure()
    chapter.show_kernels()
    chapter.show_contract()
    chapter.show_lesson()
    for key in before_and_after(stem):
        assert NINE_STEPS.rung(key).title in shown.text
    assert "H200" in shown.text and "Counted before the recorded run" in shown.text
    assert "Here and now" not in shown.text and "No records" not in shown.text


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Chapter 1 run as the batch runner would, for few steps: what it showed, its folder, itself."""
    folder = tmp_path_factory.mktemp("chapter")
    shown = Shown()
    tokens = TokenFile(
        tokens=np.random.default_rng(0).integers(0, 1_001, 20_000).astype(np.uint16),
        corpus_name="dice", corpus_sha256="d" * 64, tokenizer_ranks=1_000,
    )  # fmt: skip
    with short_collections(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(IPython.display, "display", lambda *objects, **options: shown.extend(objects))
        patch.setattr(IPython.display, "clear_output", lambda **options: None)
        patch.setattr(notebook, "committed_root", lambda: folder / "nothing")
        patch.setattr(notebook, "capabilities", lambda: Capabilities(device_type="cpu", cores=2))
        patch.setattr(workbench, "load_tokens", lambda corpus, profile: tokens)
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        patch.setenv("SPEEDLAB_RUN", str(folder / "run"))
        patch.setenv("SPEEDLAB_SESSION", "0123456789ab")
        chapter = Chapter("01_causal_mask", profile="smoke", steps=4)
        chapter.measure()
        chapter.show_kernels()
        chapter.show_contract()
        chapter.show_lesson()
        chapter.finish()
    return shown, folder / "run", chapter


def test_a_measured_chapter_ends_in_a_result_that_the_gate_accepts(measured):
    shown, run, _ = measured
    result = shown.result
    assert tuple(result) == RESULT_FIELDS
    asked = {"profile": "smoke", "steps": 4, "source": "auto"}
    assert problems_of_result(result, "01_causal_mask", run=run, asked=asked) == []
    assert (result["status"], result["session"], result["steps"]) == ("measured", "0123456789ab", 4)
    assert result["records"] == ["records/cpu/nine-steps/baseline.json", "records/cpu/nine-steps/causal_mask.json"]
    json.dumps(result)


def test_the_records_of_a_run_are_those_that_the_chapter_showed(measured):
    shown, run, chapter = measured
    records = [read_record(run / path) for path in shown.result["records"]]
    assert records == chapter.live
    assert [record.status for record in records] == ["measured", "measured"]
    assert all(len(record.step_ms) == 4 for record in records)
    assert records[1].contract_verdict == "passed" and records[1].contract == "identical"


def test_a_toy_is_labelled_as_one_and_teaches_no_speed(measured):
    shown, _, _ = measured
    assert "Here and now" in shown.text and SMOKE.about in shown.text
    assert "the toy run above says nothing about speed" in shown.text
    assert "bit for bit" in shown.text and "no Tensor Cores" in shown.text
    assert len(shown.pictures) == 2  # kernels and losses
    for picture in shown.pictures:
        alt, data = re.fullmatch(r'<img alt="([^"]+)".* src="data:image/svg\+xml;base64,([^"]+)">', picture).groups()
        assert len(alt) > 20 and b"<svg" in b64decode(data)


def test_the_rung_that_a_chapter_starts_from_is_kept_if_its_own_chapter_ran(tmp_path):
    own = make_record("baseline", device="cpu", step_ms=100.0)
    again = make_record("baseline", device="cpu", step_ms=120.0)
    notebook._store(tmp_path, own, own=True)
    notebook._store(tmp_path, again, own=False)
    path = notebook._stored(tmp_path, own)
    assert read_record(path) == own
    notebook._store(tmp_path, again, own=True)
    assert read_record(path) == again


def test_a_chapter_whose_rung_failed_says_so_in_its_result(shown, no_records):
    chapter = Chapter("01_causal_mask", profile="smoke")
    broken = make_record(
        "causal_mask", device="cpu", status="contract_failed", reason="losses differ", contract_verdict="failed"
    )
    chapter.live = [make_record("baseline", device="cpu"), broken]
    chapter.finish()
    assert shown.result["status"] == "failed"


def test_a_prediction_is_a_column_of_parts_with_its_sum_and_the_ceiling_that_binds():
    from speedlab.publishing.chapter_words import prediction_table

    one = make_record(predicted={"step_ms": 5.0, "bound_by": "memory bandwidth",
                                 "parts_ms": {"matmuls": 2.0, "scores": 3.0, "waiting": 0.0}})  # fmt: skip
    two = make_record("causal_mask", predicted={"step_ms": 2.0, "bound_by": "TF32 matmul rate",
                                                "parts_ms": {"matmuls": 2.0, "scores": 0.0}})  # fmt: skip
    lines = prediction_table([one, two]).splitlines()
    assert lines[0] == "| predicted ms per step | Baseline | Causal mask on the fly |"
    assert lines[2:] == [
        "| matmuls | 2.00 | 2.00 |", "| scores | 3.00 | 0.00 |", "| sum | 5.00 | 2.00 |",
        "| bound by | memory bandwidth | TF32 matmul rate |",
    ]  # fmt: skip
