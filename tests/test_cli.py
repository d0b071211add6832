"""The command line: what it prints where, its exit codes, one line for every error, nothing heavy loaded early."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from records_helper import make_record
from toy_chapters import toy_source, write_toys

from speedlab import __version__, cli, doctor
from speedlab.device import Capabilities
from speedlab.ladder import LADDERS, NINE_STEPS
from speedlab.measuring import session
from speedlab.profile import FULL, T4
from speedlab.publishing import checkout, reproduce
from speedlab.records.store import write_record

COMMANDS = (
    "doctor", "ladder", "memory", "report", "compare", "reproduce", "book", "publish", "train", "tokenize",
)  # fmt: skip
CPU = Capabilities(device_type="cpu", cores=2)
T4_CARD = Capabilities(
    device_type="cuda", capability=(7, 5), gpu_name="Tesla T4", gpu_memory_bytes=15 * 2**30, multiprocessors=40, gpus=1
)
H200 = Capabilities(
    device_type="cuda", capability=(9, 0), gpu_name="NVIDIA H200", gpu_memory_bytes=140 * 2**30, multiprocessors=132,
    gpus=1,
)  # fmt: skip


@pytest.fixture
def records(tmp_path: Path) -> Path:
    for rung, step_ms in (("baseline", 250.0), ("causal_mask", 249.9)):
        write_record(tmp_path / "records", make_record(rung, step_ms=step_ms))
    return tmp_path / "records"


def run_in_process(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=os.environ | environment
    )


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_command_has_help(command: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--help"] if command is None else [command, "--help"]
    assert cli.run(arguments) == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in shown] == [] if command is None else "Options:" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"speedlab {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["doctor", "report"]),
        (["nonsense"], ["'nonsense'", "doctor", "report"]),
        (["report", "--nonsense"], ["--nonsense", "speedlab report --help"]),
        (["report", "--format", "xml"], ["'xml'", "table, markdown, csv, json"]),
        (["report", "--records", "/nowhere"], ["/nowhere", "<device>/<ladder>"]),
        (["report", "extra"], ["extra", "speedlab report --help"]),
        (["report", "--price-per-hour", "-1"], ["price per hour is -1", "at least 0"]),
        (["report", "--price-per-hour", "nan"], ["price per hour is nan", "at least 0"]),
        (["report", "--price-per-hour", "cheap"], ["--price-per-hour", "speedlab report --help"]),
        (["compare"], ["'a'", "speedlab compare --help"]),
        (["compare", "/nowhere"], ["/nowhere", "<device>/<ladder>"]),
        (["compare", "published", "/nowhere"], ["/nowhere", "<device>/<ladder>"]),
        (["compare", "published", "--format", "csv"], ["'csv'", "table, markdown, json"]),
        (["report", "--records", ""], ["--records is empty", "leave it out"]),
        (["report", "--records= "], ["--records is empty"]),
        (["report", "--records", "x" * 5_000], ["File name too long", "choose another"]),
        (["report", "--records", "a\0b"], ["null byte"]),
        (["compare", ""], ["what follows compare is empty"]),
        (["ladder", "--out", "", "--profile", "smoke"], ["--out is empty"]),
        (["ladder", "--steps", "many"], ["Invalid value 'many' for '--steps'", "speedlab ladder --help"]),
        (["reproduce", "--steps=many"], ["Invalid value 'many' for '--steps'"]),
        (["kernels", "baseline", "--profile", "smoke", "--trace", "/proc/x/y.json"], ["cannot write into /proc/x"]),
        (["ladder", "--steps", "-1", "--profile", "smoke"], ["steps is -1", "whole number"]),
        (["ladder", "--ladder", "seven"], ["'seven'", "nine-steps, six-steps"]),
        (["ladder", "--rungs", "baseline,top"], ["'top'", "causal_mask"]),
        (["ladder", "--profile", "huge"], ["'huge'", "full, t4, smoke, auto"]),
        (["ladder", "--order", "mine"], ["'mine'", "as-is"]),
        (["ladder", "--profile", "smoke", "--corpus", "/nowhere.txt"], ["/nowhere.txt"]),
        (["reproduce", "--profile", "huge"], ["'huge'", "auto, full, t4, smoke"]),
        (["reproduce", "--steps", "-1"], ["steps is -1", "whole number"]),
        (["reproduce", "--source", "guessed"], ["'guessed'", "measure, recorded, auto"]),
        (["reproduce", "--cell-limit", "0"], ["time limit of a cell is 0 s", "at least 1 s"]),
        (["reproduce", "--chapter-limit", "-5"], ["time limit of a chapter is -5 s"]),
        (["reproduce", "--only", "03"], ["unknown chapter '03'", "01_a, 02_b"]),
        (["book", "/nowhere"], ["/nowhere", "speedlab reproduce"]),
        (["publish", "/nowhere"], ["/nowhere holds nothing to publish", "speedlab ladder --out"]),
        (["publish"], ["'run'", "speedlab publish --help"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    toy_checkout(tmp_path, monkeypatch)
    assert cli.run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("speedlab: ") and shown.err.count("\n") == 1
    assert [word for word in words if word not in shown.err] == []


def test_a_command_that_cannot_work_here_is_exit_code_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checkout, "REPOSITORY_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.run(["reproduce"]) == 3
    assert "git clone" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["report"],
        ["report", "--format", "json"],
        ["report", "--price-per-hour", "2"],
        ["report", "-h"],
        ["compare", "published"],
    ],
)
def test_quick_answers_load_nothing_heavy(arguments: list[str], records: Path) -> None:
    code = """
import sys
from speedlab import cli
status = cli.run(sys.argv[1:])
heavy = ("torch", "pandas", "scipy", "matplotlib.pyplot", "tiktoken", "papermill", "nbformat")
print("loaded", [name for name in heavy if name in sys.modules], file=sys.stderr)
sys.exit(status)
"""
    extra = ["--records", str(records)] if arguments[0] == "report" and "-h" not in arguments else []
    done = run_in_process(code, *arguments, *extra)
    assert (done.returncode, done.stderr) == (0, "loaded []\n")


def test_report_prints_rows_that_a_program_can_read(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "--records", str(records), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["rung"] for row in rows] == ["baseline", "causal_mask"]
    assert rows[0]["tokens_per_s_q1"] <= rows[0]["tokens_per_s"] <= rows[0]["tokens_per_s_q3"]


def test_report_with_a_price_adds_the_cost(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", "--records", str(records), "--price-per-hour", "2.5"]
    assert cli.run([*arguments, "--format", "json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert row["price_per_million_tokens"] == pytest.approx(2.5 / 3_600 * 1e6 / row["tokens_per_s"])
    assert cli.run(arguments) == 0
    assert "cost of a million tokens" in capsys.readouterr().out


def test_compare_puts_two_folders_side_by_side(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "other", make_record("baseline", step_ms=125.0, session="aaaa1111bbbb"))
    arguments = ["compare", str(records), str(tmp_path / "other")]
    assert cli.run([*arguments, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["pairs"][0]["rows"]
    assert [(row["rung"], row["ratio"] and round(row["ratio"], 6)) for row in rows] == [
        ("baseline", 2.0), ("causal_mask", None),
    ]  # fmt: skip
    assert cli.run(arguments) == 0
    shown = capsys.readouterr().out
    assert "2.00x" in shown and "differs: session" in shown


def test_report_of_no_records_is_an_empty_list_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "--records", str(tmp_path), "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == [] and "no records below" in shown.err


def test_a_damaged_record_is_one_line(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = records / "nvidia-h200" / "nine-steps" / "baseline.json"
    path.write_text(path.read_text()[:100])
    assert cli.run(["report", "--records", str(records)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and error.count("\n") == 1


def fake_ladder(records: list, calls: list):
    def run_ladder(ladder: str, *, report, **arguments) -> list:
        calls.append((ladder, arguments))
        report(session.Event(kind="rung", rung="baseline", text="Baseline", done=0, total=2))
        report(session.Event(kind="note", text="a note"))
        return records

    return run_ladder


def test_ladder_keeps_progress_out_of_its_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list = []
    monkeypatch.setattr(session, "run_ladder", fake_ladder([make_record("baseline")], calls))
    arguments = ["ladder", "--rungs", "baseline, causal_mask", "--steps", "40", "--out", str(tmp_path), "--json"]
    assert cli.run(arguments) == 0
    shown = capsys.readouterr()
    assert [row["rung"] for row in json.loads(shown.out)] == ["baseline"]
    assert shown.err == "[0/2] baseline: Baseline\na note\n"
    wanted = {"profile": "auto", "corpus": "standard-library", "rungs": ["baseline", "causal_mask"], "steps": 40}
    wanted["order"] = None
    assert calls == [("nine-steps", wanted | {"out": tmp_path})]


@pytest.mark.parametrize(("status", "code"), [("error", 1), ("contract_failed", 1), ("out_of_memory", 0)])
def test_ladder_fails_when_a_rung_does(status: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"status": status, "reason": "because", "step_ms": [], "contract_verdict": None, "losses": []}
    if status == "contract_failed":
        changes["contract_verdict"] = "failed"
    record = make_record("causal_mask", **changes)
    monkeypatch.setattr(session, "run_ladder", fake_ladder([make_record("baseline"), record], []))
    assert cli.run(["ladder"]) == code


def test_ctrl_c_and_a_failing_disk_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_, **__) -> None:
        raise KeyboardInterrupt

    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device", "/somewhere/a.json")

    monkeypatch.setattr(session, "run_ladder", interrupted)
    assert (cli.run(["ladder"]), capsys.readouterr().err) == (130, "speedlab: interrupted\n")
    monkeypatch.setattr(session, "run_ladder", full)
    assert cli.run(["ladder"]) == 2
    assert "/somewhere/a.json: No space left on device" in capsys.readouterr().err


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_, **__) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(session, "run_ladder", broken)
    with pytest.raises(ZeroDivisionError):
        cli.run(["ladder"])


def test_a_reader_that_has_enough_is_no_error(records: Path) -> None:
    code = "from speedlab.cli import main\nmain()"
    command = f"{sys.executable} -c '{code}' report --format json --records {records} | head -c 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("[", "", 0)


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "speedlab", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("speedlab: No such command 'nonsense'")


def toy_checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two toy chapters that the commands take for theirs; the machine is not probed."""
    write_toys(root / "notebooks", {"01_a": toy_source("01_a"), "02_b": toy_source("02_b")})
    (root / "book").mkdir()
    (root / "book" / "_config.yml").write_text("title: Toy\n")
    monkeypatch.setattr(checkout, "REPOSITORY_ROOT", root)
    machine = {"machine_id": "0123456789ab", "torch": "2.13.0", "python": "3.11.7"}
    monkeypatch.setattr(reproduce, "probe_machine", lambda: {"profile": "smoke", "machine": machine})
    return root


def test_reproduce_lists_and_plans_without_writing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = toy_checkout(tmp_path, monkeypatch)
    assert cli.run(["reproduce", "--list"]) == 0
    assert capsys.readouterr().out == "01_a\n02_b\n"
    assert cli.run(["reproduce", "--dry-run", "--only", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "01_a  not asked for\n02_b  run\n"
    assert "1 of 2 chapters to run with profile smoke, about 1 min" in shown.err
    assert not (root / "runs").exists()
    assert cli.run(["reproduce", "--only", "7"]) == 2


def test_reproduce_executes_and_then_has_nothing_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = toy_checkout(tmp_path, monkeypatch)
    assert cli.run(["reproduce", "--only", "01_a"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].startswith("01_a  done") and lines[1].startswith("02_b  not asked for")
    assert lines[2] == "1 done, 0 current, 0 failed, 0 out of memory, 0 not available here, 1 not asked for"
    folder = Path(lines[3])
    assert (folder / "01_a.ipynb").is_file() and folder.parent == root / "runs"
    assert cli.run(["reproduce", "--dry-run"]) == 0
    assert capsys.readouterr().out == "01_a  current\n02_b  run\n"
    write_toys(root / "notebooks", {"02_b": toy_source("02_b", "1 / 0")})
    assert cli.run(["reproduce"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_reproduce_measures_in_labs_when_asked_and_stops_what_takes_too_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = toy_checkout(tmp_path, monkeypatch)
    write_toys(root / "notebooks" / "labs", {"lab": toy_source("lab", 'assert source == "measure"')})
    assert cli.run(["reproduce", "--list"]) == 0
    assert capsys.readouterr().out == "01_a\n02_b\nlab\n"
    assert cli.run(["reproduce", "--only", "lab", "--labs", "--source", "measure", "--steps", "2"]) == 0
    assert "lab   done" in capsys.readouterr().out
    write_toys(root / "notebooks", {"02_b": toy_source("02_b", "import threading\nthreading.Event().wait()")})
    assert cli.run(["reproduce", "--only", "02", "--cell-limit", "1"]) == 1
    assert "took longer than 1 s" in capsys.readouterr().out


def test_doctor_names_this_machine_and_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--json"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text)
    assert {"machine_id", "torch", "python"} <= set(report["machine"])
    assert report["profile"] in ("full", "t4", "smoke")
    assert all(check["ok"] or check["reason"] for check in report["checks"])
    assert {(row["ladder"], row["rung"]) for row in report["rungs"]} == {
        (ladder.name, rung.key) for ladder in LADDERS.values() for rung in ladder
    }
    private = [name for name in (platform.node(), getpass.getuser(), str(Path.home())) if len(name) > 4]
    assert [name for name in private if name in text] == []
    assert report["profile"] in doctor.as_text(report)


def runs(here: Capabilities, profile=FULL) -> dict[str, str]:
    return {rung.key: doctor.what_runs(NINE_STEPS, rung, profile, here)["runs"] for rung in NINE_STEPS}


def test_doctor_says_which_rungs_a_card_can_make() -> None:
    on_h200, on_t4, on_cpu = runs(H200), runs(T4_CARD, T4), runs(CPU)
    assert {key for key, how in on_h200.items() if how != "as asked"} == {"data_parallel"}
    assert on_t4["tensor_cores"] == "unavailable" and on_t4["bfloat16"] == "substituted"
    assert on_t4["flash_attention"] == on_t4["torch_compile"] == "as asked"
    assert on_cpu["tensor_cores"] == "unavailable" and on_cpu["pinned_memory"] == "not_applicable"


def test_doctor_names_a_compiler_that_is_missing() -> None:
    here = Capabilities(device_type="cpu", compiler_problem="no C++ compiler")
    found = {check.name: check for check in doctor.checks(here, dict.fromkeys(("torch", "cuda", "triton")))}
    assert not found["torch.compile"].ok and found["torch.compile"].reason == "no C++ compiler"


def test_doctor_calls_emulated_bfloat16_emulated() -> None:
    assert (doctor._bfloat16(T4_CARD).ok, doctor._bfloat16(T4_CARD).found) == (False, "emulated")
    assert (doctor._bfloat16(H200).ok, doctor._bfloat16(H200).found) == (True, "native")


def test_a_driver_without_a_usable_torch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert "CPU build" in doctor._gpu(CPU, {"cuda": None}).reason
    assert "driver may be too old" in doctor._gpu(CPU, {"cuda": "13.0"}).reason
