"""What a batch run survives: a full disk, a folder that cannot be written, a killed runner, a second run at once.

Each is done for real, on toy chapters. Nothing that was there is lost, no file is half written, no process is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from toy_chapters import heed_interrupts, toy_source, write_toys

from speedlab.publishing.run_folder import Run, runs_newest_first

MACHINE = {"machine_id": "0123456789ab", "torch": "2.13.0", "python": "3.11.7"}
SCRIPT = f"""
import sys
from pathlib import Path
from speedlab import cli
from speedlab.publishing import reproduce
reproduce.source_hash = lambda: "1" * 64
def toy(notebooks: Path, runs: Path):
    run = reproduce.plan(notebooks=notebooks, runs=runs, profile="smoke", machine={MACHINE!r})
    reproduce.reproduce(run, notebooks=notebooks)
cli.app.command(name="toy")(toy)
cli.main(["toy", *sys.argv[1:]])
"""


def start(notebooks: Path, runs: Path, prefix: tuple[str, ...] = ()) -> subprocess.Popen:
    command = [*prefix, sys.executable, "-c", SCRIPT, str(notebooks), str(runs)]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed_interrupts
    )


def finish(runner: subprocess.Popen) -> tuple[int, str]:
    _, errors = runner.communicate(timeout=120)
    return runner.returncode, errors


def waiting_chapter(pipe: Path) -> str:
    """A chapter that tells its process id through a pipe and then waits for ever."""
    return f"import os, threading\nopen({str(pipe)!r}, 'w').write(str(os.getpid()))\nthreading.Event().wait()"


def no_temporary_file(folder: Path) -> bool:
    return [path for path in folder.rglob("*.tmp")] == []


def in_own_mounts(*script: str) -> tuple[str, ...]:
    """Runs a command in a mount namespace of its own, after the lines of `script`: nothing outlives the command."""
    unshare = ("unshare", "--mount", "--map-root-user")
    probe = "mount -t tmpfs tmpfs /mnt"
    if subprocess.run([*unshare, "sh", "-c", probe], capture_output=True).returncode:
        pytest.skip("this machine allows no mount namespace")
    return (*unshare, "sh", "-c", "; ".join([*script, 'exec "$@"']), "sh")


def run_once(notebooks: Path, runs: Path) -> Run:
    code, errors = finish(start(notebooks, runs))
    assert code == 0, errors
    return runs_newest_first(runs)[0]


def test_a_read_only_folder_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a")})
    (tmp_path / "runs").mkdir()
    mounts = in_own_mounts(f"mount -t tmpfs -o ro tmpfs {tmp_path / 'runs'}")
    code, errors = finish(start(notebooks, tmp_path / "runs", mounts))
    last = errors.strip().split("\n")[-1]
    assert (code, last.startswith("speedlab: cannot read or write")) == (2, True), errors
    assert "Read-only file system" in last and "Traceback" not in errors


def test_a_file_where_the_runs_belong_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a")})
    (tmp_path / "runs").write_text("a file")
    code, errors = finish(start(notebooks, tmp_path / "runs"))
    assert code == 2 and errors.startswith("speedlab: cannot read or write") and errors.count("\n") == 1, errors
    assert (tmp_path / "runs").read_text() == "a file"


def test_a_full_disk_leaves_what_was_there_and_the_run_can_go_on(tmp_path: Path) -> None:
    """The page of chapter 1 is there; chapter 2 fills the disk of the run; its output finds no room."""
    fill = (
        "import os, pathlib\nfolder = pathlib.Path(os.environ['SPEEDLAB_RUN'])\n"
        "try:\n    with open(folder / 'ballast', 'wb') as file:\n        while True:\n"
        "            file.write(b'0' * 4096)\n"
        "            file.flush()\nexcept OSError as error:\n    print(error)"
    )
    notebooks = write_toys(
        tmp_path / "notebooks", {"01_a": toy_source("01_a"), "02_fills": toy_source("02_fills", fill)}
    )
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    runs.mkdir()
    # The disk is gone with its namespace, so what it held is copied out before.
    mounts = in_own_mounts(
        f"mount -t tmpfs -o size=256k tmpfs {runs}", f'"$@"; code=$?; cp -a {runs} {kept}; exit $code'
    )
    code, errors = finish(start(notebooks, runs, mounts))
    assert code == 2 and "No space left on device" in errors.strip().split("\n")[-1], errors
    assert "Traceback" not in errors
    run = Run.read(next(kept.glob("*/summary.json")).parent)
    assert [chapter.status for chapter in run.chapters] == ["completed", "interrupted"]
    json.loads(run.page("01_a").read_text())
    assert not run.page("02_fills").exists() and no_temporary_file(kept)


def test_a_killed_runner_leaves_no_process_and_the_next_one_goes_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    toys = {"01_a": toy_source("01_a"), "02_waits": toy_source("02_waits", waiting_chapter(tmp_path / "pipe"))}
    notebooks = write_toys(tmp_path / "notebooks", toys)
    runner = start(notebooks, tmp_path / "runs")
    kernel = psutil.Process(int((tmp_path / "pipe").read_text()))
    below = psutil.Process(runner.pid).children(recursive=True)
    assert kernel in below
    runner.kill()
    runner.communicate()
    assert runner.returncode == -signal.SIGKILL
    _, alive = psutil.wait_procs([kernel, *below], timeout=30)
    assert alive == []
    write_toys(notebooks, {"02_waits": toy_source("02_waits", "1 + 1")})
    run = run_once(notebooks, tmp_path / "runs")
    assert run.complete and len(list((tmp_path / "runs").iterdir())) == 1
    assert run.chapter("01_a").seconds is not None and no_temporary_file(tmp_path / "runs")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_labs_that_run_side_by_side(tmp_path: Path, number: int, code: int) -> None:
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a")})
    for name in ("one", "two", "waiting"):
        os.mkfifo(tmp_path / name)
        write_toys(notebooks / "labs", {name: toy_source(name, waiting_chapter(tmp_path / name))})
    runner = start(notebooks, tmp_path / "runs")
    kernels = [psutil.Process(int((tmp_path / name).read_text())) for name in ("one", "two")]
    runner.send_signal(number)
    returned, errors = finish(runner)
    assert returned == code and errors.strip().split("\n")[-1].startswith("speedlab: "), errors
    assert psutil.wait_procs(kernels, timeout=5)[1] == []
    [run] = runs_newest_first(tmp_path / "runs")
    assert [chapter.status for chapter in run.chapters][:3] == ["completed", "interrupted", "interrupted"]
    assert run.page("01_a").is_file() and no_temporary_file(tmp_path / "runs")


def test_a_second_run_at_the_same_time_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "go")
    waits = f"import os\nopen({str(tmp_path / 'pipe')!r}, 'w').write('here')\nopen({str(tmp_path / 'go')!r}).read()"
    notebooks = write_toys(tmp_path / "notebooks", {"01_a": toy_source("01_a", waits)})
    first = start(notebooks, tmp_path / "runs")
    assert (tmp_path / "pipe").read_text() == "here"
    code, errors = finish(start(notebooks, tmp_path / "runs"))
    assert code == 1 and "is being executed by another process" in errors and "--fresh" in errors, errors
    (tmp_path / "go").write_text("go")
    assert finish(first)[0] == 0
    [run] = runs_newest_first(tmp_path / "runs")
    assert run.complete
