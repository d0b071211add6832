"""What claims of the folklore need of the host alone: memory of loader processes, and errors that DDP raises.

It measures; `speedlab.folklore` judges. No GPU takes part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speedlab.errors import NotAvailable
from speedlab.labs.rows import attempt

if TYPE_CHECKING:
    from speedlab.measuring.workbench import Workbench

SAMPLES, TOY_SAMPLES = 1_000_000, 50_000
EPOCHS, BATCHES = 3, 20  # few batches: looking at a large process takes the kernel some milliseconds
LONGEST_CHILD_S = 120.0
PROCESS_MEMORY = Path("/proc/self/smaps_rollup")  # Linux


def folklore_host(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Rows by `what`: worker (private bytes of a loader process by epoch), ddp (the error of a case, if any)."""
    samples = SAMPLES if bench.profile.publishable else TOY_SAMPLES
    for held in HOLDERS:
        for persistent in (True, False):
            say(f"a loader process over {held}, persistent {persistent}")
            yield attempt(
                partial(_worker_bytes, held, persistent, samples), what="worker", held=held, persistent=persistent
            )
    say("errors of DistributedDataParallel")
    cases: list[dict[str, Any]] = []
    failed = attempt(lambda: cases.extend(ddp_cases()) or {}, what="ddp", case="all")
    if failed["status"] != "measured":
        yield failed
    for case in cases:
        yield attempt(lambda case=case: case, what="ddp")


class Texts:
    """Samples as a list of Python objects: reading one writes its reference count, so its page is copied."""

    def __init__(self, samples: int) -> None:
        self.texts = [f"text number {number}" for number in range(samples)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> int:
        text = self.texts[index]
        return len(text)


class Packed:
    """The same samples as one array of bytes: reading one writes nothing."""

    def __init__(self, samples: int) -> None:
        self.texts = np.array([f"text number {number}".encode() for number in range(samples)])

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> int:
        return len(self.texts[index])


HOLDERS: dict[str, type] = {"a list": Texts, "an array": Packed}


def private_bytes() -> int:
    """Memory that this process shares with no other one."""
    lines = PROCESS_MEMORY.read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def collate_bytes(samples: list[int]) -> tuple[int, int]:
    """(worker's process id, its private bytes), in place of a batch."""
    return os.getpid(), private_bytes()


def _worker_bytes(held: str, persistent: bool, samples: int) -> dict[str, Any]:
    """Private bytes of the one loader process after its first and after its last batch of each epoch."""
    from torch.utils.data import DataLoader

    if not PROCESS_MEMORY.is_file():
        raise NotAvailable("the private memory of a process is told by Linux alone")
    loader = DataLoader(
        HOLDERS[held](samples), batch_size=samples // BATCHES, num_workers=1, collate_fn=collate_bytes, shuffle=False,
        persistent_workers=persistent, multiprocessing_context="fork",
    )  # fmt: skip
    epochs = [list(loader) for _ in range(EPOCHS)]
    return {
        "samples": samples,
        "first_bytes": [epoch[0][1] for epoch in epochs],
        "last_bytes": [epoch[-1][1] for epoch in epochs],
        "processes": len({pid for epoch in epochs for pid, _ in epoch}),
    }


def ddp_cases() -> list[dict[str, Any]]:
    """{case, error}: what DistributedDataParallel says in two steps of small models, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="speedlab-ddp-") as folder:
        answer = Path(folder) / "cases.json"
        # No GPU is to be seen: gloo on the CPU raises the same errors.
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        child = subprocess.run(
            [sys.executable, "-m", "speedlab.labs.ddp_errors", str(answer)],
            env=environment, capture_output=True, text=True, timeout=LONGEST_CHILD_S, check=False,
        )  # fmt: skip
        if child.returncode != 0:
            lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
            raise RuntimeError(f"the process with the cases failed: {lines[-1] if lines else 'no message'}")
        return json.loads(answer.read_text())
