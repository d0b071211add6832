"""Loss curves: what they hold, that batches of another size read the same text, and the gap between two of them."""

import numpy as np
import pytest
import torch
from model_helper import CPU, TINY, lively_weights
from records_helper import make_record

from speedlab.measuring.curves import POINTS, gap, training_curve, with_skipped
from speedlab.training.distributed import Place

RECIPE = TINY.but(layers="native", attention="sdpa", dropout=0.1)
TOKENS = np.random.default_rng(1).integers(0, RECIPE.vocab_size, 40_000).astype(np.uint16)
PLACE = Place(device=CPU)


def test_a_curve_is_the_loss_of_our_own_loop_without_dropout() -> None:
    weights = lively_weights(RECIPE)
    curve = training_curve(RECIPE, weights, TOKENS, PLACE, tokens_seen=5 * RECIPE.tokens_per_step)
    again = training_curve(RECIPE.but(dropout=0.0), weights, TOKENS, PLACE, tokens_seen=5 * RECIPE.tokens_per_step)
    assert curve == again and len(curve["losses"]) == 5
    assert curve["tokens"] == [n * RECIPE.tokens_per_step for n in range(1, 6)]
    assert len(set(curve["losses"])) == 5


def test_long_curves_are_thinned_by_means_and_keep_their_end() -> None:
    steps = 2 * POINTS + 10
    curve = training_curve(RECIPE, lively_weights(RECIPE), TOKENS, PLACE, tokens_seen=steps * RECIPE.tokens_per_step)
    assert len(curve["losses"]) <= POINTS and curve["tokens"][-1] == steps * RECIPE.tokens_per_step
    assert curve["losses"][-1] < curve["losses"][0]  # random tokens: down to the logarithm of their number


def test_a_larger_batch_starts_on_the_same_text() -> None:
    """The first step of four sequences sees what four steps of one sequence see: equal losses before any update."""
    weights = lively_weights(RECIPE)
    one, four = RECIPE.but(micro_batch=1, learning_rate=0.0), RECIPE.but(micro_batch=4, learning_rate=0.0)
    small = training_curve(one, weights, TOKENS, PLACE, tokens_seen=4 * one.tokens_per_step)
    large = training_curve(four, weights, TOKENS, PLACE, tokens_seen=four.tokens_per_step)
    assert np.mean(small["losses"]) == pytest.approx(large["losses"][0], abs=1e-5)


def test_the_gap_is_taken_where_both_have_been() -> None:
    before = {"tokens": [100, 200, 1000, 2000], "losses": [9.0, 8.0, 5.0, 1.0]}
    after = {"tokens": [400, 800, 980], "losses": [8.0, 7.0, 6.0]}
    assert gap(before, after) == pytest.approx(6.0 - 5.0)  # 1000 lies behind 980; its nearest point is taken
    assert gap(before, before) == 0.0
    assert gap(after, before) == pytest.approx(-1.0)


def test_steps_of_a_curve_without_an_update_are_counted_and_flag_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that overflows float16 for the first steps, and is halved after each of them."""
    scaler = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: scaler(device, init_scale=2.0**40))
    recipe = RECIPE.but(precision="float16_autocast")
    curve = training_curve(recipe, lively_weights(recipe), TOKENS, PLACE, tokens_seen=4 * recipe.tokens_per_step)
    assert curve["skipped_steps"] == 4
    record = make_record(contract_detail={"before": "baseline", "curve": curve}, skipped_steps={"window": 0})
    flagged = with_skipped(record)
    assert flagged.skipped_steps == {"window": 0, "curve": 4}
    assert flagged.notes == [*record.notes, flagged.notes[-1]] and "4 steps of the curve" in flagged.notes[-1]
    assert with_skipped(make_record()) == make_record()


def test_nan_stays_visible() -> None:
    before = {"tokens": [100, 200], "losses": [9.0, 8.0]}
    assert not gap(before, {"tokens": [100, 200], "losses": [9.0, float("nan")]}) <= 100.0
