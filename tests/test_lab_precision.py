"""The precision lab: its counts against the formats' own rounding, and the whole experiment on the toy model."""

from __future__ import annotations

import math

import pytest
import torch

from speedlab.labs import precision
from speedlab.labs.rows import attempt_all
from speedlab.measuring.experiments import run_experiment
from speedlab.number_formats import FORMATS, round_to
from speedlab.records.experiment import Experiment


def spread(count: int = 500, seed: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-60, 18, (count,), generator=generator)
    values = torch.randn(count, generator=generator) * 2.0**exponents
    values[::17] = 0
    return values


@pytest.mark.parametrize(("name", "dtype", "scale"), precision.ROUNDED, ids=str)
def test_shares_in_a_format_are_those_of_its_own_rounding(name: str, dtype: torch.dtype, scale: float) -> None:
    values, form = spread(), FORMATS[name]
    found = precision.lost_in_format([values[:200], values[200:]], name, dtype, scale)
    scaled = [value * scale for value in values.tolist() if value]
    zero = sum(round_to(x, form) == 0 for x in scaled)
    subnormal = sum(0 < abs(round_to(x, form)) < form.smallest_normal for x in scaled)
    above = sum(abs(x) > form.largest for x in scaled)
    expected = {"share_zero": zero, "share_subnormal": subnormal, "share_above_largest": above}
    assert found == pytest.approx({key: count / len(scaled) for key, count in expected.items()})


def test_the_histogram_counts_powers_of_two() -> None:
    values = torch.cat([spread(), torch.tensor([1.0, -1.5, 2.0, 2.0**-126, 2.0**30])])
    found = precision.exponents([values[:100], values[100:]])
    expected = [0] * len(found["counts"])
    for value in values.tolist():
        if value:
            power = math.floor(math.log2(abs(value)))
            expected[min(max(power, precision.LOWEST), precision.HIGHEST) - found["lowest_exponent"]] += 1
    assert found["counts"] == expected and found["zeros"] == (values == 0).sum()
    assert sum(expected) + found["zeros"] == len(values)


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_an_update_is_lost_exactly_where_rounding_takes_it_back(name: str, dtype: torch.dtype) -> None:
    form = FORMATS[name]
    weights = torch.tensor([1.0, 1.0, 1.0, 0.02, -0.02, 0.0, 3.0, 3.0])
    updates = torch.tensor([5e-4, -5e-4, -5e-3, 1e-5, 5e-4, 1e-3, 0.0, 1e-4])
    expected = [
        bool(update) and round_to(round_to(weight, form) + update, form) == round_to(weight, form)
        for weight, update in zip(weights.tolist(), updates.tolist(), strict=True)
    ]
    assert precision.lost_updates(weights, updates, dtype).tolist() == expected
    assert True in expected and False in expected


def test_a_part_that_fails_keeps_its_rows_and_says_why() -> None:
    def rows():
        yield {"size": 1}
        raise RuntimeError("no more\nand a second line")

    found = attempt_all(rows, part="toy")
    assert found[0] == {"part": "toy", "status": "measured", "reason": None, "size": 1}
    assert found[1] == {"part": "toy", "status": "error", "reason": "RuntimeError: no more"}


@pytest.fixture(scope="module")
def toy() -> Experiment:
    return run_experiment("precision_formats", profile="smoke")


def test_every_row_of_the_toy_is_measured_and_its_numbers_are_the_models(toy: Experiment) -> None:
    assert len(toy.measured) == len(toy.rows)
    histograms = [row for row in toy.rows if row["what"] == "histogram"]
    assert {(row["of"], row["step"]) for row in histograms} == {
        (of, step) for of in ("weights", "activations", "logits") for step in (1, precision.TOY_STEPS)
    }
    logits = next(row for row in histograms if row["of"] == "logits")
    assert sum(logits["counts"]) + logits["zeros"] == 4 * 64 * 1001  # micro-batch 8 is halved in the toy profile
    updates = [row for row in toy.rows if row["what"] == "updates" and row["format"] == "bfloat16"]
    sizes = {row["of"]: row["weights"] for row in updates}
    assert sizes["all"] == sizes["tables"] + sizes["matmuls"] + sizes["norms and biases"]


def test_logit_gradients_fall_below_float16_and_a_loss_scale_brings_them_back(toy: Experiment) -> None:
    shares = {
        (row["format"], row["loss_scale"]): row["share_zero"] + row["share_subnormal"]
        for row in toy.rows
        if row["what"] == "gradients" and row["of"] == "logits" and row["step"] == 1
    }
    assert shares["float16", 1.0] > 0.9 > 0.1 > shares["float16", precision.LOSS_SCALE]
    assert shares["bfloat16", 1.0] < 0.01


def test_a_norm_weight_stays_at_one_in_pure_bfloat16_and_moves_in_the_others(toy: Experiment) -> None:
    paths = {
        row["precision"]: row["values"]
        for row in toy.rows
        if row["what"] == "trajectory" and row["weight"] == "final_norm.weight[0]"
    }
    assert set(paths) == set(precision.TRAININGS)
    assert set(paths["bfloat16"]) == {1.0}
    assert len(set(paths["float32"])) == len(paths["float32"]) == precision.TOY_STEPS + 1
    losses = [row["losses"] for row in toy.rows if row["what"] == "losses"]
    assert [len(values) for values in losses] == [precision.TOY_STEPS] * 3
