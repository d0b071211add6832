"""Batches against windows cut by hand: nothing lost, nothing twice, the same on every machine."""

import warnings
from itertools import islice

import numpy as np
import pytest
import torch
from data_helper import one_line_error

from speedlab.data.stream import HOST_MEMORY, BatchStream
from speedlab.errors import BadInput
from speedlab.recipe import CHOICES

TOKENS = np.arange(1_000, dtype=np.uint16)  # 90 windows of 11 and 10 tokens left over
SHAPE = {"micro_batch": 4, "context_length": 10}


def stream_of(tokens=TOKENS, **changes):
    arguments = {"host_memory": "pageable", "device": "cpu", "seed": 7, **SHAPE} | changes
    return BatchStream(tokens, **arguments)


def windows_of(batches):
    """The number of the window that each row of these batches shows, after checking that it is one."""
    numbers = []
    for inputs, targets in batches:
        assert inputs.shape == targets.shape == (4, 10)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.is_contiguous() and targets.is_contiguous()
        for row, target in zip(inputs.tolist(), targets.tolist(), strict=True):
            number, offset = divmod(row[0], 11)
            assert offset == 0
            assert [*row, target[-1]] == list(range(number * 11, number * 11 + 11))
            assert target[:-1] == row[1:]
            numbers.append(number)
    return numbers


def test_an_epoch_shows_each_window_at_most_once_and_drops_less_than_a_batch():
    stream = stream_of()
    assert stream.batches_per_epoch == 22
    assert stream.tokens_per_epoch == 22 * 4 * 10
    seen = windows_of(islice(stream, 22))
    assert len(set(seen)) == len(seen) == 88
    assert set(seen) < set(range(90))
    assert seen != sorted(seen)
    assert "1,000 tokens" in stream.summary and "2 windows" in stream.summary and "10 tokens" in stream.summary


def test_epochs_follow_each_other_in_new_orders():
    stream = stream_of()
    epochs = []
    for number in range(3):
        assert stream.epoch == number
        epochs.append(windows_of(islice(stream, 22)))
    assert stream.epoch == 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all(len(set(epoch)) == 88 for epoch in epochs)


def test_the_seed_decides_the_order():
    first, again, other = (windows_of(islice(stream_of(seed=seed), 30)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_the_order_is_that_of_a_distributed_sampler():
    sampler = torch.utils.data.DistributedSampler(range(90), num_replicas=2, rank=1, seed=7, drop_last=True)
    expected = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        expected += list(sampler)[:44]  # 45 windows a rank, 11 batches of 4
    assert windows_of(islice(stream_of(rank=1, world_size=2), 22)) == expected


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_an_epoch_without_overlap(world_size):
    streams = [stream_of(rank=rank, world_size=world_size) for rank in range(world_size)]
    batches = streams[0].batches_per_epoch
    assert batches == 90 // world_size // 4
    assert streams[0].tokens_per_epoch == batches * 4 * 10 * world_size
    seen = [number for stream in streams for number in windows_of(islice(stream, batches))]
    assert len(seen) == len(set(seen)) == batches * 4 * world_size


@pytest.mark.parametrize("host_memory", HOST_MEMORY)
def test_host_memory_changes_no_batch_and_warns_of_nothing_without_a_gpu(host_memory):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = stream_of(host_memory=host_memory)
        assert not stream.pins
        assert windows_of(islice(stream, 25)) == windows_of(islice(stream_of(), 25))


def test_host_memory_has_the_values_of_the_recipe():
    assert tuple(HOST_MEMORY) == CHOICES["host_memory"]


def test_pinning_is_asked_for_on_cuda_alone():
    asked = {name: stream_of(host_memory=name, device="cuda").pins for name in HOST_MEMORY}
    assert asked == {name: name != "pageable" for name in HOST_MEMORY}
    assert not stream_of(host_memory="pinned", device="mps").pins


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("host_memory", HOST_MEMORY)
def test_batches_on_a_gpu_are_those_of_the_cpu(host_memory):
    stream = stream_of(host_memory=host_memory, device="cuda")
    stream.start()
    assert stream._first[0].is_pinned() == stream._first[1].is_pinned() == (host_memory != "pageable")
    for on_gpu, on_cpu in zip(islice(stream, 50), stream_of(), strict=False):
        assert on_gpu[0].is_cuda
        assert torch.equal(on_gpu[0].cpu(), on_cpu[0]) and torch.equal(on_gpu[1].cpu(), on_cpu[1])


# Python 3.12 warns of any fork while threads run, which is how the loader starts its workers on Linux.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_worker_processes_change_no_batch():
    stream = stream_of(num_workers=2)
    stream.start()
    try:
        assert windows_of(islice(stream, 25)) == windows_of(islice(stream_of(), 25))
    finally:
        stream.close()


def test_start_loads_the_first_batch_and_loses_none():
    started, plain = stream_of(), stream_of()
    started.start()
    started.start()
    assert started._first is not None
    assert started.epoch == 0
    assert windows_of(islice(started, 5)) == windows_of(islice(plain, 5))


def test_a_closed_stream_begins_again():
    stream = stream_of()
    first = windows_of(islice(stream, 24))
    stream.close()
    assert stream.epoch == 0
    assert windows_of(islice(stream, 24)) == first


def test_the_random_state_of_torch_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    next(stream_of())
    assert torch.equal(torch.rand(4), expected)


def test_a_corpus_of_exactly_one_batch_is_enough():
    stream = stream_of(TOKENS[:44])
    assert stream.batches_per_epoch == 1
    for _ in range(3):
        assert sorted(windows_of([next(stream)])) == [0, 1, 2, 3]
    assert stream.epoch == 3


@pytest.mark.parametrize(("num_tokens", "world_size", "needed"), [(43, 1, "44"), (0, 1, "44"), (87, 2, "88")])
def test_a_corpus_shorter_than_one_batch_is_one_line(num_tokens, world_size, needed):
    one_line_error(
        BadInput, lambda: stream_of(TOKENS[:num_tokens], world_size=world_size), f"has {num_tokens} tokens", needed
    )


def test_an_unknown_host_memory_is_one_line():
    one_line_error(BadInput, lambda: stream_of(host_memory="fast"), "'fast'", *HOST_MEMORY)


def test_a_mapped_file_gives_the_batches_of_the_array(tmp_path):
    np.save(tmp_path / "tokens.npy", TOKENS)
    mapped = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    batches = list(islice(stream_of(mapped), 25))
    assert windows_of(batches) == windows_of(islice(stream_of(), 25))
    batches[0][0].zero_()  # a batch is a copy: the file below it stays as it is
    assert np.load(tmp_path / "tokens.npy").tolist() == TOKENS.tolist()


def test_ids_above_the_signed_16_bit_range_stay_as_they_are():
    tokens = np.full(44, 50_256, dtype=np.uint16)
    inputs, targets = next(stream_of(tokens))
    assert inputs.unique().tolist() == targets.unique().tolist() == [50_256]
