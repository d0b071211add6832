"""Diagrams of attention: tiles with a running maximum and sum, memory traffic, and the tiles that causality skips.

Every number in them is computed, by the package's own tiled attention or by a formula. Nothing here is measured, and
nothing knows which page shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from speedlab.attention_work import attention_traffic, causal_tiles
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
    """Attention of one query row over its keys, `tile` keys at a time, by `tiled_attention`'s own walk over the keys.

    `scores` are query times key, `values` one number per key (a head of width 1). After the last step
    `new_output / new_sum` is exactly softmax(scores) times values, although no step saw all scores.
    """
    if len(scores) != len(values) or not scores or tile < 1:
        raise BadInput(f"{len(scores)} scores, {len(values)} values and tiles of {tile}: give one value for each score")
    import torch

    from speedlab.model.tiled_attention import visit_key_tiles

    # A query of 1 and a head of width 1, so that the keys are the scores.
    query, keys, column = (torch.tensor(x, dtype=torch.float64)[:, None] for x in ([1.0], scores, values))
    steps: list[TileStep] = []
    old_max, old_sum, old_output = -math.inf, 0.0, 0.0
    for state in visit_key_tiles(query, keys, column, causal=False, key_tile=tile):
        new_max, new_sum, new_output = (x.item() for x in (state.running_max, state.running_sum, state.output))
        steps.append(
            TileStep(
                first=state.first_key, scores=tuple(state.scores[0].tolist()), old_max=old_max, new_max=new_max,
                rescale=state.rescale.item(), weights=tuple(state.weights[0].tolist()),
                old_sum=old_sum, new_sum=new_sum, old_output=old_output, new_output=new_output,
            )
        )  # fmt: skip
        old_max, old_sum, old_output = new_max, new_sum, new_output
    return steps


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
