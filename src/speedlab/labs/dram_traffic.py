"""Bytes that one forward pass of attention moves between memory and chip: by formula, and by NVIDIA's Nsight Compute.

`ncu` runs this module as a program of its own, which makes one call inside the profiler's range, and reads the card's
counters for each kernel. Where it is missing or may not read them, the row says so. It knows no page.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from speedlab.attention_work import attention_traffic as counted_traffic
from speedlab.errors import NotAvailable
from speedlab.labs.rows import attempt
from speedlab.recipe import Recipe

MEASURED = ("plain", "sdpa_flash", "sdpa_cudnn", "triton")
METRICS = {"dram__bytes_read.sum": "read_bytes", "dram__bytes_write.sum": "written_bytes"}
TIME_LIMIT_S = 90
# What Nsight Compute says where the driver keeps the counters to administrators.
NOT_ALLOWED = "ERR_NVGPUCTRPERM"


def attention_traffic(bench: Any, say: Any) -> Iterator[dict[str, Any]]:
    """Rows by `what`: formula (for plain and tiled), measured (for each kernel that exists here)."""
    recipe = bench.scaled(Recipe())
    sizes = {"batch": recipe.micro_batch, "context": recipe.context_length, "heads": recipe.num_heads,
             "head_width": recipe.head_width}  # fmt: skip
    for form, parts in counted_traffic(**sizes, bytes_per_value=2).items():
        yield attempt(
            lambda parts=parts: {"parts": parts, "bytes": sum(parts.values())}, what="formula", kind=form, **sizes
        )
    for kind in MEASURED:
        say(f"Nsight Compute on {kind}")
        measure = partial(measured_traffic, kind, **sizes) if bench.device.type == "cuda" else _no_counters
        row = attempt(measure, what="measured", kind=kind, **sizes)
        yield row
        if row["status"] == "unavailable":
            break  # the tool is what is missing


def _no_counters() -> dict[str, Any]:
    raise NotAvailable("the counters are those of a GPU, and there is none here")


def measured_traffic(kind: str, *, batch: int, context: int, heads: int, head_width: int) -> dict[str, Any]:
    """Bytes read from and written to memory by each kernel of one forward pass in 16 bits, and their sum.

    Nsight Compute empties the caches before each kernel, so what one kernel leaves in the cache for the next counts.
    """
    program = shutil.which("ncu")
    if program is None:
        raise NotAvailable("Nsight Compute (ncu) is not installed")
    with tempfile.TemporaryDirectory(prefix="speedlab-ncu-") as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            program, "--csv", "--print-units", "base", "--log-file", str(log), "--profile-from-start", "off",
            "--metrics", ",".join(METRICS), sys.executable, "-m", "speedlab.labs.dram_traffic",
            kind, *map(str, (batch, context, heads, head_width)),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIME_LIMIT_S, env=os.environ | {"TMPDIR": folder}
            )
        except subprocess.TimeoutExpired:
            raise NotAvailable(f"Nsight Compute took more than {TIME_LIMIT_S} s") from None
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    if NOT_ALLOWED in text or NOT_ALLOWED in done.stdout + done.stderr:
        raise NotAvailable(f"this machine keeps the card's counters to administrators ({NOT_ALLOWED})")
    kernels = kernels_of(text)
    if done.returncode or not kernels:
        raise NotAvailable(f"Nsight Compute ended with {done.returncode} and {len(kernels)} kernels")
    sums = {name: sum(kernel[name] for kernel in kernels) for name in METRICS.values()}
    return {**sums, "bytes": sum(sums.values()), "kernels": kernels}


def kernels_of(text: str) -> list[dict[str, Any]]:
    """The kernels in Nsight Compute's CSV output, one row per kernel and metric there, in order of launch."""
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    kernels: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(lines[start:]):
        name = METRICS.get(row.get("Metric Name") or "")
        if name is not None:
            kernel = kernels.setdefault(row["ID"], {"name": row["Kernel Name"][:100]})
            kernel[name] = int(float(row["Metric Value"].replace(",", "")))
    return [kernel for kernel in kernels.values() if set(METRICS.values()) <= set(kernel)]


def call_once(kind: str, batch: int, context: int, heads: int, head_width: int) -> None:
    """One forward pass inside the profiler's range, after one outside it that compiles and allocates."""
    import torch

    from speedlab.device import capabilities
    from speedlab.labs.attention import half_precision
    from speedlab.labs.attention_kinds import Shape, get_attention, make_inputs

    device = torch.device("cuda")
    shape = Shape(
        batch=batch, context=context, heads=heads, head_width=head_width, dtype=half_precision(capabilities())
    )
    attention = get_attention(kind, device)
    qkv = make_inputs(shape, device)
    with torch.no_grad():
        attention(*qkv, True)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        attention(*qkv, True)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    call_once(sys.argv[1], *map(int, sys.argv[2:6]))
