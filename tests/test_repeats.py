"""Same bits twice: runs that repeat and runs that do not, operations, and switches that are put back."""

import itertools

import pytest
import torch
from model_helper import CPU, TINY, lively_weights, random_batches

from speedlab.errors import NotAvailable
from speedlab.measuring.repeats import deterministic_mode, operations, repeat, restart, run_again, warned_operations
from speedlab.training.step import TrainingStep


def switches() -> tuple:
    return (
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark,
    )  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"precision": "float16_autocast"}, {"precision": "bfloat16"}])
def test_a_run_repeats_and_what_went_before_does_not_matter(changes: dict) -> None:
    recipe = TINY.but(layers="native", attention="sdpa", **changes)
    weights = lively_weights(recipe)
    step = TrainingStep(recipe, weights, CPU)
    for batch in random_batches(recipe, 3, seed=9):
        step(iter([batch]))
    found = run_again(step, weights, lambda: iter(random_batches(recipe, 4)), 4)
    assert found["losses_equal"] and found["weights_equal"] and found["largest_weight_difference"] == 0.0
    fresh = TrainingStep(recipe, weights, CPU)
    for batch in random_batches(recipe, 4):
        fresh(iter([batch]))
    assert all(torch.equal(a, b) for a, b in zip(fresh.model.parameters(), step.model.parameters(), strict=True))


def test_a_run_that_sees_other_batches_is_caught() -> None:
    weights, seeds = lively_weights(TINY), itertools.count()
    step = TrainingStep(TINY, weights, CPU)
    found = run_again(step, weights, lambda: iter(random_batches(TINY, 2, seed=next(seeds))), 2)
    assert not found["losses_equal"] and not found["weights_equal"]
    assert found["largest_loss_difference"] > 0 and found["largest_weight_difference"] > 0


def test_masters_cannot_be_restarted() -> None:
    step = TrainingStep(TINY.but(precision="bfloat16_master"), lively_weights(TINY), CPU)
    with pytest.raises(AssertionError, match="masters"):
        restart(step, lively_weights(TINY))


def test_every_operation_gives_outputs_and_gradients_or_says_why_not() -> None:
    cases = operations(CPU)
    assert {"token table", "LayerNorm", "cross-entropy", "attention, math", "linear, head"} <= set(cases)
    for name, make in cases.items():
        if name in ("attention, flash", "attention, math") or not name.startswith("attention"):
            found = repeat(make, 2)
            assert found == {"repeats": 2, "different": 0, "largest_difference": 0.0}, name
    with pytest.raises(NotAvailable, match="attention kernel cudnn does not run here"):
        cases["attention, cudnn"]()


def test_results_that_change_are_counted_with_the_largest_difference() -> None:
    results = itertools.chain([0.0, 0.0, 0.5, -2.0], itertools.repeat(0.0))
    found = repeat(lambda: [torch.zeros(3), torch.tensor([1.0 + next(results)])], 4)
    assert found == {"repeats": 4, "different": 2, "largest_difference": 2.0}


@pytest.mark.parametrize("warn_only", [True, False])
def test_the_switches_are_set_inside_and_put_back_after_an_error(warn_only: bool) -> None:
    before = switches()
    with pytest.raises(ValueError, match="x"), deterministic_mode(warn_only=warn_only):
        assert switches() == (True, warn_only, True, False)
        with deterministic_mode():
            assert switches() == (True, False, True, False)
        assert switches() == (True, warn_only, True, False)
        raise ValueError("x")
    assert switches() == before


def test_operations_without_a_repeatable_form_are_named_once_each() -> None:
    def no_such_form() -> None:
        for _ in range(2):
            torch.zeros(4).put_(torch.tensor([0, 1]), torch.ones(2))

    [said] = warned_operations(no_such_form)
    assert said.startswith("put_ does not have a deterministic implementation") and "aten" not in said
    assert warned_operations(lambda: torch.ones(2) + 1) == []
