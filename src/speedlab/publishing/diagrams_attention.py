"""Diagrams of attention: tiles with a running maximum and sum, memory traffic, and the tiles that causality skips.

Every number in them is computed here, by the algorithm or by a formula. Nothing here is measured, and nothing knows
which page shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from speedlab.errors import BadInput
from speedlab.publishing import svg

MIB = 2**20
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True, kw_only=True)
class TileStep:
    """What one query row knows after one more tile of keys. All numbers are plain floats."""

    first: int  # index of the tile's first key
    scores: tuple[float, ...]
    old_max: float
    new_max: float
    rescale: float  # e^(old_max - new_max): what the sums so far are multiplied by
    weights: tuple[float, ...]  # e^(score - new_max)
    old_sum: float
    new_sum: float
    old_output: float
    new_output: float  # not yet divided by the sum


def online_softmax_steps(scores: Sequence[float], values: Sequence[float], tile: int) -> list[TileStep]:
    """Attention of one query row over its keys, `tile` keys at a time, as FlashAttention does it.

    `scores` are query times key, `values` one number per key (a head of width 1). After the last step
    `new_output / new_sum` is exactly softmax(scores) times values, although no step saw all scores.
    """
    if len(scores) != len(values) or not scores or tile < 1:
        raise BadInput(f"{len(scores)} scores, {len(values)} values and tiles of {tile}: give one value for each score")
    steps: list[TileStep] = []
    running_max, running_sum, output = -math.inf, 0.0, 0.0
    for first in range(0, len(scores), tile):
        part = tuple(scores[first : first + tile])
        new_max = max(running_max, *part)
        rescale = math.exp(running_max - new_max)  # 0 for the first tile
        weights = tuple(math.exp(score - new_max) for score in part)
        new_sum = running_sum * rescale + sum(weights)
        weighted = sum(weight * value for weight, value in zip(weights, values[first : first + tile], strict=True))
        new_output = output * rescale + weighted
        steps.append(
            TileStep(
                first=first, scores=part, old_max=running_max, new_max=new_max, rescale=rescale, weights=weights,
                old_sum=running_sum, new_sum=new_sum, old_output=output, new_output=new_output,
            )
        )  # fmt: skip
        running_max, running_sum, output = new_max, new_sum, new_output
    return steps


def attention_traffic(
    *, batch: int, context: int, heads: int, head_width: int, bytes_per_value: int, query_tile: int = 128
) -> dict[str, dict[str, float]]:
    """Bytes that the forward pass of one causal attention layer moves between memory and chip, by formula.

    `plain`: query times key writes the scores, softmax reads them and writes the probabilities, and the product with
    the values reads those: four passes over a context x context matrix per head (mask, scaling and dropout as
    kernels of their own would add more). `tiled`: the queries, the output and one float32 log-sum-exp per row pass
    once; keys and values are read again for every tile of `query_tile` query rows, up to the diagonal. That is an
    upper bound for tiled: most of the repeated reads are answered by the cache on the chip.
    """
    tokens = batch * context * heads
    vectors = tokens * head_width * bytes_per_value  # one of queries, keys, values, output
    matrix = tokens * context * bytes_per_value
    tiles = math.ceil(context / query_tile)
    passes = (tiles + 1) / 2  # tile i reads i of the tiles' keys
    return {
        "plain": {"queries, keys, values, output": 4 * vectors, "scores": 2 * matrix, "probabilities": 2 * matrix},
        "tiled": {
            "queries and output": 2 * vectors,
            "keys and values, once": 2 * vectors,
            "keys and values, again": 2 * vectors * (passes - 1),
            "log-sum-exp": tokens * 4,
        },
    }


def causal_tiles(context: int, tile: int) -> dict[str, int]:
    """How many square tiles of the score matrix a causal kernel computes whole, masks inside, and skips."""
    rows = math.ceil(context / tile)
    return {"whole": rows * (rows - 1) // 2, "masked": rows, "skipped": rows * (rows - 1) // 2}


EXAMPLE_SCORES = (2.0, 1.0, 4.0, 3.0, 5.0, 1.0)
EXAMPLE_VALUES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
EXAMPLE_TILE = 2


def flash_attention_tiling() -> str:
    """SVG: one query row meets three tiles of keys; what it keeps is one maximum, one sum and one output."""
    steps = online_softmax_steps(EXAMPLE_SCORES, EXAMPLE_VALUES, EXAMPLE_TILE)
    shapes = [
        svg.text(20, 34, "One query row, three tiles of two keys", size=18, bold=True),
        svg.text(20, 57, "Each key has a score s and a value v, here one number.", fill=svg.FAINT),
    ]
    top = 74
    for number, step in enumerate(steps, start=1):
        shapes.append(_tile_band(top, number, step))
        top += 196
    last = steps[-1]
    whole = _softmax_output(EXAMPLE_SCORES, EXAMPLE_VALUES)
    shapes += [
        svg.text(20, top + 20, f"Result  o / l = {last.new_output:.3f} / {last.new_sum:.3f} = "
                 f"{last.new_output / last.new_sum:.4f}", bold=True),
        svg.text(20, top + 44, f"Softmax over all six scores at once: {whole:.4f}. The same."),
        svg.text(20, top + 68, "No step held more than two scores.", fill=svg.FAINT),
    ]  # fmt: skip
    return svg.document(480, top + 88, "FlashAttention on one query row, tile by tile", _tiling_words(steps), shapes)


def _tile_band(top: float, number: int, step: TileStep) -> str:
    """One tile: the row of scores with the tile's own lit, then the four lines of arithmetic."""
    size, left = 50, 108
    shapes = [
        svg.rectangle(10, top, 460, 186, fill="#f4f6f8"),
        svg.text(20, top + 30, f"Tile {number}", bold=True),
    ]
    for row, (name, row_values) in enumerate((("s", EXAMPLE_SCORES), ("v", EXAMPLE_VALUES))):
        shapes.append(svg.text(94, top + 30 + row * 26, name, anchor="middle", fill=svg.FAINT))
        for index, value in enumerate(row_values):
            lit = step.first <= index < step.first + len(step.scores)
            shapes.append(
                svg.cell(
                    left + index * (size + 8), top + 12 + row * 26, size, 24, f"{value:g}",
                    fill=svg.SKY if lit else "#e3e7eb", ink=svg.INK if lit else svg.FAINT,
                )
            )  # fmt: skip
    weighted = " + ".join(
        f"{weight:.3f}·{EXAMPLE_VALUES[step.first + offset]:g}" for offset, weight in enumerate(step.weights)
    )
    added = " + ".join(f"{weight:.3f}" for weight in step.weights)
    lines = (
        f"running max   m: {_number(step.old_max)} → {_number(step.new_max)}",
        f"rescale old   e^({_number(step.old_max)} {MINUS} {_number(step.new_max)}) = {step.rescale:.3f}",
        f"running sum   l = {step.old_sum:.3f}·{step.rescale:.3f} + {added} = {step.new_sum:.3f}",
        f"output   o = {step.old_output:.3f}·{step.rescale:.3f} + {weighted} = {step.new_output:.3f}",
    )
    shapes += [svg.text(20, top + 90 + index * 25, line) for index, line in enumerate(lines)]
    return "".join(shapes)


def _number(value: float) -> str:
    return f"{MINUS}∞" if value == -math.inf else f"{value:g}"


def _softmax_output(scores: Sequence[float], values: Sequence[float]) -> float:
    """The ordinary way, all scores at once, to compare with."""
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def _tiling_words(steps: list[TileStep]) -> str:
    told = " ".join(
        f"Tile {number}: scores {', '.join(f'{s:g}' for s in step.scores)}; the maximum becomes {step.new_max:g}, "
        f"the old sums are multiplied by {step.rescale:.3f}, the sum becomes {step.new_sum:.3f}, "
        f"the output {step.new_output:.3f}."
        for number, step in enumerate(steps, start=1)
    )
    return f"{told} Output over sum is {steps[-1].new_output / steps[-1].new_sum:.4f}, the same as softmax at once."


def hbm_traffic(
    *, batch: int = 8, context: int = 1024, heads: int = 12, head_width: int = 64, bytes_per_value: int = 2
) -> str:
    """SVG: bytes between memory and chip for one attention layer's forward pass, plain against tiled, to one scale."""
    traffic = attention_traffic(
        batch=batch, context=context, heads=heads, head_width=head_width, bytes_per_value=bytes_per_value
    )
    totals = {name: sum(parts.values()) for name, parts in traffic.items()}
    scale = 440 / max(totals.values())
    fills = {
        "plain": (svg.SKY, svg.ORANGE, svg.VERMILION),
        "tiled": (svg.SKY, svg.SKY, svg.GREEN, svg.BLUE),
    }
    shapes = [
        svg.text(20, 34, "Memory traffic of one attention layer", size=18, bold=True),
        svg.text(20, 57, f"Forward, B = {batch}, T = {context}, {heads} heads of {head_width}, "
                 f"{bytes_per_value} bytes a value", fill=svg.FAINT, size=14),
    ]  # fmt: skip
    top = 86
    for name, parts in traffic.items():
        shapes.append(svg.text(20, top, f"{name}: {totals[name] / MIB:.0f} MiB", bold=True))
        left = 20.0
        for fill, amount in zip(fills[name], parts.values(), strict=True):
            shapes.append(svg.rectangle(left, top + 10, amount * scale, 34, fill=fill, stroke=svg.INK, line=0.8))
            left += amount * scale
        top += 74
    mib = {name: {part: amount / MIB for part, amount in parts.items()} for name, parts in traffic.items()}
    legend = (
        (svg.SKY, f"q, k, v and output, once: {mib['plain']['queries, keys, values, output']:.0f} MiB"),
        (svg.ORANGE, f"scores, written and read: {mib['plain']['scores']:.0f} MiB"),
        (svg.VERMILION, f"probabilities, written and read: {mib['plain']['probabilities']:.0f} MiB"),
        (svg.GREEN, f"k and v again, per tile of queries: {mib['tiled']['keys and values, again']:.0f} MiB at most"),
        (svg.BLUE, f"one log-sum-exp per row: {mib['tiled']['log-sum-exp']:.2f} MiB"),
    )
    shapes += [svg.key(20, top + 12 + index * 26, fill, words) for index, (fill, words) in enumerate(legend)]
    words = (
        f"Plain attention moves {totals['plain'] / MIB:.0f} MiB, tiled attention at most "
        f"{totals['tiled'] / MIB:.0f} MiB. " + " ".join(f"{label}." for _, label in legend)
    )
    return svg.document(480, int(top + 12 + 26 * len(legend)), "Memory traffic, plain against tiled", words, shapes)


def causal_block_skipping(*, context: int = 1024, tile: int = 128) -> str:
    """SVG: the score matrix cut into tiles; those above the diagonal are never computed."""
    counts = causal_tiles(context, tile)
    rows, size, left, top = math.ceil(context / tile), 320 / math.ceil(context / tile), 110, 104
    shapes = [
        svg.text(20, 34, "Tiles that a causal kernel skips", size=18, bold=True),
        svg.text(20, 57, f"Scores of {context} queries and keys in tiles of {tile} x {tile}", fill=svg.FAINT, size=14),
        svg.text(left + 160, top - 12, "keys →", anchor="middle"),
        svg.text(left - 12, top + 26, "queries", anchor="end"),
        svg.text(left - 12, top + 46, "↓", anchor="end"),
    ]  # fmt: skip
    looks = {"whole": (svg.SKY, "all"), "masked": (svg.ORANGE, "half"), "skipped": ("#f4f6f8", "\N{EN DASH}")}
    for row in range(rows):
        for column in range(rows):
            kind = "masked" if row == column else "whole" if column < row else "skipped"
            fill, word = looks[kind]
            shapes.append(
                svg.cell(left + column * size, top + row * size, size, size, word, fill=fill, size=min(13, size / 3))
            )
    bottom, total = top + 320, sum(counts.values())
    done = counts["whole"] + counts["masked"]
    legend = (
        ("whole", f"{counts['whole']} tiles computed whole, no mask needed"),
        ("masked", f"{counts['masked']} tiles on the diagonal, masked inside"),
        ("skipped", f"{counts['skipped']} tiles skipped: all keys lie in the future"),
    )
    shapes += [
        svg.key(20, bottom + 34 + index * 26, looks[kind][0], words) for index, (kind, words) in enumerate(legend)
    ]
    shapes.append(
        svg.text(20, bottom + 34 + 78, f"{done} of {total} tiles remain: {100 * done / total:.0f} %", bold=True)
    )
    described = "; ".join(words for _, words in legend)
    return svg.document(480, bottom + 134, "Tiles that a causal attention kernel skips",
                        f"A lower triangle of tiles. {described}. {done} of {total} remain.", shapes)  # fmt: skip
