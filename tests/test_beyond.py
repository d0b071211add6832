"""Ladder beyond, its lab book and its experiments, on toys: what is asked for, in which order, and what comes out."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from data_helper import one_line_error
from model_helper import CPU, TINY
from records_helper import make_record

from speedlab.beyond import BEYOND, FASTEST, PLAIN_COMPILED
from speedlab.errors import BadInput
from speedlab.labs import beyond, beyond_parts
from speedlab.labs.beyond_budget import budget_ms
from speedlab.labs.beyond_predictions import (
    DATE,
    PREDICTIONS,
    UNIT_MS,
    lab_book,
    outcomes,
    predicted_total_ms,
)
from speedlab.measuring.variant import Plan
from speedlab.model import draw_weights
from speedlab.profile import SMOKE
from speedlab.publishing.formatting import NOTHING
from speedlab.recipe import changes
from speedlab.training.distributed import Place


class Bench:
    """As much of a workbench as the experiments ask for, with a toy of the recipe and nothing compiled."""

    device, profile, place = CPU, SMOKE, Place(device=CPU)
    plan = Plan(contract_steps=3, warmup_steps=1, steps=2)
    tokens = SimpleNamespace(tokens=torch.randint(0, 61, (3_000,), generator=torch.Generator().manual_seed(1)).numpy())

    def scaled(self, recipe):
        toy = {name: getattr(TINY, name) for name in ("embedding_width", "num_heads", "context_length", "vocab_size")}
        return recipe.but(
            **toy, num_layers=min(2, recipe.num_layers), micro_batch=2, compile="off", host_memory="pageable",
            head_matmul="same", loss="plain" if recipe.loss == "liger" else recipe.loss,
        )  # fmt: skip

    def weights_for(self, recipe):
        return draw_weights(recipe)


def run(experiment):
    said = []
    return list(experiment(Bench(), said.append)), said


def test_the_start_is_the_configuration_of_the_peers():
    start = BEYOND.start
    assert (start.num_layers, start.embedding_width, start.num_heads, start.context_length) == (12, 768, 12, 1024)
    assert (start.output_head, start.dropout, start.qkv_bias, start.padded_vocab_size) == ("tied", 0.0, True, 50_304)
    assert start.tokens_per_step == 65_536 and start.optimizer == "fused" and start.compile == "default"


def test_the_fastest_recipe_is_what_is_stacked_and_no_more_tokens_in_an_update():
    assert FASTEST.tokens_per_step == 65_536
    assert changes(PLAIN_COMPILED, FASTEST) == {
        "precision": ("bfloat16_autocast", "bfloat16_master"), "loss": ("compiled", "in_place"),
        "feed_forward": ("separate", "fused"), "residual": ("separate", "fused"),
        "qkv_backward": ("separate", "fused"), "optimizer": ("fused", "one_pass"),
    }  # fmt: skip


def test_every_rung_was_predicted_with_the_sum_behind_it():
    assert list(PREDICTIONS) == [rung.key for rung in BEYOND if rung.change]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", DATE)
    assert all(re.search(r"\d", prediction.why) or prediction.saves_ms in (0.0, -0.5)
               for prediction in PREDICTIONS.values())  # fmt: skip
    assert pytest.approx(0.0265, abs=1e-4) == UNIT_MS
    assert predicted_total_ms() == pytest.approx(4.6 + 3.2 + 3.0 + 1.9 + 0.9 + 0.6)


def record(rung, ms):
    return make_record(rung, ladder="beyond", step_ms=ms)


def test_outcomes_are_differences_of_medians_of_the_rung_below():
    records = [record("plain_compiled", 126.0), record("bfloat16_master", 121.0), record("in_place_loss", 120.0)]
    found = {outcome.rung: outcome for outcome in outcomes(records)}
    assert found["bfloat16_master"].measured_ms == pytest.approx(5.0)
    assert found["bfloat16_master"].verdict == "as predicted"
    assert found["in_place_loss"].measured_ms == pytest.approx(1.0)
    assert found["in_place_loss"].verdict == "saves less"
    assert found["fused_gelu"].measured_ms is None and found["fused_gelu"].verdict == "not measured yet"


def test_an_outcome_with_another_batch_is_for_the_same_tokens():
    records = [record("one_pass_adamw", 110.0), record("double_batch", 218.0)]
    found = {outcome.rung: outcome for outcome in outcomes(records)}
    assert found["double_batch"].measured_ms == pytest.approx(1.0)


def test_the_lab_book_shows_each_prediction_once_and_needs_no_record():
    lines = lab_book([]).splitlines()
    assert len(lines) == 2 + len(PREDICTIONS)
    assert all(line.count("|") == 6 for line in lines)
    assert f"| +4.6 | {NOTHING} | not measured yet |" in lines[2]


def test_candidates_stop_when_the_time_is_up(monkeypatch):
    monkeypatch.setenv(beyond.BUDGET_VARIABLE, "0")
    clock = iter(range(0, 1_000))
    monkeypatch.setattr(beyond.time, "monotonic", lambda: next(clock))
    rows, _ = run(beyond.quick)
    assert [row["candidate"] for row in rows] == [name for name, _ in beyond.CANDIDATES]
    assert {row["status"] for row in rows} == {"unavailable"} and "0 s" in rows[0]["reason"]


def test_candidates_are_timed_in_order(monkeypatch):
    monkeypatch.setattr(beyond, "CANDIDATES", beyond.CANDIDATES[:2])
    rows, said = run(beyond.quick)
    assert [row["status"] for row in rows] == ["measured", "measured"], rows
    assert len(said) == 2 and all(len(row["step_ms"]) == 2 and row["tokens_per_step"] == 32 for row in rows)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9"])
def test_a_budget_that_is_no_number_of_seconds_is_refused(monkeypatch, text):
    monkeypatch.setenv(beyond.BUDGET_VARIABLE, text)
    one_line_error(BadInput, lambda: list(beyond.quick(Bench(), print)), beyond.BUDGET_VARIABLE, repr(text))


def test_two_sizes_with_their_presets():
    rows, _ = run(beyond.sizes)
    assert [(row["size"], row["preset"]) for row in rows] == [
        (size, preset) for size in ("124M", "350M")
        for preset in ("plain compiled", "fastest", "fastest, no compiler")
    ]  # fmt: skip
    assert {row["status"] for row in rows} == {"measured"}, rows


def test_curves_of_both_sides_from_two_seeds_say_how_much_text_they_saw():
    rows, _ = run(beyond.curves)
    assert [(row["curve"], row["seed"]) for row in rows[:2]] == [
        ("plain compiled autocast", 1234), ("fastest", 1234)
    ]  # fmt: skip
    measured = [row for row in rows if row["status"] == "measured"]
    assert len(measured) == 4 and len(rows) == 5
    for row in measured:
        assert len(row["losses"]) == len(row["tokens"]) == row["steps"] == 30
        assert row["passes"] == pytest.approx(30 * row["tokens_per_step"] / 3_000)
    one, two = measured[0]["losses"], measured[2]["losses"]
    assert one[0] != two[0] and one[-1] < one[0]


def test_the_curves_keep_the_contract_of_the_issue():
    assert beyond.CURVE_STEPS >= 1_000 and beyond.CURVE_MICRO_BATCH * FASTEST.context_length <= 16_384
    assert len(set(beyond.CURVE_SEEDS)) == 2


def test_every_part_has_a_row_or_a_reason(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    rows, said = run(beyond_parts.parts)
    assert [row for row in rows if row["status"] == "error" and "cudnn" not in row["variant"]] == []
    assert len(said) == len(rows) + 1 and said[-1].startswith("the fastest of each part in a step")
    assert re.search(r"up, forward, matmul: [\d,]+ us, [\d.e-]+ TFLOP/s", "\n".join(said))
    parts = {row["part"] for row in rows}
    assert parts == {
        "qkv", "out", "up", "down", "head", "attention", "loss", "gelu", "residual_norm", "join q/k/v", "embedding",
        "AdamW",
    }  # fmt: skip
    measured = [row for row in rows if row["status"] == "measured"]
    assert all(len(row["time_us"]) == beyond_parts.REPEATS and min(row["time_us"]) > 0 for row in measured)
    flops = {(row["part"], row["way"]): row["flops"] for row in rows if "flops" in row}
    tokens, width = 2 * 16, 32
    assert flops[("up", "forward")] == flops[("up", "weight gradient")] == 2.0 * tokens * 4 * width * width


def test_a_budget_takes_the_fastest_whole_way_of_each_part_as_often_as_a_step_does():
    def row(part, way, variant, us, status="measured"):
        return {"part": part, "way": way, "variant": variant, "time_us": [us] * 3, "status": status}

    rows = [
        row("gelu", "forward", "compiled tanh", 300.0), row("gelu", "forward", "fused", 200.0),
        row("gelu", "backward", "fused", 400.0), row("gelu", "backward", "compiled tanh", 100.0, status="error"),
        row("loss", "both", "scaling by one", 1.0), row("loss", "both", "in place", 5_000.0),
        row("qkv", "bias gradient", "sum", 100.0), row("residual_norm", "forward", "fused", 100.0),
    ]  # fmt: skip
    budget = budget_ms(rows, layers=12)
    assert budget["gelu"] == pytest.approx(12 * 0.6) and budget["loss"] == pytest.approx(5.0)
    assert budget["residual_norm"] == pytest.approx(24 * 0.1) and budget["qkv"] == 0.0


def test_kernel_tables_of_whole_steps():
    rows, _ = run(beyond.kernels)
    assert [row["status"] for row in rows] == ["measured"] * 4, rows
    assert all(row["kernels"] and row["busy_ms"] > 0 for row in rows)
