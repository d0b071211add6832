"""What counts as compile time, warm-up and window, on steps whose time is known; then real steps, one compiled."""

import gc
import weakref

import numpy as np
import pytest
import torch
from data_helper import one_line_error
from model_helper import CPU, TINY, draw_weights, lively_weights, reference_logits, reference_loss, short_collections

from speedlab.data.stream import BatchStream
from speedlab.errors import BadInput
from speedlab.measuring import stopwatch, variant
from speedlab.measuring.variant import Plan, contract_losses, contract_recipe, measure_variant, profile_variant
from speedlab.training.distributed import Place

PLACE = Place(device=CPU)
TOKENS = np.random.default_rng(0).integers(0, TINY.vocab_size, 4_000).astype(np.uint16)
PLAN = Plan(contract_steps=4, warmup_steps=2, steps=5)


@pytest.fixture(scope="module", autouse=True)
def fast_collections():
    with short_collections():
        yield


@pytest.fixture
def fake(monkeypatch):
    """Steps on a clock that only they move: 30 s for the first of each variant, 10 ms for each after it."""

    class Clock:
        seconds = 0.0

        def perf_counter(self):
            return self.seconds

    class Step:
        made = []  # noqa: RUF012
        slow_steps = {1: 30.0}  # noqa: RUF012

        def __init__(self, recipe, weights, device, *, parallelize=None):
            gc.collect()
            assert not any(other() for _, other in self.made), "the variant before is still in memory"
            self.recipe, self.device, self.calls, self.true_losses = recipe, device, 0, None
            self.skipped = None
            self.made.append((recipe, weakref.ref(self)))

        def __call__(self, batches):
            next(batches)
            self.calls += 1
            clock.seconds += self.slow_steps.get(self.calls, 0.010)
            if self.true_losses is not None:
                self.true_losses += [torch.tensor(10.0 - self.calls)] * self.recipe.accumulation

    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", clock)
    monkeypatch.setattr(variant, "TrainingStep", Step)
    Step.made = []
    return Step


def measured(recipe, plan=PLAN, **options):
    return measure_variant(recipe, {}, TOKENS, plan, PLACE, kernels=False, **options)


def test_the_slow_first_step_is_compile_time_and_no_part_of_the_window(fake):
    found = measured(TINY.but(compile="default"))
    assert found.step_ms == pytest.approx([10.0] * 5)
    assert found.compile_s == pytest.approx(30.0 - 0.010)
    assert found.losses == [9.0, 8.0, 7.0, 6.0]
    assert len(fake.made) == 1  # without dropout one variant serves the check and the timing


def test_without_compilation_there_is_no_compile_time(fake):
    found = measured(TINY)
    assert found.compile_s is None and found.compile_cache is None
    assert found.step_ms == pytest.approx([10.0] * 5)


def test_slow_steps_of_the_warm_up_are_no_part_of_the_window(fake):
    fake.slow_steps = {1: 30.0, 5: 7.0, 6: 7.0}  # 4 contract steps, then 2 of warm-up
    assert measured(TINY).step_ms == pytest.approx([10.0] * 5)
    fake.slow_steps = {7: 7.0, 12: 9.0}
    assert measured(TINY).step_ms == pytest.approx([7_000.0, 10.0, 10.0, 10.0, 10.0])


def test_with_dropout_the_check_runs_without_it_and_the_timing_with_it(fake):
    recipe = TINY.but(dropout=0.1, compile="default")
    found = measured(recipe)
    assert [made for made, _ in fake.made] == [recipe.but(dropout=0.0), recipe]
    assert found.compile_s == pytest.approx(30.0 - 0.010)  # of the variant that is timed, once
    assert found.losses == [9.0, 8.0, 7.0, 6.0] and len(found.step_ms) == 5


def test_a_plan_without_contract_steps_compares_nothing(fake):
    recipe = TINY.but(dropout=0.1)
    found = measured(recipe, Plan(contract_steps=0, warmup_steps=1, steps=3))
    assert found.losses == [] and found.step_ms == pytest.approx([10.0] * 3)
    assert [made for made, _ in fake.made] == [recipe]


def test_losses_are_one_a_step_however_many_micro_batches_it_has(fake):
    assert measured(TINY.but(accumulation=3)).losses == [9.0, 8.0, 7.0, 6.0]


def test_recompilations_inside_the_window_are_counted_and_those_before_it_are_not(fake, monkeypatch):
    """A real recompilation: another shape, seen first in the window."""
    grow = torch.compile(lambda x: x * 2 + 1, backend="eager", dynamic=False)
    original = fake.__call__

    def compiled(sizes):
        def step(self, batches):
            original(self, batches)
            grow(torch.ones(sizes.get(self.calls, 3)))

        return step

    monkeypatch.setattr(fake, "__call__", compiled({}))
    assert measured(TINY).recompiles == 0
    monkeypatch.setattr(fake, "__call__", compiled({2: 4, 6: 5}))  # contract and warm-up
    assert measured(TINY).recompiles == 0
    monkeypatch.setattr(fake, "__call__", compiled({8: 4, 10: 5}))
    assert measured(TINY).recompiles == 2


def test_energy_and_flags_are_those_of_the_timed_window(fake, monkeypatch):
    class Watcher:
        def __enter__(self):
            self.start = seconds()

        def __exit__(self, *error):
            self.energy_j, self.notes = 100.0 * (seconds() - self.start), ["another process computed"]

    def seconds():
        return stopwatch.time.seconds

    monkeypatch.setattr(variant, "watch", lambda device: Watcher())
    found = measured(TINY.but(compile="default"))
    assert found.energy_j == pytest.approx(100.0 * 5 * 0.010) and found.notes == ["another process computed"]


@pytest.mark.parametrize(("step_s", "steps"), [(0.03, 67), (0.3, 7), (0.5, 5)])
def test_energy_is_counted_over_two_seconds_and_the_extra_steps_leave_the_times_alone(fake, monkeypatch, step_s, steps):
    """A card of 100 W: a window of its own for short steps, the timed one where it will do."""

    class Watcher:
        def __enter__(self):
            self.start = stopwatch.time.seconds

        def __exit__(self, *error):
            self.energy_j, self.notes = 100.0 * (stopwatch.time.seconds - self.start), []

    monkeypatch.setattr(variant, "watch", lambda device: Watcher())
    fake.slow_steps = dict.fromkeys(range(1, 1_000), step_s)
    found = measured(TINY, long_energy=True)
    assert found.step_ms == pytest.approx([1e3 * step_s] * 5)
    assert found.energy_steps == steps and found.energy_j == pytest.approx(100.0 * step_s * steps)
    short = measured(TINY)
    assert short.energy_steps == 5 and short.energy_j == pytest.approx(100.0 * step_s * 5)


def test_steps_without_an_update_are_counted_for_each_run_and_flagged(fake, monkeypatch):
    """Steps 2 and 8 overflow: one of the four that are compared, one of the five that are timed."""

    def quiet(self, value):
        """The made-up step sets it to None when it is made."""

    monkeypatch.setattr(
        fake, "skipped", property(lambda self: sum(self.calls >= at for at in (2, 8)), quiet), raising=False
    )
    found = measured(TINY)
    assert found.skipped_steps == {"contract": 1, "window": 1}
    assert [note.split("update of ")[1] for note in found.notes] == ["1 steps of the contract", "1 steps of the window"]
    monkeypatch.setattr(fake, "skipped", property(lambda self: 0, quiet))
    found = measured(TINY)
    assert found.skipped_steps == {"contract": 0, "window": 0} and found.notes == []


def test_on_a_cpu_no_energy_is_counted_and_nothing_flagged(fake):
    assert measured(TINY).energy_j is None and measured(TINY).notes == []


def test_on_a_cpu_there_is_no_peak_memory(fake):
    assert measured(TINY).peak == (None, None)


def test_the_contract_is_run_without_dropout_and_with_everything_else():
    recipe = TINY.but(dropout=0.1, attention="sdpa", micro_batch=5)
    assert contract_recipe(recipe) == recipe.but(dropout=0.0)


def test_contract_losses_are_those_of_the_reference_on_the_batches_of_the_stream():
    recipe = TINY.but(dropout=0.2, vocabulary="padded", accumulation=2)  # dropout must not matter
    weights = lively_weights(recipe)
    [first, *_] = contract_losses(recipe, weights, TOKENS, 2, PLACE)
    stream = BatchStream(
        TOKENS, micro_batch=3, context_length=16, host_memory="pageable", device="cpu", seed=recipe.seed
    )
    exact = [reference_loss(reference_logits(weights, recipe, x), y).item() for x, y in (next(stream), next(stream))]
    assert first == pytest.approx(sum(exact) / 2, abs=1e-5)


def test_variants_of_one_training_have_the_same_losses_and_repeats_the_same_bits():
    weights = draw_weights(TINY)
    plain = contract_losses(TINY, weights, TOKENS, 5, PLACE)
    assert contract_losses(TINY.but(causal_mask="on_the_fly", host_memory="pinned"), weights, TOKENS, 5, PLACE) == plain
    fast = TINY.but(layers="native", attention="sdpa", qkv_projection="merged", optimizer="fused", vocabulary="padded")
    found = contract_losses(fast, weights, TOKENS, 5, PLACE)
    # Training with padded ids is another softmax: 3 of 64 ids shift each gradient by a few per cent.
    assert found == pytest.approx(plain, abs=2e-3) and found[0] == pytest.approx(plain[0], abs=1e-5)
    assert contract_losses(fast.but(vocabulary="exact"), weights, TOKENS, 5, PLACE) == pytest.approx(plain, abs=1e-5)


def test_measuring_leaves_nothing_of_the_variant_in_memory():
    gc.collect()
    measure_variant(TINY, draw_weights(TINY), TOKENS, PLAN, PLACE, kernels=False)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing).__name__ == "TrainingStep"]


def test_kernels_are_looked_at_only_when_asked_for():
    weights = draw_weights(TINY)
    assert measure_variant(TINY, weights, TOKENS, PLAN, PLACE, kernels=False).kernels == []
    kernels = measure_variant(TINY, weights, TOKENS, PLAN, PLACE).kernels
    assert {"matmul, ordinary", "softmax and loss", "optimizer"} <= {row["kind"] for row in kernels}
    alone = {row["name"]: row["calls"] for row in profile_variant(TINY, weights, TOKENS, PLACE)}
    assert alone["aten::bmm"] == 6 * TINY.num_layers


def test_a_corpus_shorter_than_a_batch_is_refused():
    call = lambda: measure_variant(TINY, draw_weights(TINY), TOKENS[:50], PLAN, PLACE)  # noqa: E731
    one_line_error(BadInput, call, "50 tokens", "51", "longer corpus")


def test_a_compiled_variant_trains_the_same_and_says_whether_its_cache_was_warm(tmp_path, monkeypatch):
    """The only test that runs the compiler behind torch.compile: half a minute cold."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    recipe = TINY.but(num_layers=1, layers="native", attention="sdpa", compile="default")
    weights, plan = draw_weights(recipe), Plan(contract_steps=3, warmup_steps=1, steps=3)
    eager = contract_losses(recipe.but(compile="off"), weights, TOKENS, 3, PLACE)
    cold = measure_variant(recipe, weights, TOKENS, plan, PLACE)
    assert cold.losses == pytest.approx(eager, abs=1e-4)
    assert cold.compile_cache == "cold" and cold.compile_s > 0.2 and cold.recompiles == 0
    assert len(cold.step_ms) == 3 and 1e3 * cold.compile_s > max(cold.step_ms)
    assert "fused" in {row["kind"] for row in cold.kernels}
    warm = measure_variant(recipe, weights, TOKENS, plan, PLACE, kernels=False)
    assert warm.compile_cache == "warm" and warm.losses == cold.losses and warm.compile_s < cold.compile_s
