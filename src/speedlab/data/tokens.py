"""A corpus as one row of token ids, made once and then mapped from the cache. It knows nothing of batches or torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speedlab.data.cache import cache_folder, find_verified, write_verified
from speedlab.data.corpus import Corpus
from speedlab.data.tokenizer import Tokenizer, split_text

# A list of Python integers needs 18 times the memory of the finished ids, so it never holds more than this much text.
_BATCH_CHARACTERS = 2_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenFile:
    """tokens: (num_tokens,) uint16, read-only, on disk until it is read. tokenizer_ranks: ids without end-of-text."""

    tokens: np.ndarray
    corpus_name: str
    corpus_sha256: str
    tokenizer_ranks: int

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


def tokenize(corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path | None = None) -> TokenFile:
    """Ids of all documents in order, one end-of-text between two of them.

    Kept in the cache folder (see `cache.cache_folder`) under the hash of the text and the size of the vocabulary; a
    cached file that is damaged is made again. Raises BadInput where the cache cannot be written.
    """
    folder = cache_folder(cache_dir)
    stem = f"tokens-{corpus.sha256}-{tokenizer.vocab_size}"
    path = find_verified(folder, stem, ".npy")
    if path is None:
        tokens = np.concatenate(list(_encode(corpus, tokenizer)))
        path = write_verified(folder, stem, ".npy", lambda file: np.save(file, tokens, allow_pickle=False))
    return TokenFile(
        tokens=np.load(path, mmap_mode="r", allow_pickle=False),
        corpus_name=corpus.name,
        corpus_sha256=corpus.sha256,
        tokenizer_ranks=tokenizer.ranks,
    )


def _encode(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The ids in parts of some megabytes."""
    for batch in _batches(_pieces(corpus)):
        # None stands for a border, which is no text: the ids around it are joined here.
        texts = [piece for piece in batch if piece is not None]
        encoded = iter(tokenizer.encode_pieces(texts, num_threads=min(8, os.cpu_count() or 1)))
        for piece in batch:
            ids = [tokenizer.end_of_text] if piece is None else next(encoded)
            yield np.array(ids, dtype=np.uint16)


def _pieces(corpus: Corpus) -> Iterator[str | None]:
    """The text in pieces that can be encoded apart, None between two documents."""
    for number, document in enumerate(corpus.documents):
        if number:
            yield None
        yield from split_text(document)


def _batches(pieces: Iterator[str | None]) -> Iterator[list[str | None]]:
    batch: list[str | None] = []
    num_characters = 0
    for piece in pieces:
        batch.append(piece)
        num_characters += len(piece or "")
        if num_characters >= _BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
