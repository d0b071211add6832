"""What measured: card, driver and versions, with a fingerprint that names no host, user or folder."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from typing import Any

import torch

from speedlab.device import capabilities, memory_limit_bytes


def describe_machine() -> dict[str, Any]:
    """The `machine` object of a record."""
    machine = capabilities()
    on_gpu = machine.device_type == "cuda"
    uuids = sorted(str(torch.cuda.get_device_properties(i).uuid) for i in range(machine.gpus)) if on_gpu else []
    cpu = _cpu_name()
    return {
        "machine_id": hashlib.sha256("|".join(uuids or [cpu, str(machine.cores)]).encode()).hexdigest()[:12],
        "gpu": machine.gpu_name,
        "gpus": machine.gpus,
        "capability": list(machine.capability) if machine.capability else None,
        "gpu_memory_bytes": torch.cuda.get_device_properties(0).total_memory if on_gpu else None,
        "memory_limit_bytes": memory_limit_bytes(),
        "multiprocessors": machine.multiprocessors,
        "power_limit_w": _nvidia_smi("power.limit", float) if on_gpu else None,
        "driver": _nvidia_smi("driver_version", str) if on_gpu else None,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()) if on_gpu else None,
        "torch": torch.__version__,
        "triton": _triton_version(),
        "python": platform.python_version(),
        "cpu": cpu,
        "cores": machine.cores,
        "os": f"{platform.system()} {platform.machine()}",
    }


def _nvidia_smi(field: str, convert: type) -> Any:
    """One value that the driver's own tool reports, None where the tool or the value is not there."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
        return convert(answer)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # a container without the tool, or a card that does not report this value


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return triton.__version__


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the platform module knows a shorter name
    return platform.processor() or platform.machine()
