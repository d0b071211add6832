"""Names that drivers report, against the cards they belong to: a card that is not known for sure has no entry."""

import pytest

from speedlab.cards import CARDS, device_slug, find_card

KNOWN = {
    "NVIDIA H200": "nvidia-h200",
    "NVIDIA H100 80GB HBM3": "nvidia-h100",
    "NVIDIA A100-SXM4-80GB": "nvidia-a100-80gb",
    "NVIDIA A100-SXM4-40GB": "nvidia-a100-40gb",
    "NVIDIA A100-PCIE-40GB": "nvidia-a100-40gb",
    "NVIDIA L4": "nvidia-l4",
    "NVIDIA GeForce RTX 4090": "nvidia-rtx-4090",
    "NVIDIA GeForce RTX 3090": "nvidia-rtx-3090",
    "Tesla T4": "tesla-t4",
    "NVIDIA T4": "tesla-t4",
}
# Relatives with other rates, and names that only look alike.
UNKNOWN = (
    "NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H20", "NVIDIA GH200 480GB", "NVIDIA L40S",
    "NVIDIA L40", "NVIDIA T4G", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti", "NVIDIA A10G", "NVIDIA B200", "Tesla V100-SXM2-16GB", "Foo", "",
)  # fmt: skip


@pytest.mark.parametrize(("name", "slug"), KNOWN.items())
def test_a_known_card_is_found_by_its_driver_name(name, slug):
    assert find_card(name).slug == device_slug(name) == slug


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_card_that_is_not_known_for_sure_is_not_guessed(name):
    assert find_card(name) is None


def test_the_rates_are_dense_and_ordered_as_the_units_are():
    for card in CARDS:
        rates = card.flops_per_s
        assert card.source and card.bytes_per_s > 1e11 and card.memory_gib >= 16
        assert set(rates) <= {"float32", "tf32", "bfloat16", "float16"}
        # Sparse rates are twice the dense ones, and no card here reaches 1,000 TFLOP/s in 16 bits without sparsity.
        assert max(rates.values()) < 1e15
        if card.capability >= (8, 0):
            assert rates["float32"] <= rates["tf32"] < rates["bfloat16"] == rates["float16"]
        else:
            assert "bfloat16" not in rates and "tf32" not in rates


def test_the_reference_cards_have_the_rates_of_their_data_sheets():
    h200, t4, a100 = find_card("NVIDIA H200"), find_card("Tesla T4"), find_card("NVIDIA A100-SXM4-40GB")
    assert h200.flops_per_s["bfloat16"] == pytest.approx(989e12, rel=1e-3) and h200.bytes_per_s == 4.8e12
    assert a100.flops_per_s == {"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12, "float16": 312e12}
    assert t4.flops_per_s == {"float32": 8.1e12, "float16": 65e12}


def test_slugs_name_folders():
    assert device_slug(None) == "cpu"
    assert device_slug("NVIDIA H200", gpus=2) == "nvidia-h200-x2"
    assert device_slug("NVIDIA GeForce RTX 4090 Laptop GPU") == "nvidia-geforce-rtx-4090-laptop-gpu"
    assert device_slug("Some/../Card (rev. 2)", gpus=4) == "some-card-rev-2-x4"
    assert len({card.slug for card in CARDS}) == len(CARDS)
