"""The roofline: its points by hand, its roofs from the record, and the table beside it."""

from __future__ import annotations

import pytest
from records_helper import MATMUL_FLOPS_PER_S, make_record, skipped_record

from speedlab.errors import BadInput
from speedlab.measuring.counting import flops, moved_bytes
from speedlab.publishing import figures
from speedlab.publishing.roofline import points, roofline, roofline_table
from speedlab.recipe import Recipe

CEILINGS = {"matmul_flops_per_s": MATMUL_FLOPS_PER_S, "copy_bytes_per_s": 4e12, "utc": "2026-11-29T12:00:00Z"}


@pytest.fixture
def records():
    times = {"baseline": 250.0, "causal_mask": 249.9, "tensor_cores": 110.0, "flash_attention": 40.0}
    return [make_record(rung, step_ms=ms, ceilings=CEILINGS) for rung, ms in times.items()]


def test_flops_and_bytes_of_a_step_by_hand():
    """One layer, one head of 8 wide, two sequences of 4 tokens: small enough to write every tensor down."""
    recipe = Recipe(
        num_layers=1, embedding_width=8, num_heads=1, context_length=4, micro_batch=2, vocab_size=16, dropout=0.0,
        layers="native", attention="sdpa", qkv_projection="merged", optimizer="fused",
    )  # fmt: skip
    tokens, width, weights = 8, 8, 12 * 8 * 8 + 16 * 8
    assert flops(recipe) == 6 * weights * tokens + 6 * width * 4 * tokens
    dense = 3 * sum(tokens * i + i * o + tokens * o for i, o in ((8, 24), (8, 8), (8, 32), (32, 8), (8, 16)))
    attention = 12 * tokens * width
    norms = 3 * (2 + 3 + 2) * tokens * width  # two in the layer, one at the end
    gelu, residuals, biases, joining = (
        5 * 4 * tokens * width,
        2 * 6 * tokens * width,
        6 * tokens * width,
        6 * tokens * 8,
    )
    look_ups = 10 * tokens * width + 16 * 8
    logits = 9 * tokens * 16
    optimizer = 7 * (weights + (16 + 4) * 8)
    everything = dense + attention + norms + gelu + residuals + biases + joining + look_ups + logits + optimizer
    assert moved_bytes(recipe) == 4 * everything


def test_more_of_the_same_moves_more_and_compiling_and_narrow_formats_move_less():
    assert moved_bytes(Recipe(precision="bfloat16")) == pytest.approx(moved_bytes(Recipe()) / 2, rel=0.02)
    assert flops(Recipe(precision="bfloat16")) == flops(Recipe())
    native = Recipe(layers="native", attention="sdpa")
    assert moved_bytes(native.but(compile="default")) < moved_bytes(native) < moved_bytes(Recipe(layers="native"))
    assert moved_bytes(Recipe(accumulation=2)) > 1.9 * moved_bytes(Recipe())
    assert flops(Recipe(accumulation=2)) == 2 * flops(Recipe())


def test_points_are_arithmetic_over_bytes_and_over_time(records):
    found = points([*records, skipped_record("bfloat16"), make_record("fused_adamw", ceilings=None)])
    assert [p.number for p in found] == [1, 2, 3, 4]
    first, flash = found[0], found[3]
    recipe = Recipe.from_dict(records[0].recipe)
    assert first.intensity == pytest.approx(flops(recipe) / moved_bytes(recipe))
    assert first.flops_per_s == pytest.approx(flops(recipe) / 0.25)
    assert first.limit_flops_per_s == 50e12 and first.bound_by == "float32 matmul rate"
    assert found[2].limit_flops_per_s == pytest.approx(4e12 * found[2].intensity)
    assert found[2].bound_by == "memory bandwidth" and found[2].dtype == "tf32"
    assert flash.intensity > first.intensity


def test_the_figure_has_the_roofs_of_the_session_and_a_label_for_points_in_one_place(records):
    figure = roofline(records)
    (axis,) = figure.axes
    slope, *roofs = axis.lines
    x, y = slope.get_xdata(), slope.get_ydata()
    assert y[1] / x[1] == pytest.approx(4.0) and y[0] / x[0] == pytest.approx(4.0)  # TFLOP/s over FLOP per byte
    assert [line.get_ydata()[0] for line in roofs] == [50.0, 400.0, 700.0]
    assert y[1] == pytest.approx(700.0)  # the slope ends at the highest roof
    drawn = sorted(tuple(xy) for group in axis.collections for xy in group.get_offsets())
    assert drawn == sorted((p.intensity, p.flops_per_s / 1e12) for p in points(records))
    assert [text.get_text() for text in axis.texts] == ["1, 2", "3", "4"]
    assert "4 FlashAttention" in figures.alt_text(figure)
    assert figures.svg_text(figure) == figures.svg_text(roofline(records))


def test_the_table_holds_the_numbers_of_the_points(records):
    table = roofline_table(records)
    assert [line[0] for line in table.cells] == ["1", "2", "3", "4"]
    first = points(records)[0]
    assert table.cells[0][5] == f"{100 * first.flops_per_s / 50e12:.1f} %"


def test_without_ceilings_there_is_nothing_to_draw():
    with pytest.raises(BadInput, match="a roofline needs a measured rung"):
        roofline([make_record(ceilings=None)])
