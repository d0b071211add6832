"""The batch run, on toy chapters with real kernels: what becomes of each kind of failure, resuming, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_chapters import heed_interrupts, toy_source, write_toys

from speedlab.errors import BadInput, NotAvailable, SpeedLabError
from speedlab.publishing import currency, execute, reproduce, sources
from speedlab.publishing.execute import Limits
from speedlab.publishing.reproduce import check_profile
from speedlab.publishing.run_folder import Chapter, Run, held, newest_complete, runs_newest_first
from speedlab.publishing.summary import exit_code, summary_table

MACHINE = {"machine_id": "0123456789ab", "torch": "2.13.0", "python": "3.11.7"}

RECORDS_ENVIRONMENT = """\
import os, pathlib, sys
run = pathlib.Path(os.environ["SPEEDLAB_RUN"])
(run / "records").mkdir(exist_ok=True)
names = ("SPEEDLAB_SESSION", "TORCHINDUCTOR_CACHE_DIR", "SPEEDLAB_CACHE")
lines = [sys.executable, os.getcwd(), *(os.environ.get(name, "unset") for name in names)]
(run / "records" / "facts.txt").write_text("\\n".join(lines))
print("working in", run, "and", pathlib.Path.home() / "secret")
import speedlab"""

TOYS = {
    "01_sound": toy_source("01_sound", RECORDS_ENVIRONMENT, records='["records/facts.txt"]'),
    "02_raises": toy_source("02_raises", "steps = 1 / 0"),
    "03_killed": toy_source("03_killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
    "04_leaves": toy_source("04_leaves", "import sys\nsys.exit(0)"),
    "05_ignores": toy_source("05_ignores", profile='"full"'),
    "06_sound": toy_source("06_sound"),
    "07_quits": toy_source("07_quits", "import os\nos._exit(7)"),
    "08_crashes": toy_source("08_crashes", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"),
    "09_full": toy_source("09_full", "raise MemoryError('no room for 8 GiB')"),
    "10_elsewhere": toy_source(
        "10_elsewhere", "from speedlab.errors import NotAvailable\nraise NotAvailable('it needs two GPUs')"
    ),
}  # fmt: skip


def plan(notebooks: Path, runs: Path, **changes) -> Run:
    arguments = {"profile": "smoke", "steps": 3, "machine": MACHINE} | changes
    return reproduce.plan(notebooks=notebooks, runs=runs, **arguments)


@pytest.fixture(autouse=True, scope="module")
def _unchanging_package() -> Iterator[None]:
    """Whoever edits the package while the tests run must not make them see another run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "source_hash", lambda: "1" * 64)
        yield


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Run, list[str]]:
    """Notebooks, runs folder, the finished run of all toys, and what the listener heard."""
    folder = tmp_path_factory.mktemp("toys")
    notebooks = write_toys(folder / "notebooks", TOYS)
    heard: list[str] = []
    run = plan(notebooks, folder / "runs")
    reproduce.reproduce(
        run, notebooks=notebooks, listener=lambda text, done, total: heard.append(f"{done}/{total} {text}")
    )
    return notebooks, folder / "runs", run, heard


def test_a_failure_does_not_stop_the_chapters_after_it(toys) -> None:
    _, _, run, heard = toys
    statuses = {chapter.chapter: chapter.status for chapter in run.chapters}
    assert statuses == {
        "01_sound": "completed", "02_raises": "failed", "03_killed": "out_of_memory", "04_leaves": "failed",
        "05_ignores": "failed", "06_sound": "completed", "07_quits": "failed", "08_crashes": "failed",
        "09_full": "out_of_memory", "10_elsewhere": "unavailable",
    }  # fmt: skip
    assert len(heard) == 20 and heard[0] == "0/10 01_sound ..." and heard[10].startswith("5/10 06_sound ...")
    assert heard[11].startswith("6/10 06_sound completed in ")
    assert not run.complete


@pytest.mark.parametrize(
    ("chapter", "words"),
    [
        ("02_raises", ["code cell 3", "ZeroDivisionError: division by zero"]),
        ("03_killed", ["probably out of memory", "code cell 3 (import os, signal)", "--profile"]),
        ("04_leaves", ["code cell 3 leaves by sys.exit"]),
        ("05_ignores", ["profile='full'", "asked was 'smoke'"]),
        ("07_quits", ["left by itself with exit status 7", "code cell 3 (import os)"]),
        ("08_crashes", ["SIGSEGV", "code cell 3 (import os, signal)"]),
        ("09_full", ["code cell 3", "MemoryError: no room for 8 GiB", "smaller --profile"]),
        ("10_elsewhere", ["NotAvailable: it needs two GPUs"]),
    ],
)
def test_the_reason_says_what_happened_and_where(toys, chapter: str, words: list[str]) -> None:
    reason = toys[2].chapter(chapter).reason
    assert [word for word in words if word not in reason] == []
    assert "\n" not in reason and len(reason) < 200


def test_only_sound_notebooks_are_put_in_place(toys) -> None:
    run = toys[2]
    assert sorted(path.name for path in run.folder.glob("*.ipynb")) == ["01_sound.ipynb", "06_sound.ipynb"]
    failed = sorted(path.stem for path in (run.folder / "failed").glob("*.ipynb"))
    assert failed == [name for name in TOYS if name not in ("01_sound", "06_sound")]


def test_a_chapter_is_told_its_run_and_uses_this_python(toys) -> None:
    run = toys[2]
    python, folder, session, cache, speedlab_cache = (run.folder / "records" / "facts.txt").read_text().split("\n")
    assert Path(python).parent.resolve() == Path(sys.executable).parent.resolve()
    assert (Path(folder), session, Path(cache)) == (run.folder, run.session, run.folder / "compile-cache")
    assert speedlab_cache == os.environ.get("SPEEDLAB_CACHE", "unset")


def test_an_executed_notebook_names_no_folder_of_this_machine(toys) -> None:
    run = toys[2]
    page = run.page("01_sound").read_text()
    assert "working in <run> and ~/secret" in page
    assert str(run.folder) not in page and str(Path.home()) + "/" not in page


def test_the_summary_says_all_of_it(toys) -> None:
    run = toys[2]
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["session"] == run.session and summary["finished_utc"] >= summary["started_utc"]
    first = summary["chapters"][0]
    assert (first["chapter"], first["status"], first["session"]) == ("01_sound", "completed", "0123456789ab")
    assert first["seconds"] > 0 and first["records"] == ["records/facts.txt"]
    lines = summary_table(run, list(TOYS)).split("\n")
    assert len(lines) == 11 and "division by zero" in lines[1]
    assert lines[0].split()[:2] == ["01_sound", "done"] and lines[0].endswith(str(run.page("01_sound")))
    assert str(run.folder / "failed" / "02_raises.ipynb") in lines[1]
    assert lines[-1] == "2 done, 0 current, 5 failed, 2 out of memory, 1 not available here"
    assert exit_code(run, list(TOYS)) == 1 and exit_code(run, ["01_sound"]) == 0
    assert exit_code(run, ["01_sound", "10_elsewhere"]) == 3 and exit_code(run, ["03_killed", "10_elsewhere"]) == 1
    left = summary_table(run, ["02_raises"]).split("\n")
    assert left[0].split()[:2] == ["01_sound", "current"] and "not asked for" in left[2]
    assert left[-1] == "0 done, 2 current, 1 failed, 0 out of memory, 0 not available here, 7 not asked for"


def test_a_later_call_goes_on_with_what_is_left(toys) -> None:
    notebooks, runs, first, _ = toys
    again = plan(notebooks, runs)
    assert again.folder == first.folder and again.session == first.session
    assert reproduce.to_run(again) == [name for name in TOYS if name not in ("01_sound", "06_sound")]
    assert reproduce.to_run(again, "1,05_ignores,06") == ["05_ignores"]
    assert plan(notebooks, runs, fresh=True).folder != first.folder


@pytest.mark.parametrize(
    "change",
    [
        {"profile": "full"},
        {"steps": 4},
        {"source": "measure"},
        {"kernel": "other"},
        {"machine": MACHINE | {"torch": "2.9"}},
    ],
)
def test_a_run_of_another_kind_is_never_continued(toys, change: dict) -> None:
    notebooks, runs, first, _ = toys
    assert plan(notebooks, runs, **change).folder != first.folder


def test_a_changed_package_starts_a_new_run(toys, monkeypatch: pytest.MonkeyPatch) -> None:
    notebooks, runs, first, _ = toys
    monkeypatch.setattr(reproduce, "source_hash", lambda: "0" * 64)
    assert plan(notebooks, runs).folder != first.folder


def test_a_mended_chapter_is_executed_in_the_same_run(tmp_path: Path) -> None:
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a", "1 / 0")})
    run = reproduce.reproduce(plan(notebooks, tmp_path / "runs"), notebooks=notebooks)
    assert run.chapter("01_a").status == "failed"
    write_toys(notebooks, {"01_a": toy_source("01_a", "1 / 1")})
    run = reproduce.reproduce(plan(notebooks, tmp_path / "runs"), notebooks=notebooks)
    assert run.complete and len(list((tmp_path / "runs").iterdir())) == 1
    assert run.page("01_a").is_file() and not (run.folder / "failed" / "01_a.ipynb").exists()
    assert newest_complete(tmp_path / "runs").folder == run.folder
    # Nothing is left, so nothing is executed: a kernel that does not exist would be refused otherwise.
    write_toys(notebooks, {"01_a": toy_source("01_a", "2 / 1")})
    assert reproduce.to_run(plan(notebooks, tmp_path / "runs")) == ["01_a"]


def test_a_cell_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    notebooks = write_toys(
        tmp_path / "notebooks", {"01_slow": toy_source("01_slow", "import threading\nthreading.Event().wait()")}
    )
    run = plan(notebooks, tmp_path / "runs")
    reproduce.reproduce(run, notebooks=notebooks, limits=Limits(cell_s=1))
    assert run.chapter("01_slow").reason == "code cell 3 (import threading) took longer than 1 s"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_kernel_and_leaves_what_was_there(tmp_path: Path, number: int, code: int) -> None:
    """The chapter tells its process id through a pipe, then waits for ever; the signal goes to the runner alone."""
    os.mkfifo(tmp_path / "pipe")
    waits = (
        f"import os, threading\nopen({str(tmp_path / 'pipe')!r}, 'w').write(str(os.getpid()))\nthreading.Event().wait()"
    )
    notebooks = write_toys(tmp_path / "notebooks", {"01_waits": toy_source("01_waits", waits)})
    run = plan(notebooks, tmp_path / "runs")
    run.folder.mkdir(parents=True)
    run.page("01_waits").write_text("the page of an earlier run")
    script = f"""
import sys
from collections.abc import Iterator
from pathlib import Path
from speedlab import cli
from speedlab.publishing import reproduce
notebooks, runs = Path({str(notebooks)!r}), Path({str(tmp_path / "runs")!r})
def command():
    run = reproduce.plan(notebooks=notebooks, runs=runs, profile="smoke", machine={MACHINE!r}, fresh=True)
    reproduce.reproduce(run, notebooks=notebooks)
cli.app.command(name="toy")(command)
cli.main(["toy"])
"""
    runner = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    kernel = int((tmp_path / "pipe").read_text())
    os.kill(kernel, 0)
    runner.send_signal(number)
    _, message = runner.communicate(timeout=60)
    assert runner.returncode == code
    assert len(message.strip().split("\n")) == 1 and message.startswith("speedlab: ")
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)
    interrupted = runs_newest_first(tmp_path / "runs")[0]
    assert [(c.status, c.reason) for c in interrupted.chapters] == [("interrupted", "it was stopped")]
    assert run.page("01_waits").read_text() == "the page of an earlier run"


def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path: Path) -> None:
    source = toy_source("02_b").replace("steps: int", "stepz: int")
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a"), "02_b": source})
    run = plan(notebooks, tmp_path / "runs")
    with pytest.raises(BadInput, match=r"chapter 02_b has no parameter 'steps': its source has profile, stepz, source"):
        reproduce.reproduce(run, notebooks=notebooks)
    assert not run.folder.exists()


def test_a_chapter_without_a_parameters_cell_is_refused(tmp_path: Path) -> None:
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a").replace(' tags=["parameters"]', "")})
    with pytest.raises(BadInput, match="no cell tagged parameters"):
        reproduce.reproduce(plan(notebooks, tmp_path / "runs"), notebooks=notebooks)


@pytest.mark.parametrize(("steps", "given"), [("3", "str"), (True, "bool"), (2.0, "float")])
def test_a_parameter_of_another_type_is_refused_before_anything_runs(tmp_path: Path, steps, given: str) -> None:
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a"), "02_b": toy_source("02_b")})
    run = plan(notebooks, tmp_path / "runs", steps=steps)
    with pytest.raises(BadInput, match=rf"chapter 01_a takes steps as int: {steps!r} is of type {given}"):
        reproduce.reproduce(run, notebooks=notebooks)
    assert not run.folder.exists()


def test_an_unknown_kernel_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(BadInput, match=r"unknown kernel 'nonsense': choose one of .*python3"):
        execute.check_kernel("nonsense")


def test_a_default_kernel_of_another_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [str(tmp_path / "elsewhere" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with pytest.raises(NotAvailable, match="ipykernel install --sys-prefix"):
        execute.check_kernel("python3")


@pytest.mark.parametrize("only", ["11", "nonsense", ""])
def test_an_unknown_chapter_is_refused_with_the_ones_there_are(only: str) -> None:
    with pytest.raises(BadInput, match=r"unknown chapter .*choose one of 01_a, 10_b"):
        sources.select(["01_a", "10_b"], only)


def test_a_folder_without_chapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no chapters in"):
        sources.find_chapters(tmp_path)


SOUND = {
    "profile": "smoke", "steps": 0, "source": "auto", "kernel": "python3", "source_hash": "", "machine": {},
    "chapters": [{"chapter": "01_a"}],
}  # fmt: skip
WRONG = [{"started_utc": None}, {"profile": "huge"}, {"steps": True}, {"machine": []}]
WRONG_CHAPTER = [{"chapter": ["a"]}, {"chapter": "../01_a"}, {"records": "all"}, {"records": [1]}, {"seconds": "1"}]
WRONG += [{"chapters": [{"chapter": "01_a"} | change]} for change in WRONG_CHAPTER]
DAMAGED = ["{", "[]", "{}", '{"chapters": [{"chapter": "01_a", "status": "fine"}]}']


def test_a_summary_of_plain_values_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(SOUND))
    assert Run.read(tmp_path).chapter("01_a").status == "pending"


@pytest.mark.parametrize("text", [*DAMAGED, *(json.dumps(SOUND | changes) for changes in WRONG)])
def test_a_damaged_summary_is_named_and_is_no_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(text)
    with pytest.raises(BadInput, match=r"summary\.json is damaged"):
        Run.read(tmp_path / "run")
    assert runs_newest_first(tmp_path) == []
    with pytest.raises(NotAvailable, match="speedlab reproduce"):
        newest_complete(tmp_path)


def test_a_page_that_was_removed_is_made_again(tmp_path: Path) -> None:
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a")})
    run = reproduce.reproduce(plan(notebooks, tmp_path / "runs"), notebooks=notebooks)
    assert reproduce.to_run(plan(notebooks, tmp_path / "runs")) == []
    page = run.page("01_a").read_text()
    run.page("01_a").unlink()
    assert reproduce.to_run(plan(notebooks, tmp_path / "runs")) == ["01_a"]
    run.page("01_a").write_text(page)
    assert reproduce.to_run(plan(notebooks, tmp_path / "runs")) == []
    (run.folder / ".doit.db").write_bytes(b"not a database")
    with pytest.raises(BadInput, match=r"\.doit\.db cannot be used .*remove that file"):
        plan(notebooks, tmp_path / "runs")
    (run.folder / ".doit.db").unlink()
    assert reproduce.to_run(plan(notebooks, tmp_path / "runs")) == ["01_a"]


def test_without_doit_everything_is_executed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare GPU image may lack it; then nothing counts as current, and nothing breaks."""
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a")})
    monkeypatch.setattr(currency, "can_remember", lambda: False)
    run = reproduce.reproduce(plan(notebooks, tmp_path / "runs"), notebooks=notebooks)
    assert run.complete and not (run.folder / ".doit.db").exists()
    again = plan(notebooks, tmp_path / "runs")
    assert again.folder == run.folder and reproduce.to_run(again) == ["01_a"]


def test_the_estimate_uses_an_earlier_run_of_this_machine(tmp_path: Path) -> None:
    values = {
        "profile": "smoke",
        "steps": 0,
        "source": "auto",
        "kernel": "python3",
        "source_hash": "2",
        "machine": MACHINE,
    }
    chapters = [Chapter(chapter="01_a", seconds=600.0), Chapter(chapter="02_b")]
    new = Run(folder=tmp_path / "new", chapters=chapters, **values)
    assert reproduce.estimated_minutes(new, ["01_a", "02_b"]) == 2
    Run(folder=tmp_path / "old", chapters=chapters, **values).write()
    assert reproduce.estimated_minutes(new, ["01_a", "02_b"]) == 11


def test_a_second_process_in_the_same_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with held(folder), pytest.raises(SpeedLabError, match=r"being executed by another process.*--fresh"), held(folder):
        pass
    with held(folder):  # free again
        pass


def test_a_profile_that_needs_a_gpu_is_refused_before_a_kernel_starts() -> None:
    check_profile("smoke", {"gpu": None})
    check_profile("full", {"gpu": "NVIDIA H200"})
    with pytest.raises(NotAvailable, match=r"profile full needs a GPU.*smoke or auto"):
        check_profile("full", {"gpu": None})
