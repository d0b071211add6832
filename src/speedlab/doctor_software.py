"""What doctor looks at beside the card: CUDA toolkits, what building an extension needs, processes left behind.

It starts nothing but the tools' own `--version`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# flash-attn's build uses up to this much memory for each compiler that runs at once (its README says to limit them).
EXTENSION_JOB_GIB = 8.0
WORKER_NAME = "pt_data_worker"  # what torch calls the processes of a DataLoader


def cuda_toolkit(torch_cuda: str | None) -> tuple[bool, str, str | None]:
    """(ok, found, reason): the CUDA of nvcc against the one that torch was built with.

    Only building an extension needs nvcc, so a machine without it is fine.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return True, f"torch {torch_cuda or 'without CUDA'}, no nvcc (only building extensions needs it)", None
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    match = re.search(r"release (\d+)\.(\d+)", text)
    if match is None:
        return False, "nvcc does not say its version", "building an extension will fail: install the CUDA toolkit again"
    found = f"torch {torch_cuda or 'without CUDA'}, nvcc {match[1]}.{match[2]}"
    if torch_cuda is not None and torch_cuda.split(".")[0] != match[1]:
        return False, found, "an extension built by this nvcc will not load into this torch: make the versions agree"
    return True, found, None


def extension_build(cores: int, memory_gib: float | None = None) -> tuple[bool, str, str | None]:
    """(ok, found, reason): whether building something like flash-attn would use all cores, and not all memory."""
    memory_gib = _memory_gib() if memory_gib is None else memory_gib
    jobs = max(1, min(cores, int(memory_gib // EXTENSION_JOB_GIB)))
    asked = os.environ.get("MAX_JOBS")
    found = f"ninja {'there' if shutil.which('ninja') else 'not there'}, MAX_JOBS {asked or 'not set'}"
    if shutil.which("ninja") is None:
        return False, found, "flash-attn and the like would be built on one core, for hours: pip install ninja"
    if (int(asked) if asked and asked.isdigit() else cores) > jobs:
        return False, found, f"{memory_gib:.0f} GiB of memory are enough for {jobs} jobs: set MAX_JOBS={jobs}"
    return True, found, None


def stray_processes(proc: Path = Path("/proc")) -> tuple[bool, str, str | None]:
    """(ok, found, reason): zombies, and data loading workers whose program is gone. Linux only."""
    zombies, orphans = [], []
    for status in proc.glob("[0-9]*/status"):
        try:
            lines = status.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue  # it ended while we looked
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        number = status.parent.name
        if fields.get("State", "").startswith("Z"):
            zombies.append(number)
        elif fields.get("Name", "").startswith(WORKER_NAME) and fields.get("PPid", "").strip() == "1":
            orphans.append(number)
    found = f"{len(zombies)} zombies, {len(orphans)} workers without their program"
    if orphans:
        return False, found, f"they hold memory: end them with kill {' '.join(sorted(orphans, key=int))}"
    return True, found, None


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
