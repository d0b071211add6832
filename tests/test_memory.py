"""Peaks are named for what they are, start anew for each variant, and do not exist on a CPU."""

import gc
import weakref

import pytest
import torch
from model_helper import CPU

from speedlab.measuring.memory import PeakMemory, free_everything, read_peak, reset_peak

CUDA = torch.device("cuda")
GIB = 2**30


@pytest.fixture
def gpu(monkeypatch):
    """A card of 16 GiB that writes down what is asked of it."""
    happened = []
    card = type("Card", (), {"total_memory": 16 * GIB})
    for name, answer in {
        "synchronize": None, "empty_cache": None, "reset_peak_memory_stats": None, "max_memory_allocated": 3 * GIB,
        "max_memory_reserved": 4 * GIB, "get_device_properties": card,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *args, n=name, a=answer: happened.append(n) or a)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def set_fraction(fraction, device):
        assert isinstance(device, int)  # PyTorch takes no device without a number here
        happened.append(fraction)

    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", set_fraction)
    monkeypatch.delenv("SPEEDLAB_GPU_MEMORY_GIB", raising=False)
    return happened


def test_a_cpu_has_no_peak_and_never_zero():
    reset_peak(CPU)
    free_everything(CPU)
    assert read_peak(CPU) == PeakMemory(allocated_bytes=None, reserved_bytes=None)


def test_allocated_and_reserved_are_both_read_and_not_mixed_up(gpu):
    assert read_peak(CUDA) == PeakMemory(allocated_bytes=3 * GIB, reserved_bytes=4 * GIB)


def test_a_peak_starts_after_the_work_before_it_is_done_and_its_unused_memory_given_back(gpu):
    reset_peak(CUDA)
    assert gpu == ["synchronize", "empty_cache", "reset_peak_memory_stats"]


def test_what_earlier_variants_left_in_cycles_is_freed():
    class Variant:
        def __init__(self):
            self.me = self

    gc.collect()
    variant = Variant()
    gone = weakref.ref(variant)
    del variant
    assert gone() is not None
    free_everything(CPU)
    assert gone() is None


def test_a_smaller_card_is_emulated_only_when_asked_for(gpu, monkeypatch):
    free_everything(CUDA)
    assert gpu == ["empty_cache"]
    gpu.clear()
    monkeypatch.setenv("SPEEDLAB_GPU_MEMORY_GIB", "12")
    free_everything(CUDA)
    assert gpu == ["empty_cache", "get_device_properties", 0.75]
    gpu.clear()
    monkeypatch.setenv("SPEEDLAB_GPU_MEMORY_GIB", "40")
    free_everything(CUDA)
    assert gpu[-1] == 1.0
