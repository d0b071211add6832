"""A rung under the profiler: kernels with shapes and memory, a trace, what a step waits for. It writes no record.

The kernels of a record come from `variant.profile_variant`; this is the closer look of `speedlab kernels`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from speedlab.device import Substitution, adapt, capabilities
from speedlab.errors import NotAvailable
from speedlab.ladder import get_ladder
from speedlab.measuring.events import Event, Report, say_nothing
from speedlab.measuring.kernels import in_format, is_operator, kernel_row, kernel_rows, longest_first
from speedlab.measuring.loader_wait import LoaderWait, loader_wait_ms
from speedlab.measuring.stopwatch import synchronize
from speedlab.measuring.trace import check_free, write_trace
from speedlab.measuring.variant import start_variant, time_steps
from speedlab.measuring.workbench import Workbench
from speedlab.profile import get_profile
from speedlab.records.store import check_writable

WAIT_STEPS, WARMUP_STEPS, ACTIVE_STEPS = 1, 1, 3
TIMED_STEPS = 5  # enough for a median that stands beside the kernels; the speed of a rung is in its record


@dataclass(frozen=True, kw_only=True)
class KernelProfile:
    """What one step of a rung ran here. kernels: {name, kind, calls, time_us} per step, longest first.

    On request each kernel also has shapes (of the tensors that its operator was given, as text) and memory_bytes
    (that its operator allocated less freed, per step).
    """

    ladder: str
    rung: str
    title: str
    device: str
    on_gpu: bool
    profile: str
    torch: str
    steps: int
    kernels: list[dict[str, Any]]
    loader_wait: LoaderWait
    substitutions: tuple[Substitution, ...] = field(default=())

    def by_kind(self) -> list[dict[str, Any]]:
        """{kind, calls, time_us, share of the kernel time}, longest first; "other" is always one of them."""
        total_us = sum(kernel["time_us"] for kernel in self.kernels)
        kinds: dict[str, dict[str, Any]] = {"other": {"kind": "other", "calls": 0.0, "time_us": 0.0}}
        for kernel in self.kernels:
            row = kinds.setdefault(kernel["kind"], {"kind": kernel["kind"], "calls": 0.0, "time_us": 0.0})
            row["calls"] += kernel["calls"]
            row["time_us"] += kernel["time_us"]
        return longest_first(row | {"share": row["time_us"] / total_us if total_us else 0.0} for row in kinds.values())

    def as_dict(self) -> dict[str, Any]:
        return {
            "ladder": self.ladder,
            "rung": self.rung,
            "device": self.device,
            "profile": self.profile,
            "torch": self.torch,
            "profiled_steps": self.steps,
            "substitutions": [substitution.as_dict() for substitution in self.substitutions],
            "kinds": self.by_kind(),
            "kernels": self.kernels,
            "loader": self.loader_wait.as_dict(),
        }


def profile_rung(
    rung: str,
    *,
    ladder: str = "nine-steps",
    profile: str = "auto",
    shapes: bool = False,
    memory: bool = False,
    trace: Path | None = None,
    report: Report = say_nothing,
) -> KernelProfile:
    """Build a rung as this machine runs it, time its loader, profile it. trace: a file to write, which must be free.

    Raises BadInput for an unknown name and for a trace that is there already, NotAvailable for a rung that takes
    several processes or more memory than there is.
    """
    ladder_ = get_ladder(ladder)
    title = ladder_.rung(rung).title
    if trace is not None:
        check_free(trace)
        check_writable(trace.parent)
    machine = capabilities()
    profile_ = get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes)
    processes = adapt(profile_.recipe(ladder_, rung), machine)[0].data_parallel
    if processes > 1:
        raise NotAvailable(f"rung {rung} runs in {processes} processes, and this looks into one: choose another rung")
    bench = Workbench(profile_, machine)
    recipe, substitutions = bench.recipe(ladder_, rung)
    device, on_gpu = bench.device, bench.device.type == "cuda"
    report(Event(kind="note", rung=rung, text="building and warming up"))
    try:
        step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
        for _ in range(1 + profile_.warmup_steps):
            step(batches)
        # Before the profiler: on CUDA a process seems to launch more slowly once it has profiled.
        report(Event(kind="note", rung=rung, text="timing its loader"))
        step_ms = median(time_steps(step, batches, device, TIMED_STEPS))
        wait_ms = loader_wait_ms(step, batches, device, TIMED_STEPS)
        report(Event(kind="note", rung=rung, text="looking at the kernels"))
        profiler = profile_steps(partial(step, batches), device, shapes=shapes, memory=memory)
    except torch.OutOfMemoryError as error:
        need = "a smaller micro-batch fits: try --profile t4"
        raise NotAvailable(f"rung {rung} needs more memory than there is; {need}") from error
    kernels = in_format(profiled_rows(profiler, on_gpu=on_gpu, shapes=shapes, memory=memory), recipe)
    if trace is not None:
        report(Event(kind="note", rung=rung, text=f"writing {trace}"))
        write_trace(profiler, trace)
    kernel_ms = sum(kernel["time_us"] for kernel in kernels) / 1e3 if on_gpu else None
    return KernelProfile(
        ladder=ladder_.name,
        rung=rung,
        title=title,
        device=bench.device_slug,
        on_gpu=on_gpu,
        profile=profile_.name,
        torch=torch.__version__,
        steps=ACTIVE_STEPS,
        kernels=kernels,
        loader_wait=LoaderWait(loader_wait_ms=wait_ms, step_ms=step_ms, kernel_ms=kernel_ms),
        substitutions=substitutions,
    )


def profile_steps(step: Callable[[], Any], device: torch.device, *, shapes: bool, memory: bool) -> profile:
    """The profiler after one step that it skips, one that it warms up on and three that it keeps. No stacks."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    plan = schedule(wait=WAIT_STEPS, warmup=WARMUP_STEPS, active=ACTIVE_STEPS, repeat=1)
    with profile(
        activities=activities, schedule=plan, record_shapes=shapes, profile_memory=memory, acc_events=True
    ) as profiler:
        for _ in range(WAIT_STEPS + WARMUP_STEPS + ACTIVE_STEPS):
            step()
            synchronize(device)  # a kernel that ran late would count for the next step
            profiler.step()
    return profiler


def profiled_rows(profiler: profile, *, on_gpu: bool, shapes: bool, memory: bool) -> list[dict[str, Any]]:
    """The kernel table of a profiler's steps, with the columns that were asked for."""
    if not shapes and not memory:
        return kernel_rows(profiler.key_averages(), ACTIVE_STEPS, on_gpu=on_gpu)
    if on_gpu:
        return launched_rows(profiler.events(), ACTIVE_STEPS, shapes=shapes, memory=memory)
    rows = []
    for entry in profiler.key_averages(group_by_input_shape=shapes):
        if entry.self_cpu_time_total > 0 and is_operator(entry.key, entry.self_cpu_time_total):
            calls, time_us = entry.count / ACTIVE_STEPS, entry.self_cpu_time_total / ACTIVE_STEPS
            asked = {"shapes": shapes_text(entry.input_shapes)} if shapes else {}
            asked |= {"memory_bytes": round(entry.self_cpu_memory_usage / ACTIVE_STEPS)} if memory else {}
            rows.append(kernel_row(entry.key, calls, time_us, on_gpu=False) | asked)
    return longest_first(rows)


def launched_rows(events: Iterable[Any], steps: int, *, shapes: bool, memory: bool) -> list[dict[str, Any]]:
    """The kernels of a GPU by the operators that launched them, since only operators have shapes and memory.

    An operator's memory is shared evenly among its kernels. A kernel that no operator launched keeps its row,
    without shapes, so that calls and times add up to the same as without these columns.
    """
    events = list(events)
    on_card = [event for event in events if event.device_type == DeviceType.CUDA]
    annotations = {event.name for event in on_card if getattr(event, "is_user_annotation", False)}
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # calls, microseconds, bytes
    left: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in on_card:
        if event.name not in annotations:
            left[event.name][0] += 1
            left[event.name][1] += event.self_device_time_total
    for event in events:
        kernels = [kernel for kernel in getattr(event, "kernels", ()) if kernel.name in left]
        if event.device_type != DeviceType.CPU or not kernels:
            continue
        for kernel in kernels:
            row = sums[kernel.name, shapes_text(event.input_shapes) if shapes else ""]
            row[0] += 1
            row[1] += kernel.duration
            row[2] += event.device_memory_usage / len(kernels)
            left[kernel.name][0] -= 1
            left[kernel.name][1] -= kernel.duration
    for name, (calls, time_us) in left.items():
        if calls > 0:
            sums[name, ""][0] += calls
            sums[name, ""][1] += time_us
    rows = []
    for (name, shape), (calls, time_us, byte_count) in sums.items():
        if time_us > 0:
            asked = {"shapes": shape} if shapes else {}
            asked |= {"memory_bytes": round(byte_count / steps)} if memory else {}
            rows.append(kernel_row(name, calls / steps, time_us / steps, on_gpu=True) | asked)
    return longest_first(rows)


def shapes_text(shapes: Any) -> str:
    """[[8, 1024], [], [1024, 768]] -> "8x1024 1024x768": an operator's tensors, its numbers left out."""
    sizes = [shape for shape in shapes or () if isinstance(shape, list | tuple) and shape]
    return " ".join("x".join(str(size) for size in shape) for shape in sizes)
