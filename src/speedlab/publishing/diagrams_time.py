"""Diagrams of order in time: the transfer of a batch from pageable and from pinned memory, and what compiling does.

They show what follows what; lengths mean nothing, and nothing is measured.
"""

from __future__ import annotations

from speedlab.publishing import svg

IDLE = "#eceff2"
# Name of the variant, then for host and card: (from, to, word, colour) on a line of 360 units.
Span = tuple[float, float, str, str]
TRANSFERS: tuple[tuple[str, tuple[Span, ...], tuple[Span, ...]], ...] = (
    (
        "Pageable: the host waits for the copy",
        ((0, 70, "launch 1", svg.SKY), (70, 100, "stage", svg.VERMILION), (100, 200, "wait", IDLE),
         (200, 280, "launch 2", svg.SKY)),
        ((30, 170, "step 1", svg.BLUE), (170, 200, "copy", svg.ORANGE), (200, 230, "idle", IDLE),
         (230, 360, "step 2", svg.BLUE)),
    ),
    (
        "Pinned and non-blocking: the host runs ahead",
        ((0, 70, "launch 1", svg.SKY), (70, 100, "queue", svg.GREEN), (100, 170, "launch 2", svg.SKY),
         (170, 360, "free for the next batch", svg.PANEL)),
        ((30, 170, "step 1", svg.BLUE), (170, 200, "copy", svg.ORANGE), (200, 330, "step 2", svg.BLUE)),
    ),
)  # fmt: skip


def pinned_transfer() -> str:
    """SVG: what host and card do between two steps, with the batch in pageable and in pinned memory."""
    shapes = [
        svg.text(20, 34, "A batch on its way to the card", size=18, bold=True),
        svg.text(20, 57, "Time runs to the right. Order only: not to scale.", fill=svg.FAINT, size=14),
    ]
    top, told = 92, []
    for title, *tracks in TRANSFERS:
        shapes.append(svg.text(20, top, title, bold=True))
        for row, (who, spans) in enumerate(zip(("host", "card"), tracks, strict=True)):
            y = top + 14 + row * 42
            shapes.append(svg.text(20, y + 21, who, size=14, fill=svg.FAINT))
            for begin, end, word, fill in spans:
                ink = svg.PANEL if fill == svg.BLUE else svg.INK
                shapes.append(svg.cell(80 + begin, y, end - begin, 32, "", fill=fill))
                if end - begin > 60 or word in ("idle",):
                    shapes.append(svg.text(80 + (begin + end) / 2, y + 21, word, size=13, fill=ink, anchor="middle"))
            told.append(f"{title.split(':')[0]}, {who}: " + ", then ".join(word for *_, word, _ in spans) + ".")
        top += 134
    for index, (fill, words) in enumerate(
        (
            (svg.VERMILION, "the driver copies the batch into its own pinned buffer"),
            (svg.GREEN, "the host only queues the transfer"),
            (svg.ORANGE, "transfer to the card, after all work queued before it"),
        )
    ):
        shapes.append(svg.key(20, top - 4 + index * 26, fill, words))
    return svg.document(480, top + 66, "Transfer of a batch, pageable and pinned", " ".join(told), shapes)


# Box, what comes out of it.
COMPILING: tuple[tuple[str, str, str], ...] = (
    ("Your Python code, unchanged", "first call", "#eceff2"),
    ("TorchDynamo: records a graph of the operations", "the forward graph, and guards", svg.SKY),
    ("AOTAutograd: derives the backward graph", "two graphs, and what is kept between them", svg.SKY),
    ("Inductor: fuses, then writes code", "Triton on a GPU, C++ on a CPU", svg.SKY),
    ("Generated kernels between library calls", "kept in a cache on disk", svg.GREEN),
)


def compile_pipeline() -> str:
    """SVG: from Python to kernels on the first call of a compiled model, and what happens on the later ones."""
    shapes = [svg.text(20, 34, "What torch.compile does on the first call", size=18, bold=True)]
    top = 54
    for index, (box, out, fill) in enumerate(COMPILING):
        shapes.append(svg.cell(20, top, 380, 36, box, fill=fill))
        arrow = "↓ " if index < len(COMPILING) - 1 else ""
        shapes.append(svg.text(40, top + 57, f"{arrow}{out}", size=14, fill=svg.FAINT))
        top += 70
    shapes += [
        svg.text(20, top + 16, "Every later call", size=16, bold=True),
        svg.text(20, top + 40, "Guards are checked: same shapes, formats, settings?"),
        svg.cell(20, top + 54, 205, 36, "yes: run the kernels", fill=svg.GREEN),
        svg.cell(245, top + 54, 215, 36, "no: compile once more", fill=svg.ORANGE),
        svg.text(20, top + 116, "Matmuls and attention stay calls into cuBLAS and cuDNN;", size=14, fill=svg.FAINT),
        svg.text(20, top + 136, "what lies between becomes one kernel or a few.", size=14, fill=svg.FAINT),
    ]
    words = (
        "On the first call: " + "; ".join(f"{box} ({out})" for box, out, _ in COMPILING) + ". On every later call the "
        "guards are checked: the kernels run if shapes, formats and settings are the same, otherwise it is compiled "
        "once more."
    )
    return svg.document(480, top + 156, "From Python to kernels with torch.compile", words, shapes)
