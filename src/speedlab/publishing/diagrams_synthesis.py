"""The decision path as a drawing: from what limits a step to the changes that lift that limit. It holds no number."""

from __future__ import annotations

from speedlab.publishing import svg

# Question, what to do on "no" (title, then lines). The last question has its "yes" as an end of its own.
PATH: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Does it fit?",
        "Memory is the limit",
        ("FlashAttention, 16 bits,", "smaller micro-batch"),
    ),
    (
        "Is the card always busy?",
        "The host is the limit",
        ("torch.compile, larger batch,", "pinned memory, loader workers"),
    ),
    (
        "Mostly matmuls?",
        "Memory traffic is the limit",
        ("fused AdamW, native layers,", "FlashAttention, torch.compile"),
    ),
    (
        "Tensor Cores, 16 bits?",
        "Slow units are the limit",
        ("TF32, then bfloat16", "(float16 with a scaler on a T4)"),
    ),
    (
        "Near its ceiling?",
        "Shapes are the limit",
        ("padded vocabulary,", "merged q/k/v, larger batch"),
    ),
)
LAST = "Yes to all: more GPUs, or a faster card"


def decision_path() -> str:
    """SVG: five questions from top to bottom; "no" leads to the right, to what lifts the limit that was found."""
    shapes = [
        svg.text(20, 34, "What limits the step, and what lifts it", size=18, bold=True),
        svg.text(20, 57, "Start at the top. After every change, start again.", fill=svg.FAINT, size=14),
    ]
    top = 76
    for question, limit, lines in PATH:
        shapes += [
            svg.cell(12, top + 6, 182, 48, "", fill=svg.SKY),
            svg.text(103, top + 35, question, size=13, anchor="middle"),
            svg.text(216, top + 35, "no →", size=13, anchor="middle"),
            svg.rectangle(238, top, 230, 66, fill="#f4f6f8", stroke=svg.FAINT, line=0.8),
            svg.text(246, top + 19, limit, size=14, bold=True),
            *(svg.text(246, top + 38 + index * 19, line, size=13) for index, line in enumerate(lines)),
            svg.text(103, top + 73, "↓ yes", size=13, anchor="middle"),
        ]
        top += 84
    shapes.append(svg.cell(12, top, 456, 38, LAST, fill=svg.GREEN))
    words = " ".join(f"{question} If not: {limit.lower()}: {' '.join(lines)}." for question, limit, lines in PATH)
    return svg.document(480, top + 56, "Decision path from limit to change", f"{words} {LAST}.", shapes)
