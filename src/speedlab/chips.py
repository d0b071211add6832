"""What white papers say about the chips of four cards: multiprocessors, and the memories that lie on the chip.

Beside `cards`, which has rates and the card's own memory. Torch-free; nothing here is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from speedlab.cards import CARDS, Card

KIB = 2**10
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip: `l1_bytes` holds first-level cache and shared memory together; sizes in bytes, with the source."""

    slug: str  # of its card
    multiprocessors: int
    tensor_cores_per_multiprocessor: int
    register_bytes: int  # of one multiprocessor
    l1_bytes: int  # of one multiprocessor
    l2_bytes: int  # of the whole chip
    source: str

    @property
    def all_register_bytes(self) -> int:
        return self.multiprocessors * self.register_bytes

    @property
    def all_l1_bytes(self) -> int:
        return self.multiprocessors * self.l1_bytes

    @property
    def on_chip_bytes(self) -> int:
        """Registers, first-level and second-level memory together."""
        return self.all_register_bytes + self.all_l1_bytes + self.l2_bytes


TURING = "NVIDIA Turing GPU Architecture white paper"
AMPERE = "NVIDIA A100 Tensor Core GPU Architecture white paper"
HOPPER = "NVIDIA H100 Tensor Core GPU Architecture white paper"
# The H200 has the chip of the H100, with more and faster memory beside it.
_GH100 = dict(
    multiprocessors=132, tensor_cores_per_multiprocessor=4, register_bytes=256 * KIB, l1_bytes=256 * KIB,
    l2_bytes=50 * MIB,
)  # fmt: skip
CHIPS: dict[str, Chip] = {
    chip.slug: chip
    for chip in (
        Chip(
            slug="tesla-t4", multiprocessors=40, tensor_cores_per_multiprocessor=8, register_bytes=256 * KIB,
            l1_bytes=96 * KIB, l2_bytes=4 * MIB, source=TURING,
        ),
        Chip(
            slug="nvidia-a100-80gb", multiprocessors=108, tensor_cores_per_multiprocessor=4, register_bytes=256 * KIB,
            l1_bytes=192 * KIB, l2_bytes=40 * MIB, source=AMPERE,
        ),
        Chip(slug="nvidia-h100", source=HOPPER, **_GH100),
        Chip(slug="nvidia-h200", source=HOPPER, **_GH100),
    )
}  # fmt: skip


def cards_with_chips() -> list[tuple[Card, Chip]]:
    """Each card with its chip, the smallest first."""
    cards = {card.slug: card for card in CARDS}
    return [(cards[slug], chip) for slug, chip in CHIPS.items()]
