"""The kernels of a rung as text for a terminal. It computes shares, and never measures."""

from __future__ import annotations

from speedlab.measuring.kernel_profile import KernelProfile
from speedlab.publishing import formatting as form
from speedlab.publishing.tables import Table

SHAPES_WIDTH, NAME_WIDTH = 60, 90


def kernel_report(profiled: KernelProfile, top: int) -> str:
    """What `speedlab kernels` prints: kinds with their shares, the `top` longest kernels, what the step waits for."""
    return "\n".join([kind_table(profiled).text(), longest_table(profiled, top).text(), *wait_lines(profiled)])


def kind_table(profiled: KernelProfile) -> Table:
    """Calls, milliseconds and share of the kernel time by kind."""
    what = "kernels" if profiled.on_gpu else "operators"
    title = (
        f"{profiled.title} ({profiled.ladder}/{profiled.rung}) on {profiled.device}, profile {profiled.profile}, "
        f"torch {profiled.torch}: one step, the mean of {profiled.steps} that were profiled"
    )
    kinds = profiled.by_kind()
    cells = tuple(
        (row["kind"], f"{row['calls']:,.0f}", form.three_digits(row["time_us"] / 1e3), form.percent(row["share"]))
        for row in kinds
    )
    other = next(row["share"] for row in kinds if row["kind"] == "other")
    notes = [f"other: {what} whose names say nothing to this program, {form.percent(other)} of the time"]
    notes += [form.substitution(substitution.as_dict()) for substitution in profiled.substitutions]
    columns = (f"kind of {what[:-1]}", "calls", "ms", "share")
    return Table(title, columns, cells, numbers=frozenset(columns[1:]), notes=tuple(notes))


def longest_table(profiled: KernelProfile, top: int) -> Table:
    """The longest kernels, with the columns that were asked for."""
    total_us = sum(kernel["time_us"] for kernel in profiled.kernels)
    shown = profiled.kernels[:top]
    has_shapes = any("shapes" in kernel for kernel in shown)
    has_memory = any("memory_bytes" in kernel for kernel in shown)
    numbers = ["calls", "ms", "share"] + (["MiB allocated"] if has_memory else [])
    cells = []
    for kernel in shown:
        line = [f"{kernel['calls']:,.0f}", form.three_digits(kernel["time_us"] / 1e3)]
        line.append(form.percent(kernel["time_us"] / total_us))
        if has_memory:
            line.append(form.three_digits(round(kernel["memory_bytes"] / 2**20, 2) + 0.0))  # never "-0.00"
        line.append(kernel["kind"])
        if has_shapes:
            line.append(_cut(kernel["shapes"], SHAPES_WIDTH))
        cells.append((*line, _cut(kernel["name"], NAME_WIDTH)))
    what = "kernel" if profiled.on_gpu else "operator"
    columns = (*numbers, "kind", *(["shapes"] if has_shapes else []), what)
    title = f"the {len(shown)} longest of {len(profiled.kernels)}"
    return Table(title, columns, tuple(cells), numbers=frozenset(numbers))


def wait_lines(profiled: KernelProfile) -> list[str]:
    """What a step waits for: its batches, and on a GPU how much of it no kernel runs."""
    wait = profiled.loader_wait
    wait_ms, step_ms = form.three_digits(wait.loader_wait_ms), form.three_digits(wait.step_ms)
    loader = f"loader: the batches of a step take {wait_ms} ms until they are on the device, a step {step_ms} ms"
    if wait.kernel_ms is None:
        return [f"{loader}: it waits for them {form.percent(wait.loader_share)} of its time"]
    return [
        loader,
        f"GPU: kernels take {form.three_digits(wait.kernel_ms)} ms of the step, so it idles "
        f"{form.percent(wait.gpu_idle_share)} of it, at most {form.percent(wait.loader_share)} for the loader",
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
