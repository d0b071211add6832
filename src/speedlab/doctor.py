"""Says what this machine can run, and why not the rest. It asks and tries small things; it measures nothing.

Every answer is a `Check`: what was looked at, what was found, and where it falls short the reason.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speedlab.device import Capabilities, adapt, capabilities
from speedlab.doctor_software import cuda_toolkit, extension_build, stray_processes
from speedlab.inert import inert_reason
from speedlab.ladder import LADDERS, Ladder, Rung
from speedlab.outlook import chapters_here, outlook_lines
from speedlab.profile import Profile, get_profile

# An environment with the CUDA build of torch takes about 8 GiB, a run's compile cache and records well under one.
DISK_GIB_WANTED = 10.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """One fact about the machine. `reason` says what it means where `ok` is False."""

    name: str
    ok: bool
    found: str
    reason: str | None = None


def examine() -> dict[str, Any]:
    """Everything at once, as plain values: `machine` (as in a record), `profile`, `checks`, `chapters`, `rungs`."""
    from speedlab.measuring.machine import describe_machine

    here = capabilities()
    machine = describe_machine()
    profile = get_profile("auto", gpu_memory_bytes=here.gpu_memory_bytes)
    return {
        "machine": machine,
        "profile": profile.name,
        "profile_about": profile.about,
        "checks": [asdict(check) for check in checks(here, machine)],
        "chapters": chapters_here(here, profile),
        "rungs": [what_runs(ladder, rung, profile, here) for ladder in LADDERS.values() for rung in ladder],
    }


def checks(here: Capabilities, machine: dict[str, Any]) -> list[Check]:
    """All facts, the ones that matter most first."""
    return [
        _gpu(here, machine),
        _tensor_cores(here),
        _bfloat16(here),
        Check(name="torch", ok=True, found=f"{machine['torch']}, CUDA {machine['cuda'] or 'none (a CPU build)'}"),
        _compiler(here, machine),
        *_attention_backends(here),
        Check(
            name="pinned memory", ok=here.pinned_memory, found="yes" if here.pinned_memory else "no",
            reason=None if here.pinned_memory else "it serves copies to a GPU, and there is none",
        ),
        _cores(here),
        _disk(Path.cwd()),
        Check(**_named("CUDA toolkit", cuda_toolkit(machine["cuda"]))),
        Check(**_named("building extensions", extension_build(here.cores))),
        Check(**_named("processes left behind", stray_processes())),
    ]  # fmt: skip


def what_runs(ladder: Ladder, rung: Rung, profile: Profile, here: Capabilities) -> dict[str, Any]:
    """Whether the change that a rung is about can be made here: "as asked", "substituted", or its status as a row.

    `reasons` are of that change alone; `inherited` names the fields that run otherwise because of an earlier rung.
    """
    _, substitutions = adapt(profile.recipe(ladder, rung.key), here)
    own = [s for s in substitutions if s.field in rung.change]
    undone = [s.status for s in own if s.used == _value_before(ladder, rung, s.field)]
    reasons = [f"{s.field} {s.asked} -> {s.used}: {s.reason}" for s in own]
    before = ladder.before(rung.key)
    for field in rung.change if before and not own else ():
        if reason := inert_reason(field, profile.recipe(ladder, before), profile.recipe(ladder, rung.key)):
            undone, reasons = ["not_applicable"], [reason]
    return {
        "ladder": ladder.name,
        "rung": rung.key,
        "runs": undone[0] if undone else "substituted" if own else "as asked",
        "reasons": reasons,
        "inherited": [s.field for s in substitutions if s not in own],
    }


def as_text(report: dict[str, Any]) -> str:
    """The report for people, one screen: facts, what each chapter will do here, and a line for each ladder.

    Reasons of the other ladders' rungs stand in the JSON form.
    """
    width = max(len(check["name"]) for check in report["checks"])
    lines = []
    for check in report["checks"]:
        reason = f" ({check['reason']})" if check["reason"] else ""
        lines.append(f"{'ok' if check['ok'] else '--'}  {check['name']:<{width}}  {check['found']}{reason}")
    lines += ["", f"profile: {report['profile']}, {report['profile_about']}"]
    lines += outlook_lines(report["chapters"])
    counted = []
    for ladder in LADDERS.values():
        rungs = [row for row in report["rungs"] if row["ladder"] == ladder.name]
        unchanged = [row for row in rungs if row["runs"] == "as asked"]
        counted.append(f"{ladder.name} {len(unchanged)} of {len(rungs)}")
    lines.append(f"rungs that run as asked: {', '.join(counted)}")
    return "\n".join(lines)


def _named(name: str, answer: tuple[bool, str, str | None]) -> dict[str, Any]:
    return dict(zip(("name", "ok", "found", "reason"), (name, *answer), strict=True))


def _value_before(ladder: Ladder, rung: Rung, field: str) -> Any:
    before = ladder.before(rung.key)
    return getattr(ladder.recipe_at(before) if before else ladder.start, field)


def _gpu(here: Capabilities, machine: dict[str, Any]) -> Check:
    if here.device_type == "cuda":
        memory = (here.gpu_memory_bytes or 0) / 2**30
        found = f"{here.gpus} x {here.gpu_name}, {memory:.1f} GiB, {here.multiprocessors} multiprocessors"
        return Check(name="GPU", ok=True, found=f"{found}, driver {machine['driver'] or 'unknown'}")
    reason = "only the smoke profile runs here; its speeds mean nothing"
    if shutil.which("nvidia-smi"):
        # The commonest reasons for a card that is there and cannot be used.
        build = "torch is a CPU build: install one for CUDA" if machine["cuda"] is None else "the driver may be too old"
        reason = f"nvidia-smi is there, but torch sees no card: {build}"
    return Check(name="GPU", ok=False, found="none", reason=reason)


def _tensor_cores(here: Capabilities) -> Check:
    if here.capability is None:
        return Check(name="Tensor Cores", ok=False, found="none", reason="no GPU")
    found = f"compute capability {here.capability[0]}.{here.capability[1]}"
    if here.tf32:
        return Check(name="Tensor Cores", ok=True, found=f"{found}: float16, bfloat16, TF32")
    if here.capability >= (7, 0):
        return Check(name="Tensor Cores", ok=False, found=f"{found}: float16", reason="TF32 exists from 8.0")
    return Check(name="Tensor Cores", ok=False, found=found, reason="they exist from 7.0")


def _bfloat16(here: Capabilities) -> Check:
    if here.native_bfloat16:
        return Check(name="bfloat16", ok=True, found="native")
    if here.device_type == "cpu":
        return Check(name="bfloat16", ok=False, found="computed by the CPU", reason="often slower than float32 there")
    return Check(name="bfloat16", ok=False, found="emulated", reason="float16 with a gradient scaler takes its place")


def _compiler(here: Capabilities, machine: dict[str, Any]) -> Check:
    if here.compiler_problem is not None:
        return Check(name="torch.compile", ok=False, found="cannot be used", reason=here.compiler_problem)
    if here.device_type == "cuda":
        if machine["triton"] is None:
            return Check(name="torch.compile", ok=False, found="cannot be used", reason="Triton is not installed")
        return Check(name="torch.compile", ok=True, found=f"Triton {machine['triton']}")
    compiler = os.environ.get("CXX", "g++")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not headers.is_file():
        reason = f"{compiler} is there, but not Python's own headers: install python3-dev or python3-devel"
        return Check(name="torch.compile", ok=False, found="cannot be used", reason=reason)
    return Check(name="torch.compile", ok=True, found=f"C++ compiler {compiler}, Triton {machine['triton'] or 'none'}")


# The chapters' attention: heads, tokens of the context, width of a head. One sequence, because the kernel is the same.
ATTENTION_SHAPE = (1, 12, 1024, 64)


def _attention_backends(here: Capabilities) -> list[Check]:
    """Each kernel of scaled_dot_product_attention, tried with the shapes and the format that the chapters use."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    on_gpu = here.device_type == "cuda"
    dtype = (torch.bfloat16 if here.native_bfloat16 else torch.float16) if on_gpu else torch.float32
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    if on_gpu:
        backends |= {"efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    found = []
    for name, backend in backends.items():
        qkv_BHTD = torch.zeros(ATTENTION_SHAPE, device=here.device_type, dtype=dtype)
        what = str(dtype).removeprefix("torch.")
        with warnings.catch_warnings(), sdpa_kernel(backend):
            warnings.simplefilter("ignore")  # torch lists what every other backend lacks; the one asked for is named
            try:
                scaled_dot_product_attention(qkv_BHTD, qkv_BHTD, qkv_BHTD, is_causal=True)
                # On a CPU "flash" is another program of the same idea, and says nothing about a GPU.
                kind = what if on_gpu else f"{what}, the CPU's own kernel"
                found.append(Check(name=f"attention, {name}", ok=True, found=kind))
            except RuntimeError as error:
                reason = str(error).splitlines()[0].rstrip(".")
                found.append(Check(name=f"attention, {name}", ok=False, found=f"not for {what}", reason=reason))
    return found


def _cores(here: Capabilities) -> Check:
    enough = here.cores >= 2
    reason = None if enough else "data loading and the training step share one core"
    return Check(name="CPU cores", ok=enough, found=str(here.cores), reason=reason)


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free / 2**30
    enough = free >= DISK_GIB_WANTED
    wanted = f"an environment with CUDA and its caches want about {DISK_GIB_WANTED:.0f} GiB"
    reason = None if enough else wanted
    return Check(name="free disk", ok=enough, found=f"{free:.1f} GiB", reason=reason)
