"""Executes one chapter: percent source to notebook, papermill in a process of its own, the result checked.

It never puts a notebook in place that is not sound, and does not know which chapters there are or in which order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speedlab.errors import BadInput, NotAvailable, SpeedLabError, check_choice
from speedlab.publishing.chapter_process import kernel_status_path
from speedlab.publishing.outcome import count_oom_kills, outcome_of
from speedlab.publishing.run_folder import Chapter, Run
from speedlab.records.store import write_text_atomic

DEFAULT_KERNEL = "python3"
GRACE_S = 10  # for a process that was asked to end
STOP_S = 0.5  # how often a chapter in a thread looks whether it is to stop


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds after which one cell, or one whole chapter, is stopped and counted as failed."""

    cell_s: int = 1_800
    chapter_s: int = 5_400

    def __post_init__(self) -> None:
        for name, value in (("cell", self.cell_s), ("chapter", self.chapter_s)):
            if value < 1:
                raise BadInput(f"the time limit of a {name} is {value} s: it must be at least 1 s")


def read_source(source: Path) -> Any:
    """A percent source as a notebook, without the metadata that only jupytext needs."""
    import jupytext

    try:
        notebook = jupytext.read(source)
    except OSError as error:
        raise BadInput(f"cannot read {source}: {error.strerror}") from error
    notebook.metadata.pop("jupytext", None)
    return notebook


def convert(source: Path, target: Path) -> None:
    """Percent source to notebook, one direction only."""
    import nbformat

    nbformat.write(read_source(source), target)


def check_parameters(notebook: Path, parameters: dict[str, Any]) -> None:
    """Refuse a chapter that lacks one of the parameters, or says another type of it than the value has.

    papermill itself would only log an unknown name and run the defaults.
    """
    import papermill

    known = papermill.inspect_notebook(str(notebook))
    for name, value in parameters.items():
        if name not in known:
            has = f"has {', '.join(known)}" if known else "has no cell tagged parameters"
            raise BadInput(f"chapter {notebook.stem} has no parameter {name!r}: its source {has}")
        wanted, given = known[name]["inferred_type_name"], type(value).__name__
        if wanted not in ("None", given):
            raise BadInput(f"chapter {notebook.stem} takes {name} as {wanted}: {value!r} is of type {given}")


def check_kernel(kernel: str) -> None:
    """Refuse a kernel that is not installed, and a default one that would run another Python than this."""
    needed = ("papermill", "jupytext", "ipykernel", "psutil")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise NotAvailable(
            f"{', '.join(missing)} not installed in {sys.executable}: run `make env`, "
            "or install the packages of the extra `notebooks`"
        )
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    # This environment's kernel, not one of the same name in the home folder; papermill inherits the wish.
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    manager = KernelSpecManager()
    try:
        interpreter = Path(manager.get_kernel_spec(kernel).argv[0])
    except NoSuchKernel:
        check_choice("kernel", kernel, sorted({*manager.find_kernel_specs(), DEFAULT_KERNEL}))
        raise
    # A bare "python" is replaced by this interpreter when the kernel starts.
    if kernel == DEFAULT_KERNEL and interpreter.is_absolute() and interpreter.parent.resolve() != _bin_folder():
        raise NotAvailable(
            f"kernel {kernel} runs {interpreter}, not {sys.executable}: "
            f"install this one with `{sys.executable} -m ipykernel install --sys-prefix`"
        )


def _bin_folder() -> Path:
    return Path(sys.executable).parent.resolve()


def run_chapter(
    run: Run, chapter: Chapter, notebook: Path, limits: Limits, stop: threading.Event | None = None
) -> None:
    """Execute one chapter, put its page in place if it is sound, and note what became of it in the summary.

    stop: for a call outside of the main thread, which no signal reaches; when it is set, the chapter is interrupted.
    """
    output = notebook.with_name(f"{chapter.chapter}.executed.ipynb")
    log = run.folder / "logs" / f"{chapter.chapter}.log"
    chapter.status, chapter.reason, chapter.records = "interrupted", "it was stopped", []
    started, killed = time.monotonic(), count_oom_kills()
    log.parent.mkdir(parents=True, exist_ok=True)
    run.write()
    try:
        status = _papermill(run, chapter, notebook, output, log, limits, stop or threading.Event())
        chapter.seconds = round(time.monotonic() - started, 1)
        chapter.status, chapter.reason = _settle(run, chapter, output, log, status, limits, killed)
    finally:
        chapter.seconds = round(time.monotonic() - started, 1)
        run.write()


def _papermill(
    run: Run, chapter: Chapter, notebook: Path, output: Path, log: Path, limits: Limits, stop: threading.Event
) -> int | None:
    """The exit status of `chapter_process`, None when it took too long. A signal here ends the kernel too."""
    request = {
        "notebook": str(notebook), "output": str(output), "kernel": run.kernel, "folder": str(run.folder),
        "parameters": run.parameters(chapter), "cell_s": limits.cell_s, "parent": os.getpid(),
    }  # fmt: skip
    command = [sys.executable, "-m", "speedlab.publishing.chapter_process", json.dumps(request)]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=_environment(run),
            start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + limits.chapter_s
        try:
            while time.monotonic() < end:
                if stop.is_set():
                    raise SpeedLabError(f"{chapter.chapter} was stopped")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=min(STOP_S, limits.chapter_s))
            return None
        finally:
            _end(process)


def _environment(run: Run) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("MPLBACKEND", None)  # a kernel chooses its own, or figures would not be shown
    environment |= {
        "SPEEDLAB_RUN": str(run.folder),
        "SPEEDLAB_SESSION": run.session,
        "TORCHINDUCTOR_CACHE_DIR": str(run.folder / "compile-cache"),
    }
    # A kernel starts in the run folder, where a relative entry would mean something else.
    if paths := [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _end(process: subprocess.Popen) -> None:
    """Stop papermill and everything below it, kernel and torchrun's ranks too, if it still runs; wait for all of it."""
    if process.poll() is not None:
        return
    import psutil

    below = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    for child in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs([psutil.Process(process.pid), *below], timeout=GRACE_S)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(alive)
    process.wait()


def _settle(
    run: Run, chapter: Chapter, output: Path, log: Path, status: int | None, limits: Limits, killed: int
) -> tuple[str, str | None]:
    """Move the executed notebook to its page when it is sound, otherwise to `failed/`; its status, and why.

    killed: how many processes Linux had killed for memory before.
    """
    import nbformat

    from speedlab.publishing.executed import final_result

    try:
        notebook = nbformat.read(output, as_version=4)
    except (OSError, ValueError):  # papermill never came to write it, or was stopped while it did
        return "failed", f"papermill ended with status {status}: {_last_line(log)}"
    _hide_paths(notebook, run)
    outcome, reason = outcome_of(
        notebook, chapter.chapter, status, run=run.folder, asked=run.parameters(chapter), limits=limits,
        kernel_status=_kernel_status(output), oom_kills=count_oom_kills() - killed,
        log=log.read_text(encoding="utf-8", errors="replace"),
    )  # fmt: skip
    failed = run.folder / "failed" / f"{chapter.chapter}.ipynb"
    write_text_atomic(failed if reason else run.page(chapter.chapter), nbformat.writes(notebook))
    if reason is None:
        result = final_result(notebook)
        chapter.session, chapter.records = result["session"], result["records"]
        failed.unlink(missing_ok=True)
    return outcome, reason


def _kernel_status(output: Path) -> int | None:
    try:
        return int(kernel_status_path(output).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _hide_paths(notebook: Any, run: Run) -> None:
    """Replace this machine's folders in text outputs and metadata: a page says what ran, not where."""
    names = [(str(run.folder), "<run>"), (str(Path.home()), "~"), (tempfile.gettempdir(), "<tmp>")]

    def hidden(value: Any) -> Any:
        if isinstance(value, str):
            for folder, name in names:
                value = re.sub(rf"{re.escape(folder)}(?![\w.-])", name, value)
            return value
        if isinstance(value, list):
            return [hidden(item) for item in value]
        if isinstance(value, dict):
            return {key: item if key.startswith("image/") else hidden(item) for key, item in value.items()}
        return value

    for cell in notebook.cells:
        if cell.cell_type == "code":
            for output in cell.outputs:
                output.update(hidden(dict(output)))
    notebook.metadata.get("papermill", {}).update(hidden(dict(notebook.metadata.get("papermill", {}))))


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no message")
