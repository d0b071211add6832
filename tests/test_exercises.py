"""The answers of the exercises, each worked out a second time in another way: by search, by torch, by counting."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from speedlab.publishing.exercises import EXERCISES, exercises_section
from speedlab.publishing.sources import find_chapters
from speedlab.records.published import load

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
ANSWERS = {exercise.chapter: exercise.answer() for exercise in EXERCISES}


def bold(chapter: str) -> list[str]:
    """What an answer says in bold: its results."""
    return re.findall(r"\*\*(.+?)\*\*", ANSWERS[chapter])


def test_every_chapter_has_one() -> None:
    assert [exercise.chapter for exercise in EXERCISES] == [*find_chapters(NOTEBOOKS), "method"]
    assert len({exercise.title for exercise in EXERCISES}) == len(EXERCISES)


def test_mask() -> None:
    context = next(n for n in range(1, 10_000) if n * n > 4 * 768 * 768 + 2 * 768 * 3072)
    assert bold("01_causal_mask") == [f"{context:,}"]


def test_tf32() -> None:
    """Rounding by integers: half of the last kept bit is added, the rest is cleared, a tie goes to the even one."""
    bits = (1 + torch.tensor([1.0, 3.0]) / 2048).view(torch.int32)
    even = (bits >> 13) & 1
    rounded = (bits + 0xFFF + even) & ~0x1FFF
    assert (rounded.view(torch.float32) - 1).mul(1024).tolist() == [0, 2]
    assert bold("02_tensor_cores") == ["1", "1 + 2/1,024", "2,048"]


def test_optimizer() -> None:
    weights = 163_009_536
    seconds = 7 * 4 * weights / 1555e9
    tokens = seconds * 156e12 / (6 * weights)
    assert bold("03_fused_adamw") == [f"{tokens:.0f} tokens"]


def test_batch() -> None:
    size = round(31.5e9 / 1000)
    images = size / torch.empty(3, 224, 224).nbytes
    assert bold("04_pinned_memory") == [f"{size // 8 / 1e6:.1f} million ids", f"{images:.0f} float32 images"]


def test_bfloat16() -> None:
    """The largest powers of two that torch's own rounding swallows."""

    def lost(sign: int) -> int:
        for power in range(1, 20):
            if torch.tensor(1 + sign * 2.0**-power).to(torch.bfloat16).item() == 1:
                return 2**power
        raise AssertionError("nothing was lost")

    assert bold("05_bfloat16") == [f"1/{lost(-1)}", f"1/{lost(1)}"]
    assert torch.tensor([1 - 0.0005, 1 + 0.0005]).to(torch.bfloat16).tolist() == [1, 1]


def test_gelu() -> None:
    sizes = [
        3 * 12 * torch.empty(8, 1024, 3072, dtype=d, device="meta").nbytes for d in (torch.float32, torch.bfloat16)
    ]
    assert bold("06_native_layers") == [f"{size / 1024**3:.2f} GiB" for size in sizes]


def test_tiles() -> None:
    def visited(context: int) -> float:
        n = context // 128
        return np.tri(n).sum() / n**2

    assert bold("07_flash_attention") == [f"{100 * visited(context):.2f}%" for context in (1024, 8192)]


def test_passes() -> None:
    tensor = torch.empty(8, 1024, 768, dtype=torch.bfloat16, device="meta").nbytes
    mask = torch.empty(8, 1024, 768, dtype=torch.bool, device="meta").nbytes
    separate = (2 * tensor + mask) + 3 * tensor + 2 * tensor
    saved = separate - (4 * tensor + mask)
    assert bold("08_torch_compile") == [f"{saved / 2**20:g} MiB"]
    assert f"{saved / separate:.0%} of the traffic" in ANSWERS["08_torch_compile"]
    assert f"save {24 * saved / 2**20:.0f} MiB" in ANSWERS["08_torch_compile"]


def test_vocabulary() -> None:
    vocabulary = next(n for n in range(50_257, 60_000) if n * 2 % 16 == 0)
    higher = torch.nn.functional.cross_entropy(torch.zeros(1, vocabulary, dtype=torch.float64), torch.tensor([0]))
    lower = torch.nn.functional.cross_entropy(torch.zeros(1, 50_257, dtype=torch.float64), torch.tensor([0]))
    assert bold("09_aligned_shapes") == [f"{vocabulary:,}", f"{(higher - lower).item():.6f}"]
    assert f"{vocabulary - 50_257} columns more" in ANSWERS["09_aligned_shapes"]
    assert f"{50_304 - vocabulary} fewer" in ANSWERS["09_aligned_shapes"]


def test_evaluation() -> None:
    rows = {row["rung"]: row["tokens_per_s"] for row in load()["ladder_a_a100"]}
    times = [32 * 1024 / rows["batch_size"], 4 * 32 * 1024 / rows["data_parallel"]]
    step, evaluation = np.linalg.solve([[1, 1 / 10], [1, 1 / 5]], times)
    assert bold("10_data_parallel") == [f"{evaluation:.2f} s", f"{step:.3f} s"]
    assert f"{evaluation / step:.1f} steps" in ANSWERS["10_data_parallel"]


def test_attention() -> None:
    """Three products for each one of the forward pass; the head included, look-ups not."""

    def share(context: int) -> float:
        dense = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 768 * 50_257
        attention = 12 * 2 * context * 768
        return attention / (dense + attention)

    assert bold("method") == [f"{share(context):.1%}" for context in (1024, 8192)]


def test_answers_are_folded_and_questions_are_not() -> None:
    section = exercises_section()
    open_parts = re.sub(r"^:::\{dropdown\}.*?^:::$", "", section, flags=re.MULTILINE | re.DOTALL)
    for exercise in EXERCISES:
        assert exercise.question in open_parts and exercise.answer() not in open_parts
        assert section.count(exercise.answer()) == 1


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.chapter)
def test_a_question_does_not_hold_its_answer(exercise) -> None:
    assert not [words for words in bold(exercise.chapter) if len(words) > 3 and words in exercise.question]
