"""What runs on a T4, an A100, an H200 and without a GPU: torch's own questions answered as those machines would.

Only the lowest level is replaced; everything above, from the capabilities to the text of a chapter, is the real thing.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from speedlab import cli, doctor
from speedlab.device import adapt, capabilities
from speedlab.errors import BadInput
from speedlab.ladder import NINE_STEPS, chapters
from speedlab.measuring import machine as machine_module
from speedlab.outlook import chapters_here, outlook_lines, runtime_text
from speedlab.profile import get_profile
from speedlab.training.precision import precision_of

MACHINES = {
    "T4": ("Tesla T4", (7, 5), 15 * 2**30, 40),
    "A100": ("NVIDIA A100-SXM4-40GB", (8, 0), 40 * 2**30 - 2**29, 108),
    "H200": ("NVIDIA H200", (9, 0), 140 * 2**30, 132),
    "none": None,
}
# rung: what it runs with, for every rung that does not run as asked. Later rungs keep an earlier substitution.
EXPECTED = {
    "T4": {"tensor_cores": "not available", "bfloat16": "with float16_autocast", "data_parallel": "not available"},
    "A100": {"data_parallel": "not available"},
    "H200": {"data_parallel": "not available"},
    "none": {
        "tensor_cores": "not available", "pinned_memory": "not available", "data_parallel": "with 2",
    },
}  # fmt: skip
PROFILE = {"T4": "t4", "A100": "full", "H200": "full", "none": "smoke"}


@pytest.fixture(params=MACHINES)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a machine that torch believes to run on."""
    pretend(monkeypatch, request.param)
    return request.param


def pretend(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    facts = MACHINES[name]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: facts is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)  # as a T4 says, too
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(machine_module, "_nvidia_smi", lambda field, convert: None)
    monkeypatch.delenv("SPEEDLAB_GPU_MEMORY_GIB", raising=False)
    if facts is None:
        return
    card, capability, memory, processors = facts
    properties = SimpleNamespace(total_memory=memory, multi_processor_count=processors, uuid="GPU-0", name=card)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)


def test_each_rung_becomes_what_this_machine_can_run(here: str) -> None:
    machine = capabilities()
    profile = get_profile("auto", gpu_memory_bytes=machine.gpu_memory_bytes)
    assert profile.name == PROFILE[here]
    rows = [rung for row in chapters_here(machine, profile) for rung in row["rungs"]]
    assert {row["rung"]: row["runs"] for row in rows if row["runs"] != "as asked"} == EXPECTED[here]
    assert all((row["reason"] is None) == (row["runs"] == "as asked") for row in rows)
    for rung in NINE_STEPS:
        recipe, substitutions = adapt(profile.recipe(NINE_STEPS, rung.key), machine)
        precision = precision_of(recipe)
        if here == "T4":  # never an emulated format, never weights in 16 bits with a scaler
            assert "bfloat16" not in recipe.precision and recipe.matmul_precision == "highest"
            assert (precision.autocast, precision.scaled, precision.weights) in (
                (None, False, torch.float32), (torch.float16, True, torch.float32),
            )  # fmt: skip
        if here in ("A100", "H200"):
            assert {s.field for s in substitutions} <= {"data_parallel"} and not precision.scaled
        assert recipe.data_parallel <= 2


def test_the_batches_fit_the_memory(here: str) -> None:
    machine = capabilities()
    profile = get_profile("auto", gpu_memory_bytes=machine.gpu_memory_bytes)
    batches = [profile.recipe(NINE_STEPS, key).micro_batch for key in ("baseline", "batch_size")]
    assert batches == {"t4": [2, 8], "full": [8, 32], "smoke": [4, 16]}[profile.name]


@pytest.mark.parametrize("stem", chapters())
def test_a_chapter_on_colab_says_what_is_not_there_and_what_takes_its_place(here: str, stem: str) -> None:
    text = runtime_text(stem)
    for rung in chapters()[stem]:
        assert (f"{rung.key}: " in text) == (rung.key in EXPECTED[here])
        if runs := EXPECTED[here].get(rung.key):
            assert f"{rung.key}: {runs}, because " in text
    formats = {"T4": "bfloat16 is only emulated, float16 is native", "none": "No GPU here"}
    assert formats.get(here, "bfloat16 and TF32 are native") in text
    assert "This notebook takes about " in text
    if here == "T4":
        assert "Tesla T4, compute capability 7.5, 15.0 GiB" in text and "batches are smaller here" in text


def test_doctor_is_one_screen_everywhere(here: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(doctor, "_attention_backends", lambda machine: [])  # they would need the card itself
    assert cli.run(["doctor"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    for words in ("GPU", "bfloat16", "torch.compile", "pinned memory", "free disk", "CPU cores", "CUDA toolkit"):
        assert words in text
    assert [stem for stem in chapters() if stem not in text] == []
    assert cli.run(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["chapter"] for row in report["chapters"]] == list(chapters())
    found = {check["name"]: check for check in report["checks"]}
    assert found["bfloat16"]["found"] == {"T4": "emulated", "none": "computed by the CPU"}.get(here, "native")
    assert found["pinned memory"]["ok"] == (here != "none")


def test_max_autotune_is_refused_by_the_number_of_multiprocessors(here: str) -> None:
    machine = capabilities()
    recipe, substitutions = adapt(NINE_STEPS.recipe_at("torch_compile").but(compile="max-autotune"), machine)
    by_rule = [s for s in substitutions if s.field == "compile" and "multiprocessors" in s.reason]
    assert bool(by_rule) == (here in ("T4", "none"))
    assert recipe.compile == ("default" if by_rule else "max-autotune")


def test_a_large_card_can_play_a_t4(monkeypatch: pytest.MonkeyPatch) -> None:
    """The H200 with 14.5 GiB and without its newer units: the recipes of a T4, on another card."""
    pretend(monkeypatch, "H200")
    monkeypatch.setenv("SPEEDLAB_GPU_MEMORY_GIB", "14.5")
    monkeypatch.setenv("SPEEDLAB_GPU_CAPABILITY", "7.5")
    machine = capabilities()
    profile = get_profile("auto", gpu_memory_bytes=machine.gpu_memory_bytes)
    assert profile.name == "t4"
    rows = [rung for row in chapters_here(machine, profile) for rung in row["rungs"]]
    assert {row["rung"]: row["runs"] for row in rows if row["runs"] != "as asked"} == EXPECTED["T4"]
    for wrong in ("9.5", "seven", "7"):
        monkeypatch.setenv("SPEEDLAB_GPU_CAPABILITY", wrong)
        with pytest.raises(BadInput, match=r"must be like 7\.5, and at most 9\.0 on this card"):
            capabilities()


def test_the_recorded_run_of_a_device_gives_its_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    pretend(monkeypatch, "H200")
    machine = capabilities()
    profile = get_profile("full")
    monkeypatch.setattr("speedlab.outlook.committed_root", lambda: tmp_path)
    assert {row["seconds"] for row in chapters_here(machine, profile)} == {120}
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    run = {"profile": "full", "chapters": [{"chapter": "02_tensor_cores", "seconds": 53.5}]}
    (folder / "reproduction.json").write_text(json.dumps(run))
    rows = chapters_here(machine, profile)
    assert [row["seconds"] for row in rows][:3] == [120, 53.5, 120]
    assert outlook_lines(rows)[1].startswith("02_tensor_cores") and "54 s  as asked" in outlook_lines(rows)[1]
    (folder / "reproduction.json").write_text("{")
    assert {row["seconds"] for row in chapters_here(machine, profile)} == {120}
