"""Start several processes of one module on this machine by torchrun, watch them, and end them all.

It knows nothing of what they compute. On several machines torchrun is called by hand, on each of them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import torch

from speedlab.errors import NotAvailable, SpeedLabError

POLL_S = 0.1


def check_world_size(world_size: int, *, gpus: int | None) -> None:
    """Refuse more processes than GPUs before anything starts (`gpus` None: no GPU, gloo on the CPU, no limit)."""
    if gpus is not None and world_size > gpus:
        raise NotAvailable(
            f"data_parallel {world_size} needs {world_size} GPUs, one for each process, and this machine has {gpus}: "
            f"choose at most {gpus}"
        )


def launch(
    module: str,
    arguments: Sequence[str],
    *,
    world_size: int,
    timeout_s: float,
    look: Callable[[], float | None] | None = None,
) -> None:
    """Run `python -m module arguments` in `world_size` processes of this machine by torchrun, and wait for them.

    The code lives in a module and not in a notebook cell, and the processes are new ones, so it works after CUDA was
    used here. look: called ten times a second; a number of seconds that it returns is a new time limit from then on.
    `SpeedLabError` with the last lines of a failed process; none survives an error, a timeout or Ctrl-C.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else None
    check_world_size(world_size, gpus=gpus)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}",
        "-m", module, *arguments,
    ]  # fmt: skip
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as output:
        child = subprocess.Popen(
            command, env=child_environment(world_size), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait(child, module, world_size, timeout_s, look)
        finally:
            _end(child)
        if child.returncode != 0:
            output.seek(0)
            raise SpeedLabError(f"{world_size} processes of {module} failed: {last_error(output.read())}")


def child_environment(world_size: int) -> dict[str, str]:
    """This environment with what the processes of a group need on top."""
    threads = max(1, (os.cpu_count() or 1) // world_size)
    return os.environ | {
        "MPLBACKEND": "Agg",  # the notebook's inline plotting backend does not exist in the children
        "OMP_NUM_THREADS": str(threads),
        # Multicast through the NVLink switch hangs or is refused in some containers; a ring needs none.
        "NCCL_NVLS_ENABLE": "0",
    }


def _wait(
    child: subprocess.Popen, module: str, world_size: int, timeout_s: float, look: Callable[[], float | None] | None
) -> None:
    limit_s, end = timeout_s, time.monotonic() + timeout_s
    while child.poll() is None:
        changed = look() if look is not None else None
        if changed is not None:
            limit_s, end = changed, time.monotonic() + changed
        if time.monotonic() > end:
            raise SpeedLabError(f"{world_size} processes of {module} did not end within {limit_s:.0f} s")
        try:
            child.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            continue
    if look is not None:
        look()  # what was finished since


def _end(child: subprocess.Popen) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


# What the other ranks say once one of them is gone.
AFTERMATH = re.compile(r"[Cc]onnection (closed|reset|refused)|remote (worker|process)")


def last_error(output: str) -> str:
    """The line of a child's output that says what went wrong, in front of what torchrun and the other ranks add."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line and "ChildFailedError" not in line]
    causes = [line for line in errors if not AFTERMATH.search(line)]
    chosen = causes[-1:] or errors[-1:] or lines[-3:]
    return " | ".join(chosen)[:500] or "no output"
