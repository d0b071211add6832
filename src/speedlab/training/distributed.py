"""Several processes, one GPU each: PyTorch's own engine (torchrun, DistributedDataParallel, NCCL or gloo)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from speedlab.errors import NotAvailable, SpeedLabError


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this process stands: `rank` of `world_size`, and the device that is its own."""

    rank: int = 0
    world_size: int = 1
    device: torch.device

    def parallelize(self, model: nn.Module) -> DistributedDataParallel:
        """Average gradients over all processes, bucket by bucket, during the backward pass (Li et al. 2020)."""
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean of `values` over all processes, the same on each."""
        if self.world_size == 1:
            return values
        total = values.to(self.device)  # NCCL reduces tensors of the GPU only
        dist.all_reduce(total)
        return total / self.world_size


@contextmanager
def process_group() -> Iterator[Place]:
    """Join the group that torchrun describes in the environment, leave it at the end.

    The device comes from LOCAL_RANK: the global rank names no device on a second machine.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    try:
        yield Place(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()


def check_world_size(world_size: int, *, gpus: int | None) -> None:
    """Refuse more processes than GPUs before anything starts (`gpus` None: no GPU, gloo on the CPU, no limit)."""
    if gpus is not None and world_size > gpus:
        raise NotAvailable(
            f"data_parallel {world_size} needs {world_size} GPUs, one for each process, and this machine has {gpus}: "
            f"choose at most {gpus}"
        )


def launch(module: str, arguments: Sequence[str], *, world_size: int, timeout_s: float) -> None:
    """Run `python -m module arguments` in `world_size` processes of this machine by torchrun, and wait for them.

    The code lives in a module and not in a notebook cell, and the processes are new ones, so it works after CUDA was
    used here. `SpeedLabError` with the last lines of a failed process; none survives an error, a timeout or Ctrl-C.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else None
    check_world_size(world_size, gpus=gpus)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}",
        "-m", module, *arguments,
    ]  # fmt: skip
    threads = max(1, (os.cpu_count() or 1) // world_size)
    # The notebook's inline plotting backend does not exist in the children.
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": str(threads)}
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise SpeedLabError(f"{world_size} processes of {module} did not end within {timeout_s:.0f} s") from None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if child.returncode != 0:
        raise SpeedLabError(f"{world_size} processes of {module} failed: {_last_error(output)}")


# What the other ranks say once one of them is gone.
AFTERMATH = re.compile(r"[Cc]onnection (closed|reset|refused)|remote (worker|process)")


def _last_error(output: str) -> str:
    """The line of a child's output that says what went wrong, in front of what torchrun and the other ranks add."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line and "ChildFailedError" not in line]
    causes = [line for line in errors if not AFTERMATH.search(line)]
    chosen = causes[-1:] or errors[-1:] or lines[-3:]
    return " | ".join(chosen)[:500] or "no output"
