"""What data sheets say about graphics cards. Torch-free; an unknown card has no entry and therefore no MFU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Card:
    """One card: dense peak rates in FLOP/s by number format, memory bandwidth in bytes/s, and the source."""

    slug: str
    title: str
    pattern: str  # of the name that the driver reports
    capability: tuple[int, int]
    memory_gib: float
    bytes_per_s: float
    flops_per_s: dict[str, float] = field(default_factory=dict)
    source: str = ""


# Dense rates; the sparse ones of the same sheets are twice as high and never reached by a plain matmul. A format
# without an entry has no unit for it on that card. The first pattern that matches wins.
CARDS: tuple[Card, ...] = (
    Card(
        slug="nvidia-h200", title="H200 SXM", pattern=r"\bH200$", capability=(9, 0), memory_gib=141e9 / 2**30,
        bytes_per_s=4.8e12, source="NVIDIA H200 Tensor Core GPU data sheet, SXM",
        flops_per_s={"float32": 66.9e12, "tf32": 494.7e12, "bfloat16": 989.5e12, "float16": 989.5e12},
    ),
    Card(
        slug="nvidia-h100", title="H100 SXM", pattern=r"\bH100( 80GB HBM3)?$", capability=(9, 0), memory_gib=80.0,
        bytes_per_s=3.35e12, source="NVIDIA H100 Tensor Core GPU data sheet, SXM",
        flops_per_s={"float32": 66.9e12, "tf32": 494.7e12, "bfloat16": 989.5e12, "float16": 989.5e12},
    ),
    Card(
        slug="nvidia-a100-80gb", title="A100 80 GB SXM", pattern=r"\bA100-SXM4-80GB$", capability=(8, 0),
        memory_gib=80.0, bytes_per_s=2.039e12, source="NVIDIA A100 Tensor Core GPU data sheet, 80 GB SXM",
        flops_per_s={"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12, "float16": 312e12},
    ),
    Card(
        slug="nvidia-a100-80gb-pcie", title="A100 80 GB PCIe", pattern=r"\bA100.*80GB PCIe$|\bA100-PCIE-80GB$",
        capability=(8, 0), memory_gib=80.0, bytes_per_s=1.935e12,
        source="NVIDIA A100 Tensor Core GPU data sheet, 80 GB PCIe",
        flops_per_s={"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12, "float16": 312e12},
    ),
    Card(
        slug="nvidia-a100-40gb", title="A100 40 GB", pattern=r"\bA100.*40GB$", capability=(8, 0), memory_gib=40.0,
        bytes_per_s=1.555e12, source="NVIDIA A100 Tensor Core GPU data sheet, 40 GB",
        flops_per_s={"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12, "float16": 312e12},
    ),
    Card(
        slug="nvidia-l4", title="L4", pattern=r"\bL4$", capability=(8, 9), memory_gib=24.0, bytes_per_s=300e9,
        source="NVIDIA L4 data sheet (halved where it quotes sparse rates)",
        flops_per_s={"float32": 30.3e12, "tf32": 60e12, "bfloat16": 121e12, "float16": 121e12},
    ),
    Card(
        slug="nvidia-rtx-4090", title="RTX 4090", pattern=r"\bRTX 4090$", capability=(8, 9), memory_gib=24.0,
        bytes_per_s=1008e9, source="NVIDIA Ada architecture paper, dense, float32 accumulation",
        flops_per_s={"float32": 82.6e12, "tf32": 82.6e12, "bfloat16": 165.2e12, "float16": 165.2e12},
    ),
    Card(
        slug="nvidia-rtx-3090", title="RTX 3090", pattern=r"\bRTX 3090$", capability=(8, 6), memory_gib=24.0,
        bytes_per_s=936e9, source="NVIDIA GA102 architecture paper, dense, float32 accumulation",
        flops_per_s={"float32": 35.6e12, "tf32": 35.6e12, "bfloat16": 71e12, "float16": 71e12},
    ),
    Card(
        slug="tesla-t4", title="T4", pattern=r"\bT4$", capability=(7, 5), memory_gib=16.0, bytes_per_s=320e9,
        source="NVIDIA T4 data sheet",
        flops_per_s={"float32": 8.1e12, "float16": 65e12},
    ),
)  # fmt: skip


def find_card(name: str) -> Card | None:
    """The card with this driver name ("NVIDIA H200", "Tesla T4"), or None: never a guess."""
    return next((card for card in CARDS if re.search(card.pattern, name.strip())), None)


def device_slug(name: str | None, gpus: int = 1) -> str:
    """Folder name of a device: "nvidia-h200", "nvidia-h200-x2", "cpu" (name None), or the driver's name made safe."""
    if name is None:
        return "cpu"
    card = find_card(name)
    slug = card.slug if card else re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return slug if gpus == 1 else f"{slug}-x{gpus}"
