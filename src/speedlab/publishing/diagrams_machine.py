"""Diagrams of the machine: the memories of four cards to one scale, and where TF32 rounds.

Sizes come from data sheets and white papers, bits from the formats. Nothing is measured.
"""

from __future__ import annotations

import math

from speedlab.chips import MIB, cards_with_chips
from speedlab.number_formats import FORMATS, bit_pattern, round_to
from speedlab.publishing import svg

LARGEST_SIDE = 124  # pixels of the square of the largest memory
LONGEST_BAR = 210


def memory_hierarchy() -> str:
    """SVG: the memory of each card as a square, that on its chip as a square inside, both to one scale of area."""
    cards = cards_with_chips()
    largest = max(card.memory_gib for card, _ in cards)
    shapes = [
        svg.text(20, 34, "Memory to scale", size=18, bold=True),
        svg.text(20, 57, "Area is capacity. Red dot in the corner: all on the chip.", fill=svg.FAINT, size=14),
    ]
    left, floor = 20.0, 92.0 + LARGEST_SIDE
    told = []
    for card, chip in cards:
        side = LARGEST_SIDE * math.sqrt(card.memory_gib / largest)
        inner = LARGEST_SIDE * math.sqrt(chip.on_chip_bytes / (largest * 2**30))
        name, size = card.title.split()[0], f"{card.memory_gib:.0f} GiB"
        shapes += [
            svg.rectangle(left, floor - side, side, side, fill=svg.SKY, stroke=svg.INK, line=0.8),
            svg.rectangle(left, floor - inner, inner, inner, fill=svg.VERMILION),
            svg.text(left, floor - side - 8, name, bold=True),
            svg.text(left, floor + 20, size, size=14),
        ]
        times = card.memory_gib * 2**30 / chip.on_chip_bytes
        told.append(f"{name}: {size}, {times:,.0f} times what the chip holds.")
        left += max(side, 58) + 20
    top = floor + 58
    shapes.append(svg.text(20, top, "On the chip, MiB", bold=True))
    scale = LONGEST_BAR / max(chip.l2_bytes for _, chip in cards)
    top += 12
    for card, chip in cards:
        shapes.append(svg.text(20, top + 34, card.title.split()[0], bold=True))
        rows = (
            ("registers", chip.all_register_bytes, svg.VERMILION),
            ("L1, shared", chip.all_l1_bytes, svg.ORANGE),
            ("L2", chip.l2_bytes, svg.GREEN),
        )
        for index, (name, size, fill) in enumerate(rows):
            y = top + 14 + index * 20
            shapes += [
                svg.text(160, y, name, size=14, anchor="end"),
                svg.rectangle(170, y - 12, scale * size, 15, fill=fill),
                svg.text(176 + scale * size, y, f"{size / MIB:.1f}", size=14),
            ]
        told.append(f"{card.title} on the chip: " + ", ".join(f"{n} {size / MIB:.1f} MiB" for n, size, _ in rows) + ".")
        top += 76
    return svg.document(480, int(top + 6), "Memory of four cards to scale", " ".join(told), shapes)


EXAMPLE = 0.1  # no format holds it exactly


def tf32_rounding() -> str:
    """SVG: the bits of one number in memory, as they enter the multiplier, and what is kept of sums and results."""
    full, short = FORMATS["float32"], FORMATS["TF32"]
    stored = round_to(EXAMPLE, full)
    used = round_to(stored, short)
    dropped = full.fraction_bits - short.fraction_bits
    products = 2 * (short.fraction_bits + 1)  # bits of the product of two fractions with their leading ones
    shapes = [
        svg.text(20, 34, "Where TF32 rounds", size=18, bold=True),
        svg.text(20, 68, "1. In memory: float32, 4 bytes", bold=True),
        _bits(78, bit_pattern(stored, full), 0),
        svg.text(20, 128, f"{stored:.12f}", size=14, fill=svg.FAINT),
        svg.text(20, 166, f"2. Into the multiplier: {dropped} fraction bits are dropped", bold=True),
        _bits(176, bit_pattern(used, short), dropped),
        svg.text(20, 226, f"{used:.12f}, off by one part in {stored / abs(used - stored):,.0f}", size=14,
                 fill=svg.FAINT),
        svg.text(20, 264, "3. Product of two such numbers: exact", bold=True),
        svg.text(20, 286, f"It needs {products} bits; float32 keeps {full.fraction_bits + 1}.", size=14,
                 fill=svg.FAINT),
        svg.text(20, 322, "4. Sums: kept in float32", bold=True),
        svg.text(20, 344, "So only the inputs lose bits, once each.", size=14, fill=svg.FAINT),
        svg.text(20, 380, "5. Back to memory: float32, 4 bytes", bold=True),
        svg.text(20, 402, "The traffic is what it was, for all other kernels too.", size=14, fill=svg.FAINT),
        svg.key(20, 438, svg.VERMILION, "sign"),
        svg.key(100, 438, svg.ORANGE, "exponent"),
        svg.key(210, 438, svg.SKY, "fraction"),
        svg.key(310, 438, "#eceff2", "dropped"),
    ]  # fmt: skip
    words = (
        f"The number {stored:.12f} has 32 bits in memory. On its way into the multiplier {dropped} of its "
        f"{full.fraction_bits} fraction bits are dropped and it becomes {used:.12f}. The product of two such numbers "
        "is exact, sums are kept in float32, and the result goes back to memory with 32 bits."
    )
    return svg.document(480, 458, "Where TF32 rounds", words, shapes)


def _bits(y: float, pattern: str, dropped: int) -> str:
    """The digits of a bit pattern in boxes coloured by field, then `dropped` empty ones."""
    width, left, shapes = 13.5, 20.0, []
    for field, fill in zip(pattern.split(), (svg.VERMILION, svg.ORANGE, svg.SKY), strict=True):
        for digit in field:
            shapes.append(svg.rectangle(left, y, width, 26, fill=fill, stroke=svg.INK, line=0.7))
            shapes.append(svg.text(left + width / 2, y + 18, digit, size=12, anchor="middle"))
            left += width
    for _ in range(dropped):
        shapes.append(svg.rectangle(left, y, width, 26, fill="#eceff2", stroke=svg.RULE, line=0.7))
        left += width
    return "".join(shapes)
