"""Diagrams of training on several GPUs: the ring that sums gradients, and how its time hides behind the backward pass.

The ring is played through by its own rule; the times follow from data-sheet rates by formula. Nothing is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from speedlab.cards import find_card
from speedlab.errors import BadInput
from speedlab.ladder import NINE_STEPS
from speedlab.publishing import svg
from speedlab.work import matmul_parameters

MINUS = "\N{MINUS SIGN}"


def ring_states(gpus: int) -> list[list[list[frozenset[int]]]]:
    """States of a ring all-reduce: [moment][gpu][chunk] is the set of GPUs whose gradients are summed there.

    The first moment is the start; `gpus - 1` rounds of sums follow, then `gpus - 1` rounds that hand the sums on. In
    every round each GPU sends one chunk to the next GPU.
    """
    if gpus < 2:
        raise BadInput(f"a ring of {gpus} GPUs: it takes 2 or more")
    state = [[frozenset({gpu}) for _ in range(gpus)] for gpu in range(gpus)]
    moments = [state]
    for turn in range(2 * (gpus - 1)):
        summing = turn < gpus - 1
        after = [list(row) for row in state]
        for gpu in range(gpus):
            chunk = (gpu - turn) % gpus if summing else (gpu + 1 - (turn - gpus + 1)) % gpus
            target = (gpu + 1) % gpus
            after[target][chunk] = state[target][chunk] | state[gpu][chunk] if summing else state[gpu][chunk]
        state = after
        moments.append(state)
    return moments


def ring_all_reduce(*, gpus: int = 4) -> str:
    """SVG: how many gradients each chunk on each GPU holds, after every round of the ring."""
    moments = ring_states(gpus)
    shapes = [
        svg.text(20, 34, f"Ring all-reduce on {gpus} GPUs", size=18, bold=True),
        svg.text(20, 57, "Rows: GPUs. Columns: chunks of the gradient.", fill=svg.FAINT, size=14),
        svg.text(20, 79, "Number: how many GPUs' gradients are summed there.", fill=svg.FAINT, size=14),
    ]
    looks = ("#eceff2", "#d6ebf8", svg.SKY, svg.GREEN)
    size, per_row, told = 24, 4, []
    for index, state in enumerate(moments):
        left = 20 + (index % per_row) * 114
        top = 122 + (index // per_row) * (gpus * size + 46)
        if index >= per_row:
            left += 57  # three below four, in the middle
        phase = "sum" if index < gpus else "hand on"
        shapes.append(svg.text(left, top - 8, "start" if index == 0 else f"{index}. {phase}", size=14, bold=True))
        for gpu, row in enumerate(state):
            for chunk, summed in enumerate(row):
                done = len(summed) / gpus
                fill = looks[3] if done == 1 else looks[min(len(summed) - 1, 2)]
                shapes.append(svg.cell(left + chunk * size, top + gpu * size, size, size, str(len(summed)), fill=fill,
                                       size=13))  # fmt: skip
        complete = sum(len(summed) == gpus for row in state for summed in row)
        told.append(f"After {index} rounds {complete} of {gpus * gpus} chunks are complete.")
    top = 122 + 2 * (gpus * size + 46)
    rounds = len(moments) - 1
    shapes += [
        svg.text(20, top, f"{rounds} rounds, each sends 1/{gpus} of the gradient on:"),
        svg.text(20, top + 24, f"{rounds}/{gpus} of it in all: 2 x ({gpus} {MINUS} 1) / {gpus}", bold=True),
    ]  # fmt: skip
    return svg.document(480, top + 44, f"Ring all-reduce on {gpus} GPUs", " ".join(told), shapes)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Gradients that are sent together. ready_ms: when the backward pass has made them; begin and end of sending."""

    parts: tuple[str, ...]
    ready_ms: float
    begin_ms: float
    end_ms: float


# In each direction. NVLink: half of the two-way bandwidth in the data sheet of the H200; PCIe: 16 lanes, specification.
LINKS: dict[str, float] = {"NVLink of an H200, 450 GB/s": 450e9, "PCIe 4.0 x16, 31.5 GB/s": 31.5e9}
BUCKET_BYTES = 25 * 2**20  # PyTorch's default


def backward_parts() -> list[tuple[str, float, float]]:
    """(name, milliseconds, bytes of gradients) of the backward pass: head, blocks from last to first, token table.

    Milliseconds: arithmetic at the dense bfloat16 rate of an H200's data sheet, four FLOPs for a weight and token and
    twice that of the forward pass for attention; the table is looked up and takes none.
    """
    card, recipe = find_card("NVIDIA H200"), NINE_STEPS.recipe_at("batch_size")
    assert card is not None
    tokens, width, layers = recipe.tokens_per_step, recipe.embedding_width, recipe.num_layers
    head = recipe.padded_vocab_size * width
    block = (matmul_parameters(recipe) - head) // layers
    attention = 8 * recipe.context_length * width * tokens  # 12 in three passes, two of them backward
    rate = card.flops_per_s["bfloat16"] / 1e3
    names = [f"block {index}" for index in range(layers, 0, -1)]
    blocks = [(name, (4 * block * tokens + attention) / rate, 2.0 * block) for name in names]
    return [("head", 4 * head * tokens / rate, 2.0 * head), *blocks, ("token table", 0.0, 2.0 * head)]


def buckets(bytes_per_s: float, *, gpus: int = 4) -> list[Bucket]:
    """When each bucket of about 25 MiB is ready and when a ring of `gpus` has sent it, one after another."""
    sent, waiting, held, clock, free = [], [], 0.0, 0.0, 0.0
    parts = backward_parts()
    for index, (name, milliseconds, size) in enumerate(parts):
        clock += milliseconds
        waiting.append(name)
        held += size
        if held >= BUCKET_BYTES or index == len(parts) - 1:
            begin = max(clock, free)
            free = begin + 1e3 * held * 2 * (gpus - 1) / gpus / bytes_per_s
            sent.append(Bucket(parts=tuple(waiting), ready_ms=clock, begin_ms=begin, end_ms=free))
            waiting, held = [], 0.0
    return sent


def overlap() -> str:
    """SVG: the backward pass, and below it the sending of the buckets over two links, to one scale of time."""
    parts = backward_parts()
    total = sum(milliseconds for _, milliseconds, _ in parts)
    sendings = {link: buckets(rate) for link, rate in LINKS.items()}
    latest = max(total, *(sent[-1].end_ms for sent in sendings.values()))
    scale, left = 440 / latest, 20.0
    shapes = [
        svg.text(20, 34, "Sending while still computing", size=18, bold=True),
        svg.text(20, 57, "By formula and data sheets: 4 GPUs, 32 sequences each.", fill=svg.FAINT, size=14),
        svg.text(20, 90, f"Backward pass: {total:.1f} ms at the peak rate", bold=True),
    ]
    for name, milliseconds, _ in parts:
        fill = svg.BLUE if name == "head" else svg.SKY
        shapes.append(svg.rectangle(left, 102, scale * milliseconds, 30, fill=fill, stroke=svg.INK, line=0.8))
        left += scale * milliseconds
    top, told = 166, [f"The backward pass takes {total:.1f} ms."]
    for link, sent in sendings.items():
        shapes.append(svg.text(20, top, link, bold=True))
        for index, bucket in enumerate(sent):
            shapes.append(
                svg.rectangle(
                    20 + scale * bucket.begin_ms, top + 12, scale * (bucket.end_ms - bucket.begin_ms), 30,
                    fill=svg.VERMILION if index == len(sent) - 1 else svg.ORANGE, stroke=svg.INK, line=0.8,
                )
            )  # fmt: skip
        busy = sum(bucket.end_ms - bucket.begin_ms for bucket in sent)
        tail = sent[-1].end_ms - total
        words = f"sending {busy:.1f} ms, {len(sent)} buckets, {tail:.1f} ms after the backward pass"
        shapes.append(svg.text(20, top + 62, words, size=14, fill=svg.FAINT))
        told.append(f"{link}: {words}.")
        top += 96
    for index, (fill, words) in enumerate(
        (
            (svg.BLUE, "head"), (svg.SKY, "twelve blocks, last to first"), (svg.ORANGE, "a bucket is sent"),
            (svg.VERMILION, "the last bucket, with the token table: nothing hides it"),
        )
    ):  # fmt: skip
        shapes.append(svg.key(20 + (index % 2) * 130 if index < 2 else 20, top + max(0, index - 1) * 26, fill, words))
    return svg.document(480, top + 70, "Overlap of the backward pass and the exchange", " ".join(told), shapes)
