"""All claims by theme. A new claim is one more entry in the module of its theme, and nothing here changes."""

from __future__ import annotations

from speedlab.folklore import (
    attention,
    data,
    memory,
    optimizer_compile,
    precision,
    several_gpus,
    shapes,
    synthesis,
)
from speedlab.folklore.claim import Claim

THEMES: dict[str, tuple[Claim, ...]] = {
    "Precision and Tensor Cores": precision.CLAIMS,
    "Attention": attention.CLAIMS,
    "Optimizer, compiler, fusion": optimizer_compile.CLAIMS,
    "Shapes": shapes.CLAIMS,
    "Levers of memory": memory.CLAIMS,
    "Data": data.CLAIMS,
    "Several GPUs": several_gpus.CLAIMS,
    "All together": synthesis.CLAIMS,
}

CLAIMS: tuple[Claim, ...] = tuple(claim for claims in THEMES.values() for claim in claims)
