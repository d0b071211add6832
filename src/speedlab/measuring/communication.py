"""What an exchange between processes costs here: the rate of the link, and where in a step it lies in time."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from speedlab.measuring.kernels import kernel_rows, kind_of
from speedlab.measuring.stopwatch import Stopwatch, synchronize
from speedlab.measuring.timeline import Span, summarize
from speedlab.recipe import Recipe
from speedlab.scaling_model import ring_bytes
from speedlab.training.distributed import Place
from speedlab.training.precision import precision_of

MIB = 2**20
LINK_SIZES = {"cuda": (8 * MIB, 64 * MIB, 256 * MIB), "cpu": (MIB, 4 * MIB)}
PROFILED_STEPS = 4  # the first waits for whichever process is late, and ends where the timeline begins


def link_rates(place: Place, repeats: int = 10) -> list[dict[str, float]]:
    """All-reduce of float32 at a few sizes: {bytes, ms, bus_bytes_per_s}, medians; called by every process.

    bus_bytes_per_s: what one GPU sends in a ring over the time, so that it can be held against a link's data sheet.
    """
    rows = []
    for size in LINK_SIZES[place.device.type]:
        values = torch.zeros(size // 4, device=place.device)
        for _ in range(3):
            dist.all_reduce(values)
        synchronize(place.device)
        watch = Stopwatch(place.device)
        watch.mark()
        for _ in range(repeats):
            dist.all_reduce(values)
            watch.mark()
        ms = median(watch.step_ms())
        rows.append({"bytes": size, "ms": ms, "bus_bytes_per_s": ring_bytes(place.world_size, size) / (ms / 1e3)})
    return rows


def gradient_bytes(recipe: Recipe, parameters: int) -> int:
    """Bytes of all gradients in the format in which they are exchanged."""
    sent = torch.bfloat16 if recipe.gradient_exchange == "bfloat16" else precision_of(recipe).weights
    return parameters * sent.itemsize


def step_timeline(step: Callable[[], Any], place: Place) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Profile a few steps in a row: the timeline of one as `summarize` tells it, and its kernel table.

    No timeline on a CPU, where processes share the cores and nothing can be said to hide behind anything.
    """
    on_gpu = place.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    synchronize(place.device)
    with profile(activities=activities, acc_events=True) as profiler:
        for _ in range(PROFILED_STEPS):
            step()
        synchronize(place.device)
    kernels = kernel_rows(profiler.key_averages(), PROFILED_STEPS, on_gpu=on_gpu)
    return (summarize(device_spans(profiler.events())) if on_gpu else None), kernels


def device_spans(events: Any) -> list[Span]:
    """The kernels and copies on the card among a profiler's events, annotations left out."""
    spans = []
    for event in events:
        if event.device_type != DeviceType.CUDA or getattr(event, "is_user_annotation", False):
            continue
        if event.time_range.end > event.time_range.start:
            spans.append(Span(kind_of(event.name, on_gpu=True), event.time_range.start, event.time_range.end))
    return spans


def communication_record(
    place: Place, recipe: Recipe, parameters: int, link: list[dict[str, float]], timeline: dict[str, Any] | None
) -> dict[str, Any]:
    """The `communication` object of a record."""
    sent = gradient_bytes(recipe, parameters)
    ring = ring_bytes(place.world_size, sent)
    fastest = max((row["bus_bytes_per_s"] for row in link), default=None)
    return {
        "backend": dist.get_backend(),
        "gradient_bytes": sent,
        "ring_bytes": ring,
        "ring_ms": 1e3 * ring / fastest if fastest else None,
        "link": link,
        "timeline": timeline,
    }
