"""Diagram of the padded vocabulary: where the rows of the logits begin, and what the last tile computes in vain.

All of it is arithmetic on 50,257 and 50,304. Nothing is measured.
"""

from __future__ import annotations

from speedlab.publishing import svg
from speedlab.recipe import Recipe

LOAD_BYTES = 16  # the widest load of one thread
TILE_WIDTHS = (64, 128, 256)


def row_offsets(columns: int, rows: int, *, value_bytes: int = 2, border: int = LOAD_BYTES) -> list[int]:
    """How many bytes behind a `border` each of the first rows of a matrix begins, if the first begins on one."""
    return [row * columns * value_bytes % border for row in range(rows)]


def tiles_and_waste(columns: int, tile: int) -> tuple[int, int]:
    """Tiles that a matmul needs across, and the columns of the last one that lie outside the matrix."""
    tiles = -(-columns // tile)
    return tiles, tiles * tile - columns


def padded_tiles() -> str:
    """SVG: starts of rows against 16-byte borders, and the last tile across, for the exact and the padded matrix."""
    exact = Recipe().padded_vocab_size
    padded = Recipe(vocabulary="padded").padded_vocab_size
    shapes = [
        svg.text(20, 34, f"{exact:,} columns against {padded:,}", size=18, bold=True),
        svg.text(20, 64, f"Where the first rows begin, in steps of {LOAD_BYTES} bytes", bold=True),
    ]
    top, told = 76, []
    for columns in (exact, padded):
        offsets = row_offsets(columns, 8)
        shapes.append(svg.text(20, top + 20, f"{columns:,} columns, {2 * columns:,} bytes a row", size=14))
        for row, offset in enumerate(offsets):
            left, y = 20 + row * 56, top + 30
            shapes.append(svg.rectangle(left, y, 48, 20, fill="#eceff2", stroke=svg.FAINT, line=0.8))
            fill = svg.GREEN if offset == 0 else svg.VERMILION
            shapes.append(svg.rectangle(left + 3 * offset, y, 6, 20, fill=fill))
            shapes.append(svg.text(left + 24, y + 38, f"+{offset}", size=13, anchor="middle"))
        told.append(f"With {columns:,} columns the first rows begin at bytes {', '.join(map(str, offsets))} behind a "
                    f"border of {LOAD_BYTES}.")  # fmt: skip
        top += 84
    shapes += [
        svg.text(20, top + 14, "Green rows allow loads of 16 bytes; red ones do not.", size=14, fill=svg.FAINT),
        svg.text(20, top + 52, "The last tile across: needed and computed in vain", bold=True),
    ]
    top += 70
    for tile in TILE_WIDTHS:
        for columns in (exact, padded):
            tiles, waste = tiles_and_waste(columns, tile)
            scale = 170 / tile
            words = f"tile {tile}: {columns:,}"
            shapes += [
                svg.text(20, top + 15, words, size=14),
                svg.rectangle(150, top, scale * (tile - waste), 20, fill=svg.SKY, stroke=svg.INK, line=0.8),
                svg.text(326, top + 15, f"{tiles} tiles, {waste} in vain", size=12),
            ]
            if waste:
                shapes.append(
                    svg.rectangle(
                        150 + scale * (tile - waste), top, scale * waste, 20, fill=svg.ORANGE, stroke=svg.INK, line=0.8
                    )
                )
            told.append(f"Tiles of {tile} for {columns:,} columns: {tiles}, with {waste} columns computed in vain.")
            top += 26
        top += 8
    shapes += [
        svg.key(20, top + 14, svg.SKY, "needed"),
        svg.key(120, top + 14, svg.ORANGE, "outside the matrix"),
        svg.text(20, top + 42, "The same number of tiles: padding adds none.", size=14, bold=True),
    ]
    return svg.document(480, top + 60, "Rows and tiles of the logits, exact and padded", " ".join(told), shapes)
