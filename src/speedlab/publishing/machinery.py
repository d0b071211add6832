"""Tables of the page on the machine: memories and rates of four cards, and what two ceilings say about operations.

Everything is data sheet, white paper or formula; a page that shows these tables says so. Nothing is measured.
"""

from __future__ import annotations

from typing import NamedTuple

from speedlab.cards import Card
from speedlab.chips import MIB, cards_with_chips
from speedlab.ladder import NINE_STEPS
from speedlab.measuring.counting import OPTIMIZER_PASSES, weights_of
from speedlab.measuring.traffic import tokens_of
from speedlab.publishing import formatting as form
from speedlab.publishing.tables import Table


class Operation(NamedTuple):
    """One operation of a training step: floating-point operations, and bytes read and written, at least."""

    name: str
    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP for each byte that passes between memory and chip."""
        return self.flops / self.bytes


def machinery_tables() -> dict[str, str]:
    """Name of each fragment and its words."""
    return {
        "machinery_memories": memories_table().markdown(),
        "machinery_rates": rates_table().markdown(),
        "machinery_ceilings": ceilings_table().markdown(),
    }


def memories_table() -> Table:
    """From the registers to the card's memory: how much there is, and how fast the card's own memory is."""
    pairs = cards_with_chips()
    lines = (
        ("multiprocessors (SM)", *(f"{chip.multiprocessors}" for _, chip in pairs)),
        ("registers, all SMs", *(f"{chip.all_register_bytes / MIB:.1f} MiB" for _, chip in pairs)),
        ("L1 and shared, all SMs", *(f"{chip.all_l1_bytes / MIB:.1f} MiB" for _, chip in pairs)),
        ("L2", *(f"{chip.l2_bytes / MIB:.0f} MiB" for _, chip in pairs)),
        ("memory of the card", *(f"{card.memory_gib:.0f} GiB" for card, _ in pairs)),
        ("its bandwidth", *(f"{card.bytes_per_s / 1e12:.2f} TB/s" for card, _ in pairs)),
    )
    names = tuple(short(card) for card, _ in pairs)
    sources = dict.fromkeys(source for card, chip in pairs for source in (chip.source, card.source))
    notes = (f"sources: {'; '.join(sources)}", "the H200 has the chip of the H100")
    return Table("", ("what", *names), lines, frozenset(names), notes)


def rates_table() -> Table:
    """Peak rates by number format, and the FLOPs that must be done per byte to reach the peak."""
    formats = ("float32", "tf32", "bfloat16", "float16")
    lines = tuple(
        (
            short(card),
            *(_tflops(card, name) for name in formats),
            form.three_digits(balance(card)),
        )
        for card, _ in cards_with_chips()
    )
    columns = ("float32", "TF32", "bfloat16", "float16", "FLOP per byte")
    notes = ("TFLOP/s, dense, by the data sheets; FLOP per byte: the fastest format over the bandwidth",)
    return Table("", ("card", *columns), lines, frozenset(columns), notes)


def balance(card: Card) -> float:
    """FLOP that the card can do, at its best rate, while one byte comes from its memory."""
    return max(card.flops_per_s.values()) / card.bytes_per_s


def short(card: Card) -> str:
    """A card's name as a narrow column bears it: "A100" for "A100 80 GB SXM"."""
    return card.title.split()[0]


def _tflops(card: Card, name: str) -> str:
    rate = card.flops_per_s.get(name)
    return form.NOTHING if rate is None else f"{rate / 1e12:.1f}".removesuffix(".0")


def operations() -> tuple[Operation, ...]:
    """Operations of one step of 8 sequences in 16 bits, each counted alone: its inputs read once, its output written.

    The norm and GELU forward; a norm does about 8 operations on each number and GELU about 12, AdamW about 14.
    """
    recipe = NINE_STEPS.recipe_at("padded_vocab")
    tokens, width, item = tokens_of(recipe), recipe.embedding_width, 2
    hidden, vocabulary = 4 * width, recipe.padded_vocab_size
    weights = weights_of(recipe)

    def matmul(name: str, rows: int, depth: int, columns: int) -> Operation:
        moved = rows * depth + depth * columns + rows * columns
        return Operation(name, 2.0 * rows * depth * columns, float(item * moved))

    forward = 2  # passes of a fused kernel: one reads, one writes
    return (
        matmul("head: logits", tokens, width, vocabulary),
        matmul("feed-forward, up", tokens, width, hidden),
        matmul("attention output", tokens, width, width),
        Operation("GELU, one kernel", 12.0 * tokens * hidden, float(forward * item * tokens * hidden)),
        Operation("LayerNorm, one kernel", 8.0 * tokens * width, float(forward * item * tokens * width)),
        Operation("AdamW, fused", 14.0 * weights, float(OPTIMIZER_PASSES["fused"] * item * weights)),
    )


def ceilings_table() -> Table:
    """The shortest time of each operation on each card, and which of the two ceilings sets it."""
    pairs = cards_with_chips()
    names = tuple(short(card) for card, _ in pairs)
    lines = tuple(
        (operation.name, form.three_digits(operation.intensity), *(shortest(operation, card) for card, _ in pairs))
        for operation in operations()
    )
    notes = (
        "microseconds, by formula from data-sheet rates: A set by arithmetic, M by memory traffic; a real kernel takes "
        "longer",
    )
    return Table("", ("operation", "FLOP per byte", *names), lines, frozenset(("FLOP per byte", *names)), notes)


def shortest(operation: Operation, card: Card) -> str:
    """Microseconds of the longer of the two, arithmetic or traffic, with its letter.

    A matmul may use the fastest format of the card; other operations run on the ordinary units.
    """
    plain = operation.intensity < 10
    arithmetic = operation.flops / (card.flops_per_s["float32"] if plain else max(card.flops_per_s.values()))
    traffic = operation.bytes / card.bytes_per_s
    return f"{form.three_digits(1e6 * max(arithmetic, traffic))} {'A' if arithmetic > traffic else 'M'}"
