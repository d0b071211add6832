"""Diagrams of number formats and Tensor Cores, and the list of all diagrams with the words for those who cannot see.

`DIAGRAMS` maps a name to the function that draws it; a chapter shows one with `IPython.display.SVG(diagram())`, and
the book gets them all as files. Sizes and limits are computed from the formats, nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from speedlab.errors import check_choice
from speedlab.number_formats import FORMATS
from speedlab.publishing import svg
from speedlab.publishing.diagrams_attention import causal_block_skipping, flash_attention_tiling, hbm_traffic
from speedlab.publishing.diagrams_fusion import adamw_passes, fusion_passes
from speedlab.publishing.diagrams_machine import memory_hierarchy, tf32_rounding
from speedlab.publishing.diagrams_several_gpus import overlap, ring_all_reduce
from speedlab.publishing.diagrams_shapes import padded_tiles
from speedlab.publishing.diagrams_synthesis import decision_path
from speedlab.publishing.diagrams_time import compile_pipeline, pinned_transfer
from speedlab.records.store import write_text_atomic

NUMBER_FORMATS = tuple(FORMATS[name] for name in ("float32", "TF32", "bfloat16", "float16"))


@dataclass(frozen=True, kw_only=True)
class MatrixInstruction:
    """One Tensor Core instruction: rows x depth times depth x columns, issued by `warps` warps of 32 threads."""

    name: str
    inputs: str
    rows: int
    columns: int
    depth: int
    warps: int = 1

    @property
    def multiply_adds(self) -> int:
        return self.rows * self.columns * self.depth


# Shapes from NVIDIA's PTX ISA, sections on mma.sync and wgmma.mma_async.
BFLOAT16_MMA = MatrixInstruction(name="mma m16n8k16", inputs="bfloat16 or float16", rows=16, columns=8, depth=16)
TF32_MMA = MatrixInstruction(name="mma m16n8k8", inputs="TF32", rows=16, columns=8, depth=8)
HOPPER_WGMMA = MatrixInstruction(
    name="wgmma m64n256k16", inputs="bfloat16 or float16", rows=64, columns=256, depth=16, warps=4
)
ORDINARY_MULTIPLY_ADDS = 32  # one per thread of a warp


def number_formats() -> str:
    """SVG: which bits of each format are sign, exponent and fraction, with its range and its step at 1."""
    shapes = [svg.text(20, 34, "What the bits of a number are for", size=18, bold=True)]
    top, bit = 62, 13.5
    told = []
    for form in NUMBER_FORMATS:
        shapes.append(svg.text(20, top, form.name, bold=True))
        shapes.append(
            svg.text(
                460, top, f"largest {_large(form.largest)}, step at 1: {form.step_at_one:.2g}", anchor="end", size=14
            )
        )
        unused = form.stored_bits - 1 - form.exponent_bits - form.fraction_bits
        left = 20.0
        for count, fill in ((1, svg.VERMILION), (form.exponent_bits, svg.ORANGE), (form.fraction_bits, svg.SKY),
                            (unused, "#eceff2")):  # fmt: skip
            for _ in range(count):
                shapes.append(svg.rectangle(left, top + 8, bit, 26, fill=fill, stroke=svg.INK, line=0.7))
                left += bit
        shapes.append(
            svg.text(20, top + 52, f"1 sign, {form.exponent_bits} exponent, {form.fraction_bits} fraction"
                     + (f", {unused} stored but not used" if unused else ""), size=14, fill=svg.FAINT)
        )  # fmt: skip
        told.append(f"{form.name}: 1 sign, {form.exponent_bits} exponent, {form.fraction_bits} fraction bits, largest "
                    f"{_large(form.largest)}, step at one {form.step_at_one:.2g}.")  # fmt: skip
        top += 84
    for index, (fill, words) in enumerate(
        ((svg.VERMILION, "sign"), (svg.ORANGE, "exponent: range"), (svg.SKY, "fraction: precision"))
    ):
        shapes.append(svg.key(20 + (0, 90, 260)[index], top + 6, fill, words))
    return svg.document(480, top + 28, "Bit layouts of float32, TF32, bfloat16 and float16", " ".join(told), shapes)


def _large(value: float) -> str:
    return f"{value:,.0f}" if value < 1e6 else f"{value:.2e}".replace("e+", "e")


def tensor_core_tile() -> str:
    """SVG: the matrices that one Tensor Core instruction multiplies, beside what an ordinary instruction does."""
    tile, size, top = BFLOAT16_MMA, 9, 112
    height = tile.rows * size
    row, column = 5, 2  # of the one cell of C that is shown being summed
    row_of_a, column_of_b = [(row, k) for k in range(tile.depth)], [(k, column) for k in range(tile.depth)]
    shapes = [
        svg.text(20, 34, "What one instruction multiplies", size=18, bold=True),
        svg.text(20, 57, f"{tile.name}, inputs {tile.inputs}, sums in float32", fill=svg.FAINT, size=14),
    ]
    lefts = (30, 230, 350)
    parts = (
        (f"A  {tile.rows} x {tile.depth}", tile.rows, tile.depth, row_of_a, svg.SKY),
        (f"B  {tile.depth} x {tile.columns}", tile.depth, tile.columns, column_of_b, svg.ORANGE),
        (f"C  {tile.rows} x {tile.columns}", tile.rows, tile.columns, [(row, column)], svg.GREEN),
    )  # fmt: skip
    for left, (name, rows, columns, marked, mark) in zip(lefts, parts, strict=True):
        shapes.append(svg.text(left, top - 12, name))
        shapes.append(svg.grid(left, top, rows, columns, size, marked=marked, mark=mark))
    middle = top + height / 2 + 6
    shapes += [
        svg.text(202, middle, "\N{MULTIPLICATION SIGN}", anchor="middle", size=20),
        svg.text(326, middle, "+→", anchor="middle", size=18),
        svg.text(20, top + height + 32, f"A row of A times a column of B: {tile.depth} products,"),
        svg.text(20, top + height + 54, "summed into one cell of C. One warp (32 threads) does"),
        svg.text(20, top + height + 76, f"all {tile.rows * tile.columns} cells of C in one instruction."),
    ]
    bottom = top + height + 114
    shapes.append(svg.text(20, bottom, "Multiply-adds per instruction of one warp", bold=True))
    rows_shown = (
        ("ordinary, float32", ORDINARY_MULTIPLY_ADDS),
        (f"TF32, {TF32_MMA.name}", TF32_MMA.multiply_adds),
        (f"16-bit, {BFLOAT16_MMA.name}", BFLOAT16_MMA.multiply_adds),
    )
    widest = max(amount for _, amount in rows_shown)
    for index, (name, amount) in enumerate(rows_shown):
        y = bottom + 26 + index * 30
        shapes.append(svg.text(20, y, name, size=14))
        shapes.append(svg.rectangle(200, y - 14, max(200 * amount / widest, 2), 18, fill=svg.BLUE))
        shapes.append(svg.text(200 + 200 * amount / widest + 8, y, f"{amount:,}", size=14))
    shapes.append(
        svg.text(20, bottom + 122, f"H100 and H200: {HOPPER_WGMMA.name}, {HOPPER_WGMMA.multiply_adds:,} for "
                 f"{HOPPER_WGMMA.warps} warps.", size=14, fill=svg.FAINT)
    )  # fmt: skip
    words = (
        f"A matrix of {tile.rows} by {tile.depth} times one of {tile.depth} by {tile.columns} is added to one of "
        f"{tile.rows} by {tile.columns}. Multiply-adds per instruction of one warp: "
        + ", ".join(f"{name} {amount:,}" for name, amount in rows_shown)
        + f". On H100 and H200 one instruction of {HOPPER_WGMMA.warps} warps does {HOPPER_WGMMA.multiply_adds:,}."
    )
    return svg.document(480, bottom + 142, "One Tensor Core instruction", words, shapes)


# Name (also the file's), and the function that draws it.
DIAGRAMS: dict[str, Callable[[], str]] = {
    "tensor_core_tile": tensor_core_tile,
    "number_formats": number_formats,
    "flash_attention_tiling": flash_attention_tiling,
    "hbm_traffic": hbm_traffic,
    "causal_block_skipping": causal_block_skipping,
    "memory_hierarchy": memory_hierarchy,
    "tf32_rounding": tf32_rounding,
    "fusion_passes": fusion_passes,
    "adamw_passes": adamw_passes,
    "pinned_transfer": pinned_transfer,
    "compile_pipeline": compile_pipeline,
    "padded_tiles": padded_tiles,
    "ring_all_reduce": ring_all_reduce,
    "overlap": overlap,
    "decision_path": decision_path,
}

# Alternative texts: what is seen, without the numbers, which the drawing's own description holds.
ALT_TEXTS: dict[str, str] = {
    "tensor_core_tile": "A tile of matrix A times a tile of matrix B is added to a tile of C by one instruction; bars "
    "compare its multiply-adds with those of an ordinary instruction",
    "number_formats": "Rows of bits for float32, TF32, bfloat16 and float16, coloured by sign, exponent and fraction, "
    "each with its largest value and its step at one",
    "flash_attention_tiling": "Three tiles of two keys pass one query row; after each, the running maximum, sum and "
    "output are updated, and the end result equals the ordinary softmax",
    "hbm_traffic": "Two bars to one scale: plain attention moves the score matrix four times, tiled attention moves "
    "only queries, keys, values and output",
    "causal_block_skipping": "A square of tiles: those below the diagonal are computed whole, those on it are masked "
    "inside, those above it are skipped",
    "memory_hierarchy": "Four squares to one scale, the memories of T4, A100, H100 and H200, each with all memory on "
    "its chip as a dot in the corner; bars compare registers, L1 and L2",
    "tf32_rounding": "The bits of one float32 number; on the way into the multiplier its last 13 fraction bits are "
    "dropped, products and sums keep float32",
    "fusion_passes": "Rows of boxes, one for each pass over memory: long rows for GELU and LayerNorm written out, "
    "short ones for their single kernels",
    "adamw_passes": "Eight operations of AdamW, each with the tensors that it reads and writes, above one fused "
    "operation that reads four and writes three",
    "pinned_transfer": "Two timelines of host and card: from pageable memory the host waits for the copy and the card "
    "then idles; from pinned memory neither waits",
    "compile_pipeline": "Five boxes from Python code through graph capture, backward graph and code generation to "
    "kernels; later calls check guards and reuse them",
    "padded_tiles": "Row starts of the exact matrix wander between 16-byte borders, those of the padded one never do; "
    "the last tiles show the columns computed in vain",
    "ring_all_reduce": "Seven squares of four GPUs by four chunks: sums grow along the diagonal for three rounds, "
    "then three more rounds hand them on to all",
    "overlap": "A bar for the backward pass above the buckets sent over two links: over NVLink they are slivers, over "
    "PCIe they fill the time and run on after it",
    "decision_path": "Five questions from fitting into memory to the measured ceiling; each no leads to the changes "
    "that lift that limit",
}


def alt_text(name: str) -> str:
    check_choice("diagram", name, ALT_TEXTS)
    return ALT_TEXTS[name]


def write_diagrams(folder: Path) -> list[Path]:
    """Write every diagram as `folder`/<name>.svg and return the paths."""
    paths = []
    for name, draw in DIAGRAMS.items():
        path = folder / f"{name}.svg"
        write_text_atomic(path, draw())
        paths.append(path)
    return paths
