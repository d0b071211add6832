"""What this machine can do, and the recipe that it can run instead where it cannot run the one asked for.

Queries are made when called, never at import; everything that decides is a pure function of `Capabilities`.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from speedlab.recipe import Recipe

# Inductor tries several matmul kernels per shape only on cards with at least this many multiprocessors.
MAX_AUTOTUNE_MULTIPROCESSORS = 68

MEMORY_LIMIT_VARIABLE = "SPEEDLAB_GPU_MEMORY_GIB"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The facts that decide which recipe can run. `capability` is None without a GPU."""

    device_type: str  # "cuda" or "cpu"
    capability: tuple[int, int] | None = None
    gpu_name: str | None = None
    gpu_memory_bytes: int | None = None
    multiprocessors: int | None = None
    gpus: int = 0
    cores: int = 1
    compiler_problem: str | None = None  # why torch.compile cannot work here, None if it can
    liger_problem: str | None = None  # the same of Liger's kernels

    @property
    def native_bfloat16(self) -> bool:
        """Units for bfloat16 exist from compute capability 8.0; below it PyTorch emulates and says "supported"."""
        return self.capability is not None and self.capability >= (8, 0)

    @property
    def tf32(self) -> bool:
        """TF32 units exist from compute capability 8.0; Volta and Turing have float16 Tensor Cores only."""
        return self.native_bfloat16

    @property
    def pinned_memory(self) -> bool:
        return self.device_type == "cuda"


@dataclass(frozen=True, kw_only=True)
class Substitution:
    """One recipe field that runs with another value than the ladder asks for, and why."""

    field: str
    asked: Any
    used: Any
    reason: str
    status: str = "unavailable"  # of a rung that is nothing but this change: "unavailable" or "not_applicable"

    def as_dict(self) -> dict[str, Any]:
        return {"field": self.field, "asked": self.asked, "used": self.used, "reason": self.reason}


def capabilities() -> Capabilities:
    """Ask this machine. Takes a second or two, because it imports torch."""
    import torch

    cores = available_cores()
    if not torch.cuda.is_available():
        return Capabilities(
            device_type="cpu", cores=cores, compiler_problem=_cpu_compiler_problem(),
            liger_problem="Liger's kernels need a GPU, and there is none here",
        )  # fmt: skip
    properties = torch.cuda.get_device_properties(0)
    capability = _no_more_than_asked(torch.cuda.get_device_capability(0))
    problem = (
        None if capability >= (7, 0) else f"Triton needs compute capability 7.0, this card has {_dots(capability)}"
    )
    return Capabilities(
        device_type="cuda",
        capability=capability,
        gpu_name=torch.cuda.get_device_name(0),
        gpu_memory_bytes=memory_limit_bytes() or properties.total_memory,
        multiprocessors=properties.multi_processor_count,
        gpus=torch.cuda.device_count(),
        cores=cores,
        compiler_problem=problem,
        liger_problem=None if find_spec("liger_kernel") else "liger-kernel is not installed: take the extra liger",
    )


def available_cores() -> int:
    """Cores that this process may run on, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limit_bytes() -> int | None:
    """The memory of a smaller card to emulate, from SPEEDLAB_GPU_MEMORY_GIB; None: the whole card."""
    from speedlab.errors import BadInput

    text = os.environ.get(MEMORY_LIMIT_VARIABLE)
    if not text:
        return None
    try:
        gib = float(text)
    except ValueError:
        gib = 0.0
    if not 0.0 < gib < 10_000.0:
        raise BadInput(f"{MEMORY_LIMIT_VARIABLE} is {text!r}: it must be a positive number of GiB, such as 14.5")
    return int(gib * 2**30)


def _no_more_than_asked(real: tuple[int, int]) -> tuple[int, int]:
    """The compute capability of an older card to adapt to, from SPEEDLAB_GPU_CAPABILITY, such as 7.5 for a T4.

    Recipes are then chosen as on that card; the kernels stay those of the card that is there.
    """
    from speedlab.errors import BadInput

    text = os.environ.get("SPEEDLAB_GPU_CAPABILITY")
    if not text:
        return real
    major, dot, minor = text.partition(".")
    if not (dot and major.isdigit() and minor.isdigit()) or (int(major), int(minor)) > real:
        raise BadInput(
            f"SPEEDLAB_GPU_CAPABILITY is {text!r}: it must be like 7.5, and at most {_dots(real)} on this card"
        )
    return int(major), int(minor)


def adapt(recipe: Recipe, machine: Capabilities) -> tuple[Recipe, tuple[Substitution, ...]]:
    """The recipe that this machine can run, and one `Substitution` for each field that had to change."""
    substitutions = []
    for rule in RULES:
        substitution = rule(recipe, machine)
        if substitution is not None:
            substitutions.append(substitution)
            recipe = recipe.but(**{substitution.field: substitution.used})
    return recipe, tuple(substitutions)


def _bfloat16(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if machine.device_type == "cpu" or machine.native_bfloat16 or not recipe.precision.startswith("bfloat16"):
        return None
    return Substitution(
        field="precision", asked=recipe.precision, used="float16_autocast",
        reason=f"compute capability {_dots(machine.capability)} has no bfloat16 units; float16 Tensor Cores with "
        "float32 weights and a gradient scaler take its place",
    )  # fmt: skip


def _tf32(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if recipe.matmul_precision == "highest" or machine.tf32:
        return None
    where = "a CPU" if machine.capability is None else f"compute capability {_dots(machine.capability)}"
    return Substitution(
        field="matmul_precision", asked=recipe.matmul_precision, used="highest",
        reason=f"{where} has no TF32 units (they exist from 8.0)",
    )  # fmt: skip


def _pinned(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if recipe.host_memory == "pageable" or machine.pinned_memory:
        return None
    return Substitution(
        field="host_memory", asked=recipe.host_memory, used="pageable", status="not_applicable",
        reason="pinned memory serves copies to a GPU, and there is none here",
    )  # fmt: skip


def _compile(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if recipe.compile == "off" or machine.compiler_problem is None:
        return None
    return Substitution(field="compile", asked=recipe.compile, used="off", reason=machine.compiler_problem)


def _max_autotune(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if not recipe.compile.startswith("max-autotune"):
        return None
    if machine.device_type == "cuda" and (machine.multiprocessors or 0) >= MAX_AUTOTUNE_MULTIPROCESSORS:
        return None
    count = "a CPU" if machine.device_type == "cpu" else f"{machine.multiprocessors} multiprocessors"
    return Substitution(
        field="compile", asked=recipe.compile, used="default", status="not_applicable",
        reason=f"matmul autotuning needs {MAX_AUTOTUNE_MULTIPROCESSORS} multiprocessors, this machine is {count}"
        if machine.device_type == "cpu"
        else f"matmul autotuning needs {MAX_AUTOTUNE_MULTIPROCESSORS} multiprocessors, this card has {count}",
    )  # fmt: skip


def _one_pass(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if recipe.optimizer != "one_pass" or recipe.precision in ("float32", "bfloat16_master"):
        return None
    return Substitution(
        field="optimizer", asked=recipe.optimizer, used="fused", status="not_applicable",
        reason=f"one-pass AdamW updates float32 masters of 16-bit weights, and precision {recipe.precision} has none",
    )  # fmt: skip


def _loss(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if recipe.loss == "liger" and machine.liger_problem is not None:
        return Substitution(field="loss", asked=recipe.loss, used="compiled", reason=machine.liger_problem)
    if recipe.loss in ("liger", "in_place") and recipe.precision.startswith("float16"):
        return Substitution(
            field="loss", asked=recipe.loss, used="compiled", status="not_applicable",
            reason="a gradient stored as float16 before the scaler multiplies it would vanish",
        )  # fmt: skip
    return None


def _attention(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if recipe.attention not in ("sdpa_cudnn", "sdpa_flash") or machine.native_bfloat16:
        return None
    if machine.device_type == "cpu" and recipe.attention == "sdpa_flash":
        return None
    where = "a CPU" if machine.device_type == "cpu" else f"compute capability {_dots(machine.capability)}"
    return Substitution(
        field="attention", asked=recipe.attention, used="sdpa",
        reason=f"the kernels of {recipe.attention} need compute capability 8.0, this is {where}",
    )  # fmt: skip


def _without_triton(field: str, plain: str) -> Callable[[Recipe, Capabilities], Substitution | None]:
    """A rule that takes the plain form of `field` on a GPU that cannot run Triton's kernels."""

    def rule(recipe: Recipe, machine: Capabilities) -> Substitution | None:
        used = getattr(recipe, field)
        if machine.device_type == "cpu" or machine.compiler_problem is None or used not in ("fused", "in_place"):
            return None
        return Substitution(field=field, asked=used, used=plain, reason=machine.compiler_problem)

    return rule


def _fp8(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if recipe.head_matmul == "same" or (machine.capability or (0, 0)) >= (8, 9):
        return None
    where = "a CPU" if machine.capability is None else f"compute capability {_dots(machine.capability)}"
    return Substitution(
        field="head_matmul", asked=recipe.head_matmul, used="same",
        reason=f"{where} has no 8-bit units (they exist from 8.9)",
    )  # fmt: skip


def _data_parallel(recipe: Recipe, machine: Capabilities) -> Substitution | None:
    if recipe.data_parallel == 1:
        return None
    on_cpu = machine.device_type == "cpu"
    there = min(2, machine.cores) if on_cpu else machine.gpus
    if recipe.data_parallel <= there:
        return None
    have = f"{machine.cores} CPU cores and no GPU" if on_cpu else f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''}"
    purpose = "; two gloo processes show that it is correct, not that it is fast" if on_cpu and there == 2 else ""
    return Substitution(
        field="data_parallel", asked=recipe.data_parallel, used=there,
        reason=f"{recipe.data_parallel} processes need {recipe.data_parallel} GPUs, this machine has {have}{purpose}",
    )  # fmt: skip


RULES: tuple[Callable[[Recipe, Capabilities], Substitution | None], ...] = (
    _bfloat16, _tf32, _pinned, _compile, _max_autotune, _one_pass, _loss, _attention, _fp8, _data_parallel,
    _without_triton("loss", "plain"), _without_triton("feed_forward", "separate"),
    _without_triton("residual", "separate"), _without_triton("qkv_backward", "separate"),
)  # fmt: skip


def _dots(capability: tuple[int, int] | None) -> str:
    return "none" if capability is None else f"{capability[0]}.{capability[1]}"


def _cpu_compiler_problem() -> str | None:
    """Inductor generates C++ on a CPU and needs a compiler (it honours CXX) and Python's headers."""
    wanted = os.environ.get("CXX", "g++")
    if shutil.which(wanted) is None:
        return f"torch.compile needs a C++ compiler on a CPU, and {wanted!r} is not installed"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "torch.compile needs Python's headers on a CPU, and Python.h is not installed"
    return None
