"""Valid records with made-up numbers, for tests only."""

from __future__ import annotations

from typing import Any

from speedlab.ladder import Ladder, get_ladder
from speedlab.profile import PROFILES
from speedlab.records.record import Record
from speedlab.work import compute_dtype

MACHINE_CPU = {
    "machine_id": "0123456789ab", "gpu": None, "gpus": 0, "capability": None, "gpu_memory_bytes": None,
    "multiprocessors": None, "driver": None, "cuda": None, "cudnn": None, "torch": "2.13.0+cpu", "triton": None,
    "python": "3.11.9", "cpu": "a processor", "cores": 2, "os": "Linux", "power_limit_w": None,
}  # fmt: skip
MACHINE_H200 = MACHINE_CPU | {
    "machine_id": "ba9876543210", "gpu": "NVIDIA H200", "gpus": 1, "capability": [9, 0],
    "gpu_memory_bytes": 150_000_000_000, "multiprocessors": 132, "driver": "580.1", "cuda": "13.0", "cudnn": "91002",
    "torch": "2.13.0+cu130", "triton": "3.7.0", "power_limit_w": 700.0,
}  # fmt: skip
MACHINES = {"cpu": MACHINE_CPU, "nvidia-h200": MACHINE_H200}
MATMUL_FLOPS_PER_S = {"float32": 50e12, "tf32": 400e12, "bfloat16": 700e12, "float16": 700e12}


def spread(step_ms: float, count: int = 40, relative: float = 0.01) -> list[float]:
    """`count` samples around `step_ms`, evenly from -relative to +relative; their median is `step_ms`."""
    return [step_ms * (1 + relative * (2 * index / (count - 1) - 1)) for index in range(count)]


def make_record(
    rung: str = "baseline",
    *,
    ladder: str | Ladder = "nine-steps",
    device: str = "nvidia-h200",
    step_ms: float | list[float] = 250.0,
    **changes: Any,
) -> Record:
    """A measured record of one rung. On "cpu" it is of the smoke profile; `changes` replace fields.

    ladder: a name, or a ladder that stands under none. step_ms: the median, or the samples themselves.
    """
    samples = spread(step_ms) if isinstance(step_ms, int | float) else step_ms
    typical = step_ms if isinstance(step_ms, int | float) else 250.0
    profile = PROFILES["smoke" if device == "cpu" else "full"]
    known = ladder if isinstance(ladder, Ladder) else get_ladder(ladder)
    key = rung if rung in known.keys else "data_parallel"
    recipe = profile.recipe(known, key)
    if rung.startswith("data_parallel_"):
        recipe = recipe.but(data_parallel=int(rung.rsplit("_", 1)[1]))
    contract = known.rung(key).contract
    on_gpu = device != "cpu"
    machine = MACHINES.get(device, MACHINE_H200)
    values: dict[str, Any] = {
        "session": "0f1e2d3c4b5a",
        "device": device,
        "ladder": known.name,
        "rung": rung,
        "profile": profile.name,
        "status": "measured",
        "recipe": recipe.as_dict(),
        "contract_recipe": recipe.but(dropout=0.0).as_dict(),
        "step_ms": samples,
        "tokens_per_step": recipe.tokens_per_step,
        "compile_s": None if recipe.compile == "off" else 31.5,
        "compile_cache": None if recipe.compile == "off" else "cold",
        "peak_allocated_bytes": 20 * 2**30 if on_gpu else None,
        "peak_reserved_bytes": 26 * 2**30 if on_gpu else None,
        "losses": [10.95, 10.21, 9.87],
        "contract": contract,
        "contract_verdict": {"reference": "reference", "training": "differs"}.get(contract, "passed"),
        "kernels": [
            {"name": "gemm", "kind": matmul_kind(compute_dtype(recipe)), "calls": 220.0, "time_us": 400.0 * typical},
            {"name": "elementwise", "kind": "element-wise", "calls": 900.0, "time_us": 300.0 * typical},
            {"name": "copy", "kind": "copy", "calls": 12.0, "time_us": 10.0 * typical},
        ],
        "machine": machine | {"gpus": recipe.data_parallel if on_gpu else 0},
        "corpus": {"name": "standard-library", "sha256": "c" * 64, "tokens": 5_000_000},
        "source_hash": "a" * 64,
        "utc": "2026-11-29T12:00:00Z",
    }  # fmt: skip
    if on_gpu:
        values["ceilings"] = {
            "matmul_flops_per_s": MATMUL_FLOPS_PER_S, "copy_bytes_per_s": 4.1e12, "utc": "2026-11-29T11:59:00Z",
        }  # fmt: skip
        values["predicted"] = {
            "step_ms": 0.8 * typical, "bound_by": "arithmetic", "parts_ms": {"arithmetic": 0.5 * typical},
            "utc": "2026-11-29T11:59:30Z",
        }  # fmt: skip
    return Record(**(values | changes))


def matmul_kind(dtype: str) -> str:
    return "matmul, ordinary" if dtype == "float32" else "matmul, Tensor Cores"


def skipped_record(rung: str, *, status: str = "unavailable", reason: str = "no GPU here", **changes: Any) -> Record:
    """A record of a rung that was not measured."""
    empty = {
        "step_ms": [], "tokens_per_step": None, "compile_s": None, "compile_cache": None, "peak_allocated_bytes": None,
        "peak_reserved_bytes": None, "losses": [], "contract_verdict": None, "kernels": [],
    }  # fmt: skip
    return make_record(rung, **(empty | {"status": status, "reason": reason} | changes))
