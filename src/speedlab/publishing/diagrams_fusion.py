"""Diagrams of fusion: how often tensors pass between memory and chip, before and after.

The passes are those of `measuring.traffic` and `measuring.counting`, from which predictions are made. Nothing is
measured.
"""

from __future__ import annotations

from speedlab.measuring.traffic import HANDWRITTEN_GELU, HANDWRITTEN_NORM, NATIVE_GELU, NATIVE_NORM
from speedlab.publishing import svg

Counts = dict[str, tuple[int, int]]


def passes_and_kernels(counts: Counts) -> tuple[int, int]:
    """Tensors read or written and kernels launched, forward and backward, over all kinds of kernels."""
    return sum(passes for passes, _ in counts.values()), sum(kernels for _, kernels in counts.values())


def fusion_passes() -> str:
    """SVG: GELU and LayerNorm, one box for each tensor that a kernel reads or writes, before and after fusion."""
    shapes = [
        svg.text(20, 34, "What fusion saves: passes over memory", size=18, bold=True),
        svg.text(20, 57, "Forward and backward. One box: a tensor read or written.", fill=svg.FAINT, size=14),
    ]
    rows = (
        ("GELU, written out", HANDWRITTEN_GELU, svg.VERMILION),
        ("GELU, one kernel each way", NATIVE_GELU, svg.GREEN),
        ("LayerNorm, written out", HANDWRITTEN_NORM, svg.VERMILION),
        ("LayerNorm, PyTorch's kernels", NATIVE_NORM, svg.GREEN),
    )
    top, told = 90, []
    for name, counts, fill in rows:
        passes, kernels = passes_and_kernels(counts)
        words = f"{name}: {passes} passes, {kernels} kernels"
        shapes.append(svg.text(20, top, words))
        shapes += [
            svg.rectangle(20 + index * 9, top + 9, 9, 18, fill=fill, stroke=svg.PANEL, line=1.2)
            for index in range(passes)
        ]
        told.append(f"{words}.")
        top += 58
    shapes += [
        svg.text(20, top - 4, "The boxes of GELU are four times as large: its tensors", size=14, fill=svg.FAINT),
        svg.text(20, top + 16, "are four times as wide as those of LayerNorm.", size=14, fill=svg.FAINT),
    ]
    return svg.document(480, top + 34, "Passes over memory of GELU and LayerNorm", " ".join(told), shapes)


# AdamW as PyTorch operations: what is done, which tensors are read, which written. w weight, g gradient, m and v
# moments, d denominator. Scalars cost nothing.
ADAMW_OPERATIONS: tuple[tuple[str, str, str], ...] = (
    ("w *= decay", "w", "w"),
    ("m towards g", "mg", "m"),
    ("v *= beta2", "v", "v"),
    ("v += g * g", "vgg", "v"),
    ("d = sqrt(v)", "v", "d"),
    ("d /= correction", "d", "d"),
    ("d += eps", "d", "d"),
    ("w -= m / d", "wmd", "w"),
)
ADAMW_FUSED = ("all of it at once", "wgmv", "wmv")


def adamw_passes() -> str:
    """SVG: each operation of AdamW with the tensors that it reads and writes, and the one kernel that does them all."""
    shapes = [
        svg.text(20, 34, "AdamW between memory and chip", size=18, bold=True),
        svg.key(20, 62, svg.SKY, "read"),
        svg.key(100, 62, svg.ORANGE, "written"),
        svg.text(190, 62, "One box: as large as the weights", size=13, fill=svg.FAINT),
        svg.text(
            20, 96, f"Before: {len(ADAMW_OPERATIONS)} operations, {passes_of(ADAMW_OPERATIONS)} passes", bold=True
        ),
    ]
    top = 108
    for row in ADAMW_OPERATIONS:
        shapes.append(_operation(top, row))
        top += 28
    shapes.append(svg.text(20, top + 28, f"After: one kernel, {passes_of((ADAMW_FUSED,))} passes", bold=True))
    shapes.append(_operation(top + 40, ADAMW_FUSED))
    shapes.append(
        svg.text(20, top + 96, "w weight, g gradient, m and v moments, d denominator", size=14, fill=svg.FAINT)
    )
    words = " ".join(f"{name}: reads {', '.join(reads)}, writes {writes}." for name, reads, writes in ADAMW_OPERATIONS)
    words += f" Fused: reads {', '.join(ADAMW_FUSED[1])}, writes {', '.join(ADAMW_FUSED[2])}, all in one kernel."
    return svg.document(480, top + 114, "AdamW before and after fusion", words, shapes)


def passes_of(operations: tuple[tuple[str, str, str], ...]) -> int:
    """Tensors read or written by all operations together."""
    return sum(len(reads) + len(writes) for _, reads, writes in operations)


def _operation(y: float, row: tuple[str, str, str]) -> str:
    name, reads, writes = row
    shapes = [svg.text(20, y + 17, name, size=14)]
    shapes += [svg.cell(170 + index * 30, y, 26, 24, letter, fill=svg.SKY) for index, letter in enumerate(reads)]
    shapes += [svg.cell(320 + index * 30, y, 26, 24, letter, fill=svg.ORANGE) for index, letter in enumerate(writes)]
    return "".join(shapes)
