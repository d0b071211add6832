"""Energy, clocks and neighbours of one GPU, read before and after a window. It knows NVML, not steps or records.

Nothing is asked inside the window and nothing here can fail a measurement: what the card, the driver or the
environment does not tell is None, and says nothing.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from speedlab.records.record import REMARK
from speedlab.training.distributed import Place

Value = TypeVar("Value")

# Bits of NVML's "clocks event reasons" that mean the card ran slower than it is built for. The power cap (4) is none
# of them: large cards reach it whenever their matmuls are busy.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "too hot, slowed by the driver",
    0x40: "too hot, slowed by the hardware",
    0x80: "power brake",
}
POWER_CAP = 0x04
# NVML's numbers of the policies whose time is counted, and of the clock that the multiprocessors run at.
POWER_POLICY, THERMAL_POLICY = 0, 1
SM_CLOCK = 1
# The counter moves in steps, seen from 10 to 100 ms: at most a twentieth of a window of this length.
ENERGY_WINDOW_S = 2.0


@dataclass(frozen=True)
class Reading:
    """What one card tells at one moment. energy_mj, *_ns: counters since the driver was loaded; None: not told."""

    seconds: float
    unix_us: int
    energy_mj: int | None
    sm_clock_mhz: int | None
    reasons: int | None
    thermal_ns: int | None
    power_ns: int | None


class Watcher:
    """`with watcher:` around a window; afterwards `energy_j` (joules of this card, or None) and `notes`.

    notes: one line for each flag (clocks slowed by heat, power brake or hardware; another process that computed), and
    remarks, which open with `REMARK` and flag nothing. Open it on an idle device: what still runs is counted.
    """

    def __init__(self, uuid: str | None) -> None:
        """uuid: "GPU-..." of the card; None watches nothing. Make it before the warm-up: the first answers are slow."""
        self.energy_j: float | None = None
        self.notes: list[str] = []
        self._uuid = uuid
        self._nvml = _ask(_import_nvml) if uuid is not None else None
        self._card: Any = None
        self._before: Reading | None = None
        if self._nvml is not None and _ask(self._open):
            self._read(energy_last=True)

    def __enter__(self) -> Watcher:
        if self._card is not None:
            self._before = self._read(energy_last=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is None:
            return
        after = self._read(energy_last=False)
        if kind is None:
            self.energy_j = _joules(self._before, after)
            busy = self._others_busy_percent(self._before, after)
            self.notes = [*_flags(self._before, after, busy), *_remarks(self._before, after)]
        _ask(self._nvml.nvmlShutdown)
        self._card = self._before = None

    def _open(self) -> bool:
        self._nvml.nvmlInit()
        self._card = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        return True

    def _read(self, *, energy_last: bool) -> Reading:
        """All values; the energy counter nearest to the window, because the other calls take milliseconds."""
        nvml, card = self._nvml, self._card

        def energy() -> int | None:
            return _ask(lambda: int(nvml.nvmlDeviceGetTotalEnergyConsumption(card)))

        first = None if energy_last else energy()
        seconds, unix_us = time.perf_counter(), time.time_ns() // 1_000
        rest = {
            "sm_clock_mhz": _ask(lambda: int(nvml.nvmlDeviceGetClockInfo(card, SM_CLOCK))),
            "reasons": self._reasons(),
            "thermal_ns": _ask(lambda: int(nvml.nvmlDeviceGetViolationStatus(card, THERMAL_POLICY).violationTime)),
            "power_ns": _ask(lambda: int(nvml.nvmlDeviceGetViolationStatus(card, POWER_POLICY).violationTime)),
        }
        if energy_last:
            first = energy()
            seconds, unix_us = time.perf_counter(), time.time_ns() // 1_000
        return Reading(seconds=seconds, unix_us=unix_us, energy_mj=first, **rest)

    def _reasons(self) -> int | None:
        reasons = _ask(lambda: int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._card)))
        if reasons is None:  # the name before driver 535
            reasons = _ask(lambda: int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._card)))
        return reasons

    def _others_busy_percent(self, before: Reading, after: Reading) -> int | None:
        """Largest share of the multiprocessors that a process other than this one used in the window, in per cent.

        In a container NVML gives process ids of the host, where this process has another one. The busiest is then
        taken to be this one: it filled the card for the whole window.
        """
        samples = _ask(lambda: list(self._nvml.nvmlDeviceGetProcessUtilization(self._card, before.unix_us)))
        if samples is None:
            return None
        busiest: dict[int, int] = {}
        for sample in samples:
            # A card that is shared reports more than 100 for values that it does not know.
            if before.unix_us < sample.timeStamp <= after.unix_us and sample.smUtil <= 100:
                busiest[sample.pid] = max(busiest.get(sample.pid, 0), sample.smUtil)
        if busiest:
            own = os.getpid() if os.getpid() in busiest else max(busiest, key=busiest.__getitem__)
            del busiest[own]
        return max(busiest.values(), default=0)


def watch(device: torch.device) -> Watcher:
    """A watcher of this device: of its card by its id, whatever CUDA_VISIBLE_DEVICES says; of nothing on a CPU."""
    return Watcher(_uuid(device))


def busy_percent(device: torch.device) -> int | None:
    """The counter "GPU-Util": part of the driver's last period in which some kernel ran; None where it is not told."""
    uuid, nvml = _uuid(device), _ask(_import_nvml)
    if uuid is None or nvml is None or _ask(lambda: (nvml.nvmlInit(), True)) is None:
        return None
    percent = _ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByUUID(uuid)).gpu))
    _ask(nvml.nvmlShutdown)
    return percent


def _uuid(device: torch.device) -> str | None:
    uuid = _ask(lambda: str(torch.cuda.get_device_properties(device).uuid)) if device.type == "cuda" else None
    return uuid and (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")


def joules_of_all(energy_j: float | None, place: Place) -> float | None:
    """Joules of the cards of all processes of a group, called by each of them; None when one of them is not known."""
    if place.world_size == 1:
        return energy_j
    own = torch.tensor(math.nan if energy_j is None else energy_j, dtype=torch.float64)
    total = place.mean(own).item() * place.world_size
    return None if math.isnan(total) else total


def _import_nvml() -> Any:
    import pynvml  # of nvidia-ml-py

    return pynvml


def _ask(question: Callable[[], Value]) -> Value | None:
    """The answer, None where there is none: no module, no driver, not supported by the card, not permitted."""
    try:
        return question()
    except Exception:  # whatever it is, a rung that was timed is worth more than its joules
        return None


def _joules(before: Reading, after: Reading) -> float | None:
    """None also for a counter that stood still or was reset: a driver that counts nothing answers with a constant."""
    if before.energy_mj is None or after.energy_mj is None or after.energy_mj <= before.energy_mj:
        return None
    return (after.energy_mj - before.energy_mj) / 1e3


def _flags(before: Reading, after: Reading, others_busy_percent: int | None) -> list[str]:
    reasons = (before.reasons or 0) | (after.reasons or 0)
    causes = [words for bit, words in SLOWDOWNS.items() if reasons & bit]
    share = _share(before.thermal_ns, after.thermal_ns, before, after)
    if share is not None and share > 0:
        causes.append(f"heat for {_percent(share)} of it")
    flags = [f"clocks throttled in the timed window: {', '.join(causes)}"] if causes else []
    if others_busy_percent:
        flags.append(
            f"another process computed on this GPU in the timed window, on up to {others_busy_percent} % of its time"
        )
    return flags


def _remarks(before: Reading, after: Reading) -> list[str]:
    remarks = []
    share = _share(before.power_ns, after.power_ns, before, after)
    if share is not None and share > 0:
        remarks.append(f"the power cap held the clocks for {_percent(share)} of the window")
    elif ((before.reasons or 0) | (after.reasons or 0)) & POWER_CAP:
        remarks.append("the power cap held the clocks at an end of the window")
    if before.sm_clock_mhz is not None and after.sm_clock_mhz is not None:
        remarks.append(f"SM clock {before.sm_clock_mhz} MHz before and {after.sm_clock_mhz} MHz after the window")
    return [f"{REMARK}{remark}" for remark in remarks]


def _share(start_ns: int | None, end_ns: int | None, before: Reading, after: Reading) -> float | None:
    """Share of the window in which a counter of nanoseconds ran."""
    window_ns = (after.seconds - before.seconds) * 1e9
    if start_ns is None or end_ns is None or window_ns <= 0:
        return None
    return min(1.0, max(0.0, (end_ns - start_ns) / window_ns))


def _percent(share: float) -> str:
    return "less than 1 %" if share < 0.01 else f"{100 * share:.0f} %"
