"""Energy and clocks around a window, with a made-up NVML: what is read when, what is flagged; nothing ever fails."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from speedlab.measuring import power
from speedlab.measuring.power import Watcher, joules_of_all, watch
from speedlab.records.record import REMARK
from speedlab.training.distributed import Place

CARD = "GPU-8d41f0ab-1111-2222-3333-444455556666"
NANOSECONDS = 1_000_000_000


class FakeNvml:
    """NVML of one card that draws 500 W of a clock that only the test moves. `told` overrides answers by name."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self) -> None:
        self.now = 100.0
        self.energy_mj = 7_000_000
        self.reasons = self.thermal_ns = self.power_ns = 0
        self.sm_clock_mhz = 1_980
        self.samples: list[tuple[int, float, int]] = []  # (process id, time, per cent)
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.open = 0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.energy_mj += int(500_000 * seconds)
        self.asked.append("window")

    def answer(self, name: str, value):
        self.asked.append(name)
        if name in self.broken:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlInit(self):
        self.answer("init", None)
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == CARD
        return "card"

    def nvmlDeviceGetTotalEnergyConsumption(self, card):
        return self.answer("energy", self.energy_mj)

    def nvmlDeviceGetClockInfo(self, card, kind):
        assert kind == 1
        return self.answer("clock", self.sm_clock_mhz)

    def nvmlDeviceGetCurrentClocksEventReasons(self, card):
        return self.answer("reasons", self.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card):
        return self.answer("old reasons", self.reasons)

    def nvmlDeviceGetViolationStatus(self, card, policy):
        return SimpleNamespace(violationTime=self.answer("violation", {0: self.power_ns, 1: self.thermal_ns}[policy]))

    def nvmlDeviceGetProcessUtilization(self, card, since_us):
        found = [
            SimpleNamespace(pid=pid, timeStamp=int(seconds * 1e6), smUtil=percent)
            for pid, seconds, percent in self.samples
        ]
        return self.answer("processes", [sample for sample in found if sample.timeStamp > since_us])


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    clock = SimpleNamespace(perf_counter=lambda: fake.now, time_ns=lambda: int(fake.now * 1e9))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(power, "time", clock)
    return fake


def flags(watcher: Watcher) -> list[str]:
    return [note for note in watcher.notes if not note.startswith(REMARK)]


def remarks(watcher: Watcher) -> str:
    return " ".join(note for note in watcher.notes if note.startswith(REMARK))


def watched(nvml: FakeNvml, seconds: float = 4.0, *, within=lambda: None) -> Watcher:
    watcher = Watcher(CARD)
    nvml.pass_time(30.0)  # warm-up: none of its joules count
    with watcher:
        nvml.pass_time(seconds)
        within()
    nvml.pass_time(10.0)
    return watcher


def test_the_joules_are_those_of_the_window_alone(nvml):
    watcher = watched(nvml)
    assert watcher.energy_j == pytest.approx(2_000.0)
    assert flags(watcher) == []
    assert nvml.open == 0


def test_the_energy_counter_is_the_last_thing_asked_before_the_window_and_the_first_after_it(nvml):
    watched(nvml)
    windows = [index for index, name in enumerate(nvml.asked) if name == "window"]
    start, end = windows[1], windows[1] + 1
    assert nvml.asked[start - 1] == "energy" and nvml.asked[end] == "energy"


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0x08, "hardware slowdown"),
        (0x20, "slowed by the driver"),
        (0x40, "slowed by the hardware"),
        (0x80, "power brake"),
        (0x24, "slowed by the driver"),
    ],
)
@pytest.mark.parametrize("where", ["before", "after"])
def test_slowed_clocks_at_either_end_are_a_flag(nvml, reasons, words, where):
    if where == "before":
        nvml.reasons = reasons
    watcher = watched(nvml, within=lambda: setattr(nvml, "reasons", reasons if where == "after" else 0))
    [flag] = flags(watcher)
    assert flag.startswith("clocks throttled") and words in flag


@pytest.mark.parametrize("reasons", [0, 0x01, 0x02, 0x04, 0x10, 0x100])
def test_the_power_cap_and_an_idle_card_are_no_flag(nvml, reasons):
    nvml.reasons = reasons
    watcher = watched(nvml)
    assert flags(watcher) == []
    assert ("power cap" in remarks(watcher)) == (reasons == 0x04)


def test_heat_in_the_middle_of_the_window_is_seen_by_its_counter(nvml):
    nvml.thermal_ns = 5 * NANOSECONDS  # of another day
    assert flags(watched(nvml)) == []
    watcher = watched(nvml, within=lambda: setattr(nvml, "thermal_ns", 6 * NANOSECONDS))
    [flag] = flags(watcher)
    assert "heat for 25 %" in flag


def test_time_at_the_power_cap_is_a_remark_with_its_share(nvml):
    watcher = watched(nvml, within=lambda: setattr(nvml, "power_ns", 3 * NANOSECONDS))
    assert flags(watcher) == [] and "power cap held the clocks for 75 %" in remarks(watcher)


def test_clocks_before_and_after_are_kept(nvml):
    watcher = watched(nvml, within=lambda: setattr(nvml, "sm_clock_mhz", 1_755))
    assert "1980 MHz before and 1755 MHz after" in remarks(watcher)


@pytest.mark.parametrize("own", [os.getpid(), 645_400], ids=["same process ids", "process ids of the host"])
def test_another_process_is_a_flag_only_when_it_computes_inside_the_window(nvml, own):
    nvml.samples = [(own, 133.0, 90), (77, 120.0, 60), (77, 133.0, 0), (78, 138.0, 50), (79, 133.0, 2**32 - 1)]
    assert flags(watched(nvml)) == []  # 77 computed in the warm-up, 78 after the window, 79 tells nothing
    nvml.now = 100.0
    nvml.samples.append((77, 133.5, 30))
    [flag] = flags(watched(nvml))
    assert "another process" in flag and "30 %" in flag


def test_our_own_process_is_known_by_its_id_even_when_another_is_busier(nvml):
    nvml.samples = [(os.getpid(), 133.0, 20), (77, 133.0, 80)]
    [flag] = flags(watched(nvml))
    assert "80 %" in flag


QUESTIONS = ("energy", "clock", "reasons", "old reasons", "violation", "processes")


@pytest.mark.parametrize("silent", [*[{name} for name in QUESTIONS], set(QUESTIONS), {"init"}])
def test_what_a_card_does_not_tell_is_none_and_never_an_error(nvml, silent):
    nvml.broken = silent
    watcher = watched(nvml)
    told = "energy" not in silent and "init" not in silent
    assert (watcher.energy_j is not None) == told and flags(watcher) == []
    if silent >= set(QUESTIONS) or silent == {"init"}:
        assert watcher.notes == []


def test_a_driver_that_knows_only_the_old_name_of_the_reasons_is_asked_by_it(nvml):
    nvml.broken, nvml.reasons = {"reasons"}, 0x40
    assert "slowed by the hardware" in flags(watched(nvml))[0]


@pytest.mark.parametrize("energy_mj", [7_000_000 + 15_000_000, 12])
def test_a_counter_that_stands_still_or_starts_again_gives_no_energy(nvml, energy_mj):
    assert watched(nvml, within=lambda: setattr(nvml, "energy_mj", energy_mj)).energy_j is None


def test_an_error_in_the_window_is_passed_on_and_leaves_nothing_open(nvml):
    watcher = Watcher(CARD)
    with pytest.raises(RuntimeError, match="out of memory"), watcher:
        raise RuntimeError("out of memory")
    assert watcher.energy_j is None and watcher.notes == [] and nvml.open == 0


def test_without_the_module_nothing_is_watched(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with Watcher(CARD) as watcher:
        pass
    assert watcher.energy_j is None and watcher.notes == []


def test_the_real_module_on_a_machine_without_that_card_watches_nothing():
    """The real nvidia-ml-py: without a driver, or with one that knows no such card."""
    with Watcher("GPU-00000000-0000-0000-0000-000000000000") as watcher:
        pass
    assert watcher.energy_j is None and watcher.notes == []


def test_names_and_numbers_are_those_of_the_real_module():
    import pynvml

    assert set(power.SLOWDOWNS) == {
        pynvml.nvmlClocksEventReasonHwSlowdown, pynvml.nvmlClocksEventReasonSwThermalSlowdown,
        pynvml.nvmlClocksEventReasonHwThermalSlowdown, pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    }  # fmt: skip
    assert pynvml.nvmlClocksEventReasonSwPowerCap == power.POWER_CAP
    assert pynvml.NVML_PERF_POLICY_POWER == power.POWER_POLICY
    assert pynvml.NVML_PERF_POLICY_THERMAL == power.THERMAL_POLICY
    assert pynvml.NVML_CLOCK_SM == power.SM_CLOCK
    assert [name for name in dir(FakeNvml) if name.startswith("nvml") and not hasattr(pynvml, name)] == []
    assert {"pid", "timeStamp", "smUtil"} <= {name for name, _ in pynvml.c_nvmlProcessUtilizationSample_t._fields_}
    assert "violationTime" in {name for name, _ in pynvml.c_nvmlViolationTime_t._fields_}


def test_the_card_is_named_by_its_own_id_and_a_cpu_has_none(nvml, monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=CARD.removeprefix("GPU-"))
    )
    with watch(torch.device("cuda", 0)) as watcher:
        nvml.pass_time(2.0)
    assert watcher.energy_j == pytest.approx(1_000.0)
    asked = len(nvml.asked)
    with watch(torch.device("cpu")) as watcher:
        pass
    assert watcher.energy_j is None and len(nvml.asked) == asked


@pytest.mark.parametrize(("joules", "total"), [([100.0, 140.0], 240.0), ([100.0, None], None)])
def test_the_joules_of_a_group_are_those_of_all_its_cards(joules, total):
    class Group(Place):
        def mean(self, values):
            others = torch.tensor([float("nan") if joule is None else joule for joule in joules[1:]])
            return (values + others.sum()) / self.world_size

    place = Group(rank=0, world_size=2, device=torch.device("cpu"))
    assert joules_of_all(joules[0], place) == (None if total is None else pytest.approx(total))
    assert joules_of_all(None, Place(device=torch.device("cpu"))) is None
