"""The search for the largest micro-batch, on a step that runs out of memory for real and on one that never does."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from data_helper import one_line_error
from model_helper import CPU, TINY, random_batches, short_collections

from speedlab.errors import BadInput, NotAvailable
from speedlab.measuring import batch_probe as module
from speedlab.measuring import memory
from speedlab.measuring.batch_probe import is_out_of_memory, largest_that_fits, probe_micro_batch
from speedlab.model import draw_weights
from speedlab.training.distributed import Place
from speedlab.training.step import TrainingStep

PLACE = Place(device=CPU)


@pytest.fixture(autouse=True, scope="module")
def collections():
    with short_collections():
        yield


TOKENS = list(range(61)) * 200


def searched(limit: int, **options) -> tuple[int, list[int]]:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    return largest_that_fits(fits, **options), tried


def test_doubling_then_bisection_as_the_docstring_shows_it() -> None:
    assert searched(24, at_most=1000) == (24, [1, 2, 4, 8, 16, 32, 24, 28, 26, 25])


@pytest.mark.parametrize("guess", [None, 1, 7, 24, 30, 100, 5000])
@pytest.mark.parametrize("at_most", [1, 2, 24, 100, 129])
def test_the_result_is_the_border_it_was_tried_and_nothing_was_tried_twice(at_most: int, guess: int | None) -> None:
    for limit in range(0, at_most + 2):
        found, tried = searched(limit, at_most=at_most, guess=guess)
        assert found == min(limit, at_most)
        assert found == 0 or found in tried
        assert found == at_most or found + 1 in tried
        assert len(set(tried)) == len(tried) and min(tried) >= 1 and max(tried) <= at_most


def test_a_good_guess_saves_tries_and_a_bound_ends_a_search_that_nothing_else_ends() -> None:
    assert len(searched(90, at_most=1024, guess=90)[1]) < len(searched(90, at_most=1024)[1]) / 2
    assert searched(10**9, at_most=64) == (64, [1, 2, 4, 8, 16, 32, 64])


def test_tries_that_are_dear_can_be_capped_and_what_is_given_then_passed_too() -> None:
    for cap in range(1, 12):
        for limit in (1, 5, 24, 90):
            found, tried = searched(limit, at_most=1024, guess=24, most_tries=cap)
            assert 1 <= found <= limit and found in tried
            first = next(index for index, size in enumerate(tried, start=1) if size <= limit)
            assert len(tried) <= max(cap, first), "beyond the cap only until something fits"
    assert searched(90, at_most=1024, guess=90, most_tries=3) == (90, [90, 95, 92])


def test_a_capped_search_says_that_it_is_not_exact() -> None:
    assert probe(Card(6), at_most=64).exact
    assert probe(Card(99), at_most=4).exact
    capped = probe(Card(6), at_most=64, most_tries=4)
    assert (capped.largest, capped.exact, len(capped.tries)) == (4, False, 4)


def test_a_planned_guess_that_is_off_by_a_twentieth_still_ends_at_the_border() -> None:
    for limit in (57, 60, 63):
        found, tried = searched(limit, at_most=1024, guess=60)
        assert found == limit and len(tried) <= 6


@pytest.mark.parametrize(("options", "word"), [({"at_most": 0}, "at_most"), ({"at_most": 4, "guess": 0}, "guess")])
def test_a_search_that_cannot_be_meant_is_refused(options: dict, word: str) -> None:
    one_line_error(BadInput, lambda: largest_that_fits(lambda size: True, **options), word)


class Card:
    """Starts real steps that find no memory above `limit` sequences, from update `from_update` on."""

    def __init__(self, limit: int, *, from_update: int = 1, error: type[Exception] = torch.OutOfMemoryError) -> None:
        self.limit, self.from_update, self.error = limit, from_update, error
        self.alive: list[weakref.ref] = []
        self.updates: dict[int, int] = {}
        self.still_alive_at_a_start: list[int] = []

    def start(self, recipe, weights, tokens, place):
        self.still_alive_at_a_start.append(sum(ref() is not None for ref in self.alive))
        torch.manual_seed(recipe.seed)
        step = TrainingStep(recipe, weights, place.device)
        step.forward = self.limited(step.forward, recipe.micro_batch)
        self.alive.append(weakref.ref(step))
        return step, iter(random_batches(recipe, 8))

    def limited(self, forward, micro_batch: int):
        def run(tokens_BT):
            self.updates[micro_batch] = self.updates.get(micro_batch, 0) + 1
            held = torch.zeros(1000)
            self.alive.append(weakref.ref(held))
            if micro_batch > self.limit and self.updates[micro_batch] >= self.from_update:
                raise self.error(f"CUDA out of memory: {held.numel()}")
            return forward(tokens_BT)

        return run


def probe(card: Card, **options):
    return probe_micro_batch(TINY, draw_weights(TINY), TOKENS, PLACE, start=card.start, **options)


def test_the_largest_batch_of_a_whole_step_is_found_in_emptied_memory_each_time() -> None:
    card = Card(6)
    heard = []
    found = probe(card, at_most=64, listener=heard.append)
    assert (found.largest, found.bounded) == (6, False)
    assert heard == found.tries and found.best.micro_batch == 6
    assert [t.micro_batch for t in found.tries] == [1, 2, 4, 8, 6, 7]
    assert [t.fits for t in found.tries] == [True, True, True, False, True, False]
    assert {size: count for size, count in card.updates.items() if size <= 6} == {1: 2, 2: 2, 4: 2, 6: 2}
    assert card.still_alive_at_a_start == [0] * 6, "nothing of a try is left for the next, failed or not"
    gc.collect()
    assert sum(ref() is not None for ref in card.alive) == 0
    assert (found.limit_bytes, found.emulated, found.best.peak_reserved_bytes) == (None, False, None)


def test_a_batch_that_fails_in_its_second_update_does_not_count() -> None:
    assert probe(Card(3, from_update=2), at_most=16).largest == 3
    with pytest.raises(BadInput, match="at least 2"):
        probe(Card(3), at_most=16, updates=1)


def test_a_scaler_that_would_skip_the_first_updates_does_not_hide_the_moments() -> None:
    seen = []

    def start(recipe, weights, tokens, place):
        step = TrainingStep(recipe, weights, place.device)
        step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)  # overflows: a step would be skipped
        seen.append(step.optimizer)
        return step, iter(random_batches(recipe, 8))

    recipe = TINY.but(precision="float16_autocast")
    probe_micro_batch(recipe, draw_weights(TINY), TOKENS, PLACE, at_most=1, start=start)
    assert len(seen[0].state) == len(seen[0].param_groups[0]["params"])


def test_the_bound_and_the_corpus_end_a_search() -> None:
    found = probe(Card(10**6), at_most=4)
    assert (found.largest, found.bounded) == (4, True)
    short = probe_micro_batch(TINY, draw_weights(TINY), TOKENS[:100], PLACE, at_most=64, start=Card(99).start)
    assert short.largest == 100 // 17 and short.bounded


def test_a_corpus_without_one_sequence_is_named_and_not_the_memory() -> None:
    def short():
        probe_micro_batch(TINY, draw_weights(TINY), TOKENS[:16], PLACE, at_most=8, start=Card(99).start)

    one_line_error(BadInput, short, "corpus has 16 tokens", "needs 17")


def test_where_not_even_one_sequence_fits_the_error_says_what_to_do() -> None:
    one_line_error(NotAvailable, lambda: probe(Card(0), at_most=8), "16 tokens", "checkpointing")


def test_other_errors_pass_through_and_leave_the_random_state_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    probe(Card(2), at_most=4)
    with pytest.raises(ZeroDivisionError):
        probe(Card(2, error=ZeroDivisionError), at_most=8)
    assert torch.equal(torch.rand(4), expected)


def test_every_try_starts_with_a_compiler_that_has_seen_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    resets = []
    whole = module.start_fresh
    monkeypatch.setattr(module, "start_fresh", lambda device: resets.append(device) or whole(device))
    probe(Card(2), at_most=4)
    assert len(resets) == 3 + 1 + 1  # 1, 2, 4, 3, and once more at the end


def test_memory_that_ran_out_is_recognised_by_class_by_a_library_s_words_or_as_the_cause() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(ValueError("CUBLAS_STATUS_ALLOC_FAILED"))
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as cause:
            raise RuntimeError("backend compiler failed") from cause
    except RuntimeError as error:
        assert is_out_of_memory(error)


def test_a_real_allocation_that_no_machine_can_give_is_no_room() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(error.value)


class FakeGpu:
    """Writes down which share of a card of 16 GiB the allocator may take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fractions: list[float] = []
        card = type("Properties", (), {"total_memory": 16 * 2**30})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(
            torch.cuda, "set_per_process_memory_fraction", lambda fraction, device: self.fractions.append(fraction)
        )
        monkeypatch.delenv("SPEEDLAB_GPU_MEMORY_GIB", raising=False)


def test_a_smaller_card_is_emulated_inside_and_gone_outside_even_after_an_error(monkeypatch) -> None:
    gpu, cuda = FakeGpu(monkeypatch), torch.device("cuda")
    with memory.emulated_card(4.0, cuda):
        assert memory.card_bytes(cuda) == 4 * 2**30
    assert gpu.fractions == [0.25, 1.0] and memory.card_bytes(cuda) == 16 * 2**30
    monkeypatch.setenv("SPEEDLAB_GPU_MEMORY_GIB", "8")
    with pytest.raises(ZeroDivisionError), memory.emulated_card(4.0, cuda):
        raise ZeroDivisionError
    assert gpu.fractions[2:] == [0.25, 0.5] and memory.card_bytes(cuda) == 8 * 2**30
    with memory.emulated_card(None, cuda):
        assert memory.card_bytes(cuda) == 8 * 2**30
    assert len(gpu.fractions) == 4


def test_a_card_cannot_be_emulated_on_a_cpu_nor_with_a_nonsense_size(monkeypatch) -> None:
    with pytest.raises(NotAvailable, match="GPU only"), memory.emulated_card(4.0, CPU):
        pass
    assert memory.card_bytes(CPU) is None
    FakeGpu(monkeypatch)
    with pytest.raises(BadInput, match="SPEEDLAB_GPU_MEMORY_GIB"), memory.emulated_card(-1.0, torch.device("cuda")):
        pass
