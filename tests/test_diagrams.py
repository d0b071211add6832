"""The diagrams' numbers against independent references, and their drawings as a reader's browser would take them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from speedlab.attention_work import attention_traffic, causal_tiles
from speedlab.errors import BadInput
from speedlab.publishing import diagrams
from speedlab.publishing.diagrams_attention import (
    EXAMPLE_SCORES,
    EXAMPLE_VALUES,
    MIB,
    flash_attention_tiling,
    online_softmax_steps,
)

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("tile", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_online_softmax_equals_softmax(tile: int, scale: float) -> None:
    generator = np.random.default_rng(7)
    scores, values = scale * generator.normal(size=50), generator.normal(size=50)
    last = online_softmax_steps(list(scores), list(values), tile)[-1]
    expected = torch.softmax(torch.tensor(scores), dim=0) @ torch.tensor(values)
    assert last.new_output / last.new_sum == pytest.approx(float(expected), rel=1e-12)
    assert last.new_max == scores.max()


def test_online_softmax_sees_every_key_once_and_never_more_than_a_tile() -> None:
    steps = online_softmax_steps([3.0, 1.0, 2.0, 5.0, 4.0], [1.0] * 5, 2)
    assert [step.scores for step in steps] == [(3.0, 1.0), (2.0, 5.0), (4.0,)]
    assert [step.first for step in steps] == [0, 2, 4]


@pytest.mark.parametrize(
    ("scores", "values", "tile"),
    [([], [], 2), ([1.0], [1.0, 2.0], 2), ([1.0], [1.0], 0)],
    ids=["empty", "uneven", "tile"],
)
def test_online_softmax_refuses_what_it_cannot_do(scores: list[float], values: list[float], tile: int) -> None:
    with pytest.raises(BadInput, match=f"tiles of {tile}"):
        online_softmax_steps(scores, values, tile)


def test_the_tiling_diagram_shows_the_true_result() -> None:
    expected = torch.softmax(torch.tensor(EXAMPLE_SCORES, dtype=torch.float64), dim=0) @ torch.tensor(
        EXAMPLE_VALUES, dtype=torch.float64
    )
    drawn = flash_attention_tiling()
    assert f"= {float(expected):.4f}" in drawn
    assert f"at once: {float(expected):.4f}" in drawn


def test_plain_scores_of_a_gpt2_layer_are_384_mib_in_float32() -> None:
    traffic = attention_traffic(batch=8, context=1024, heads=12, head_width=64, bytes_per_value=4)
    written_once = traffic["plain"]["scores"] / 2
    assert written_once == 384 * MIB == torch.empty(8, 12, 1024, 1024, device="meta").nbytes


@pytest.mark.parametrize(("context", "tile"), [(1024, 128), (512, 64), (64, 64)])
def test_tiled_traffic_against_a_walk_over_the_tiles(context: int, tile: int) -> None:
    batch, heads, width, size = 2, 3, 16, 2
    moved = 0
    for first_query in range(0, context, tile):
        moved += 2 * tile * width * size + tile * 4  # its queries, its output, one float32 per row
        for _ in range(0, first_query + tile, tile):
            moved += 2 * tile * width * size  # keys and values of one tile
    traffic = attention_traffic(
        batch=batch, context=context, heads=heads, head_width=width, bytes_per_value=size, query_tile=tile
    )
    assert sum(traffic["tiled"].values()) == batch * heads * moved


@pytest.mark.parametrize(("context", "tile"), [(1024, 128), (1024, 64), (96, 32)])
def test_skipped_tiles_against_the_mask_itself(context: int, tile: int) -> None:
    mask = np.tril(np.ones((context, context), dtype=bool))
    tiles = [
        mask[row : row + tile, column : column + tile]
        for row in range(0, context, tile)
        for column in range(0, context, tile)
    ]
    assert causal_tiles(context, tile) == {
        "whole": sum(bool(part.all()) for part in tiles),
        "skipped": sum(not part.any() for part in tiles),
        "masked": sum(bool(part.any() and not part.all()) for part in tiles),
    }


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_number_formats_against_torch(name: str, dtype: torch.dtype) -> None:
    form = next(form for form in diagrams.NUMBER_FORMATS if form.name == name)
    assert form.largest == torch.finfo(dtype).max
    assert form.step_at_one == torch.finfo(dtype).eps
    assert form.stored_bits == torch.finfo(dtype).bits == 1 + form.exponent_bits + form.fraction_bits


def test_tf32_has_the_range_of_float32_and_the_precision_of_float16() -> None:
    formats = {form.name: form for form in diagrams.NUMBER_FORMATS}
    assert formats["TF32"].exponent_bits == formats["float32"].exponent_bits
    assert formats["TF32"].step_at_one == formats["float16"].step_at_one


def test_one_instruction_multiplies_as_many_as_its_matrices_say() -> None:
    counted = sum(1 for _ in np.ndindex(16, 8, 16))  # each cell of C takes one product per column of A
    assert diagrams.BFLOAT16_MMA.multiply_adds == counted
    assert f">{counted:,}</text>" in diagrams.tensor_core_tile()


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_a_diagram_is_sound_svg_that_speaks_to_those_who_cannot_see_it(name: str) -> None:
    drawn = diagrams.DIAGRAMS[name]()
    assert drawn == diagrams.DIAGRAMS[name](), "the same every time"
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.findtext(f"{SVG}title")
    assert len(root.findtext(f"{SVG}desc") or "") > 60
    # No reference to anything outside, and no id that could clash with another drawing on the page.
    assert not re.search(r"href|url\(|<image|<script|<style| id=", drawn)


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_no_word_leaves_the_panel(name: str) -> None:
    root = ElementTree.fromstring(diagrams.DIAGRAMS[name]())
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    texts = list(root.iter(f"{SVG}text"))
    assert texts
    for element in texts:
        size, words = float(element.get("font-size", 0)), element.text or ""
        assert size >= 12, words  # a panel of 480 shrinks to about 340 on a phone
        length = 0.56 * size * len(words)  # mean advance of a wide sans-serif face
        start = (
            float(element.get("x", 0))
            - {"start": 0, "middle": length / 2, "end": length}[element.get("text-anchor", "")]
        )
        assert start >= 0 and start + length <= width, words
        assert 0 < float(element.get("y", 0)) < height, words


def test_every_diagram_has_an_alternative_text() -> None:
    assert set(diagrams.ALT_TEXTS) == set(diagrams.DIAGRAMS)
    for name in diagrams.DIAGRAMS:
        assert 40 < len(diagrams.alt_text(name)) < 200
    with pytest.raises(BadInput, match="unknown diagram 'none': choose one of tensor_core_tile"):
        diagrams.alt_text("none")


def test_write_diagrams_writes_one_file_each(tmp_path) -> None:
    paths = diagrams.write_diagrams(tmp_path / "diagrams")
    assert {path.stem for path in paths} == set(diagrams.DIAGRAMS)
    assert all(path.read_text(encoding="utf-8") == diagrams.DIAGRAMS[path.stem]() for path in paths)
