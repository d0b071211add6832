"""A reader of a mapped token file holds no more than its batches, however large the file is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from speedlab.data.stream import BatchStream
from speedlab.data.token_file import read_token_file

MIB = 2**20
FILE_BYTES = 400 * MIB
STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="only Linux says how much memory is private")


def private_bytes() -> int:
    """Memory of this process that no file stands behind. Pages of a mapped file are none of it: they can go."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with holes: hundreds of MiB of zeros that take no room on the disk, and one id at the very end."""
    path = tmp_path_factory.mktemp("tokens") / "large.bin"
    with open(path, "wb") as file:
        file.seek(FILE_BYTES - 2)
        file.write(b"\x07\x00")
    facts = {"corpus_name": "holes", "corpus_sha256": "0" * 64, "tokenizer_ranks": 1000, "num_tokens": FILE_BYTES // 2}
    path.with_name("large.bin.json").write_text(json.dumps(facts))
    return path


def growth(tokens: Callable[[], np.ndarray]) -> int:
    """How much private memory a reader takes over batches from all over the file."""
    before = private_bytes()
    stream = BatchStream(
        tokens(), micro_batch=8, context_length=1023, host_memory="pageable", device="cpu", seed=1
    )  # fmt: skip
    most = 0
    for _ in range(200):
        inputs, _ = next(stream)
        most = max(most, private_bytes() - before)
    assert inputs.shape == (8, 1023)
    return most


def test_reading_at_random_takes_no_more_memory_than_batches_and_their_order(token_file: Path) -> None:
    tokens = read_token_file(token_file).tokens
    assert len(tokens) == FILE_BYTES // 2 and tokens[-1] == 7
    torch.zeros(1)  # PyTorch is there before anything is counted
    growth(lambda: tokens[: 4 * MIB])
    assert growth(lambda: tokens) < 40 * MIB


def test_a_reader_that_copies_the_file_would_be_seen(token_file: Path) -> None:
    assert growth(lambda: np.array(read_token_file(token_file).tokens)) > FILE_BYTES - 40 * MIB
