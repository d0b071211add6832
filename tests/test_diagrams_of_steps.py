"""What the diagrams of machine, fusion, shapes and several GPUs count, against independent references."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from speedlab.cards import CARDS
from speedlab.chips import CHIPS, MIB, cards_with_chips
from speedlab.errors import BadInput
from speedlab.measuring.counting import OPERATIONS_OF_ADAMW, OPTIMIZER_PASSES
from speedlab.measuring.traffic import HANDWRITTEN_GELU, NATIVE_GELU
from speedlab.number_formats import FORMATS, round_to
from speedlab.publishing.diagrams_fusion import ADAMW_FUSED, ADAMW_OPERATIONS, passes_and_kernels, passes_of
from speedlab.publishing.diagrams_machine import EXAMPLE, memory_hierarchy, tf32_rounding
from speedlab.publishing.diagrams_several_gpus import LINKS, backward_parts, buckets, ring_all_reduce, ring_states
from speedlab.publishing.diagrams_shapes import TILE_WIDTHS, padded_tiles, row_offsets, tiles_and_waste
from speedlab.records.store import committed_root, read_records


class CountsPasses(TorchDispatchMode):
    """Counts tensors of at least `size` elements that operations take and give."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.reads, self.writes, self.operations = size, 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = func(*args, **(kwargs or {}))
        large = [value for value in args if isinstance(value, torch.Tensor) and value.numel() >= self.size]
        if large:
            self.reads += len(large)
            self.writes += isinstance(given, torch.Tensor) and given.numel() >= self.size
            self.operations += 1
        return given


def test_adamw_passes_against_the_operations_that_pytorch_dispatches() -> None:
    weight = torch.nn.Parameter(torch.ones(64))
    adamw = torch.optim.AdamW([weight], foreach=False, fused=False)
    weight.grad = torch.ones(64)
    adamw.step()  # the first update makes the moments
    with CountsPasses(64) as counted:
        adamw.step()
    assert counted.operations == len(ADAMW_OPERATIONS) == OPERATIONS_OF_ADAMW
    assert counted.reads == sum(len(reads) for _, reads, _ in ADAMW_OPERATIONS)
    assert counted.writes == sum(len(writes) for *_, writes in ADAMW_OPERATIONS)


def test_adamw_passes_are_those_of_the_prediction() -> None:
    assert passes_of(ADAMW_OPERATIONS) == OPTIMIZER_PASSES["for_loop"] == 21
    assert passes_of((ADAMW_FUSED,)) == OPTIMIZER_PASSES["fused"] == 7


def test_passes_and_kernels_sum_over_all_kinds() -> None:
    assert passes_and_kernels({"vectorized": (3, 1), "indexed": (4, 2)}) == (7, 3)
    assert passes_and_kernels(HANDWRITTEN_GELU) == (46, 19)
    assert passes_and_kernels(NATIVE_GELU) == (5, 2)


@pytest.mark.parametrize("columns", [50_257, 50_304, 7])
def test_row_offsets_against_the_strides_of_a_tensor(columns: int) -> None:
    matrix = torch.empty(8, columns, dtype=torch.bfloat16, device="meta")
    expected = [row * matrix.stride(0) * matrix.element_size() % 16 for row in range(8)]
    assert row_offsets(columns, 8) == expected


def test_padding_to_a_multiple_of_64_adds_no_tile() -> None:
    for tile in TILE_WIDTHS:
        exact, padded = tiles_and_waste(50_257, tile), tiles_and_waste(50_304, tile)
        assert exact[0] == padded[0] == len(range(0, 50_257, tile)), "as the drawing says"
        assert exact[1] - padded[1] == 47
    assert "786 tiles, 47 in vain" in padded_tiles()


def test_tf32_drawing_holds_the_bits_that_the_hardware_format_keeps() -> None:
    stored = torch.tensor(EXAMPLE)
    bits = stored.view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32).item()
    assert round_to(stored.item(), FORMATS["TF32"]) == rounded
    digits = "".join(re.findall(r'font-size="12"[^>]*>([01])</text>', tf32_rounding()))
    assert len(digits) == 32 + 19
    assert int(digits[:32], 2) == bits.item()
    assert digits[:32].startswith(digits[32:41]), "sign and exponent are the same"


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_a_ring_gives_every_gpu_the_whole_sum_and_sends_what_the_formula_says(gpus: int) -> None:
    moments = ring_states(gpus)
    assert len(moments) - 1 == 2 * (gpus - 1), "rounds, each sends one chunk of 1 / gpus"
    assert all(chunk == frozenset(range(gpus)) for row in moments[-1] for chunk in row)
    for before, after in pairwise(moments):
        changed = [
            (gpu, chunk) for gpu in range(gpus) for chunk in range(gpus) if before[gpu][chunk] != after[gpu][chunk]
        ]
        assert len({gpu for gpu, _ in changed}) == len(changed) == gpus, "each GPU receives one chunk in every round"


def test_a_ring_sums_each_gradient_once() -> None:
    """Played with numbers beside the sets: a contribution that was added twice would show."""
    gpus = 4
    for before, after in pairwise(ring_states(gpus)[:gpus]):
        for gpu in range(gpus):
            for chunk in range(gpus):
                if before[gpu][chunk] != after[gpu][chunk]:
                    assert not before[gpu][chunk] & before[gpu - 1][chunk]


def test_a_ring_of_one_is_refused() -> None:
    with pytest.raises(BadInput, match="a ring of 1 GPUs: it takes 2 or more"):
        ring_states(1)
    assert "6/4 of it in all" in ring_all_reduce()


@pytest.mark.parametrize("rate", LINKS.values())
def test_buckets_send_every_gradient_once_and_none_before_it_is_there(rate: float) -> None:
    parts, sent = backward_parts(), buckets(rate)
    assert [name for bucket in sent for name in bucket.parts] == [name for name, *_ in parts]
    total = sum(size for *_, size in parts)
    assert total == pytest.approx(2 * 163_009_536, rel=0.01), (
        "all weights in bfloat16, but for biases, norms, positions"
    )
    assert sum(bucket.end_ms - bucket.begin_ms for bucket in sent) == pytest.approx(1e3 * total * 1.5 / rate)
    for bucket, following in pairwise(sent):
        assert bucket.ready_ms <= bucket.begin_ms < bucket.end_ms <= following.begin_ms


def test_chips_against_the_committed_records() -> None:
    seen = {record.device: record.machine["multiprocessors"] for record in read_records(committed_root())
            if record.machine.get("multiprocessors")}  # fmt: skip
    checked = [slug for slug in CHIPS if slug in seen]
    assert checked, "at least one card of the records"
    for slug in checked:
        assert CHIPS[slug].multiprocessors == seen[slug]


def test_chips_hold_less_than_their_cards_and_each_has_a_source() -> None:
    assert [card.slug for card, _ in cards_with_chips()] == list(CHIPS)
    assert set(CHIPS) <= {card.slug for card in CARDS}
    for card, chip in cards_with_chips():
        assert "white paper" in chip.source
        assert chip.on_chip_bytes < card.memory_gib * 2**30 / 500
    assert CHIPS["nvidia-a100-80gb"].all_l1_bytes == 20.25 * MIB


def test_the_squares_of_the_memories_are_to_scale() -> None:
    drawn = memory_hierarchy()
    sides = [float(side) for side in re.findall(r'width="([\d.]+)" height="\1" fill="#56B4E9"', drawn)]
    sizes = [card.memory_gib for card, _ in cards_with_chips()]
    assert [side**2 / sides[0] ** 2 for side in sides] == pytest.approx([size / sizes[0] for size in sizes], rel=0.01)
