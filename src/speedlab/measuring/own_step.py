"""The same stopwatch, memory and kernel table for anybody's training step, reached as `speedlab.measure`.

It knows nothing of recipes, ladders or GPT-2: a step is a function without arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from speedlab.errors import BadInput, NotAvailable
from speedlab.records.record import METHOD, SCHEMA
from speedlab.records.stats import Quartiles, quartiles


@dataclass(frozen=True, kw_only=True)
class StepMeasurement:
    """What `measure` found. Raw samples are kept; medians and rates are computed when asked for.

    step_ms: each timed step. first_step_s: the very first one, with compilation where there is any. Bytes are None on
    a CPU, which has no counter of them; energy_j is that of the timed window, None where no card counts it. kernels:
    longest first, calls and microseconds of one step.
    """

    tokens_per_step: int
    step_ms: list[float]
    first_step_s: float
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    energy_j: float | None
    kernels: list[dict[str, Any]]
    machine: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    utc: str
    schema: int = SCHEMA
    method: int = METHOD

    @property
    def step_ms_quartiles(self) -> Quartiles:
        return quartiles(self.step_ms)

    @property
    def tokens_per_s(self) -> float:
        """Of the median step."""
        return 1e3 * self.tokens_per_step / self.step_ms_quartiles.median

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names that a record uses."""
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n"

    def __str__(self) -> str:
        spread = self.step_ms_quartiles
        lines = [
            f"{self.tokens_per_s:,.0f} tokens/s: a step takes {spread.median:.4g} ms (quartiles {spread.q1:.4g} to "
            f"{spread.q3:.4g}, {len(self.step_ms)} steps); the first took {self.first_step_s:.3g} s"
        ]
        if self.peak_reserved_bytes is not None and self.peak_allocated_bytes is not None:
            lines.append(
                f"peak memory: {self.peak_reserved_bytes / 2**30:.2f} GiB reserved, "
                f"{self.peak_allocated_bytes / 2**30:.2f} GiB of it filled by tensors"
            )
        if self.energy_j is not None:
            lines.append(
                f"energy: {self.energy_j / (len(self.step_ms) * self.tokens_per_step) * 1e6:.4g} J per million tokens"
            )
        lines += [
            f"{kernel['time_us'] / 1e3:9.3f} ms  {kernel['calls']:6g} calls  {kernel['kind']}: {kernel['name'][:80]}"
            for kernel in self.kernels[:10]
        ]
        return "\n".join([*lines, *self.notes])


def measure(
    step: Callable[[], Any],
    *,
    tokens_per_step: int,
    steps: int = 30,
    warmup_steps: int = 5,
    kernels: bool = True,
    device: str | None = None,
) -> StepMeasurement:
    """Time your own training step: `speedlab.measure(step, tokens_per_step=8 * 1024)`.

    step: does one whole optimizer step (forward, backward, update, data included) and takes nothing; what it returns
    is ignored. It is called 1 + warmup_steps + steps times, and twice more for the kernel table. It should not
    wait for the GPU itself: no printing, no `.item()`. tokens_per_step: tokens over all micro-batches of the step.
    device: "cuda" or "cpu"; by default a GPU where there is one.

    The first step and the warm-up stand outside the timed window. Raises `BadInput` for arguments that cannot be
    meant and `NotAvailable` for a GPU that is not there; what the step itself raises passes through.
    """

    from speedlab.measuring.kernels import kernel_table
    from speedlab.measuring.machine import describe_machine
    from speedlab.measuring.memory import read_peak, reset_peak
    from speedlab.measuring.power import watch
    from speedlab.measuring.stopwatch import seconds_of
    from speedlab.measuring.variant import time_steps

    if not callable(step):
        raise BadInput(f"step is {step!r}: give a function without arguments that makes one training step")
    for name, value, least in (
        ("tokens_per_step", tokens_per_step, 1), ("steps", steps, 1), ("warmup_steps", warmup_steps, 0),
    ):  # fmt: skip
        if type(value) is not int or value < least:
            raise BadInput(f"{name} is {value!r}: it must be a whole number of at least {least}")
    place = _place(device)
    first_step_s = seconds_of(step, place)
    watcher = watch(place)
    reset_peak(place)
    for _ in range(warmup_steps):
        step()
    step_ms = time_steps(lambda _: step(), iter(()), place, steps, watcher)
    peak = read_peak(place)
    return StepMeasurement(
        tokens_per_step=tokens_per_step,
        step_ms=step_ms,
        first_step_s=first_step_s,
        peak_allocated_bytes=peak.allocated_bytes,
        peak_reserved_bytes=peak.reserved_bytes,
        energy_j=watcher.energy_j,
        kernels=kernel_table(partial(step), place) if kernels else [],
        machine=describe_machine(),
        notes=list(watcher.notes),
        utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _place(device: Any) -> Any:
    """The torch.device to measure on; one that this stopwatch cannot wait for is refused."""
    import torch

    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = str(device).partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise BadInput(f"device is {str(device)!r}: choose cpu or cuda")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise NotAvailable(f"device is {str(device)!r}, but PyTorch sees {torch.cuda.device_count()} GPUs: choose cpu")
    return torch.device(kind, int(index)) if index else torch.device(kind)
