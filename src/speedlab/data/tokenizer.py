"""GPT-2's byte-pair encoding from the rank file in this package: no network, no fallback.

It knows nothing of corpora or of models.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import tiktoken

from speedlab.errors import BadInput

RANK_FILE = Path(__file__).with_name("r50k_base.tiktoken")
RANK_FILE_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"  # as tiktoken pins it
NUM_RANKS = 50_256
# The first 256 ranks are the single bytes; with them alone any text can be encoded and decoded without loss.
MIN_RANKS = 256
END_OF_TEXT = "<|endoftext|>"

# How GPT-2 splits text before merging. The possessive "++" changes no result, only the time on long runs.
_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# tiktoken dies of a stack overflow on a run of a million blanks; no piece that it gets is ever that long.
_PIECE_CHARACTERS = 500_000


class Tokenizer:
    """Text to ids and back. Ids are 0 … ranks - 1 for text and `ranks` for end-of-text."""

    def __init__(self, ranks_by_token: dict[bytes, int]) -> None:
        self.ranks = len(ranks_by_token)
        self._encoding = tiktoken.Encoding(
            f"gpt2-{self.ranks}",
            pat_str=_PATTERN,
            mergeable_ranks=ranks_by_token,
            special_tokens={END_OF_TEXT: self.ranks},
        )

    @property
    def vocab_size(self) -> int:
        """How many ids there are, end-of-text included."""
        return self.ranks + 1

    @property
    def end_of_text(self) -> int:
        """The id that stands between documents."""
        return self.ranks

    def encode(self, text: str) -> list[int]:
        """Ids of a text. "<|endoftext|>" inside it is plain text like any other."""
        return [i for piece in split_text(text) for i in self._encoding.encode_ordinary(piece)]

    def encode_pieces(self, pieces: Sequence[str], *, num_threads: int) -> list[list[int]]:
        """Ids of each piece (of `split_text`), several at a time."""
        return self._encoding.encode_ordinary_batch(list(pieces), num_threads=num_threads)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of these ids. Ids that no token has, such as those of a padded vocabulary, are left out."""
        return self._encoding.decode([int(i) for i in ids if 0 <= i < self.vocab_size])


@cache
def get_tokenizer(ranks: int | None = None, *, rank_file: Path = RANK_FILE) -> Tokenizer:
    """The tokenizer with the first `ranks` merges: None for GPT-2's 50,257 ids, 1000 for 1,001 ids.

    Fewer ranks give more tokens for the same text and lose nothing. Raises BadInput for an impossible number and for
    a rank file that is missing or damaged.
    """
    if ranks is not None and (type(ranks) is not int or not MIN_RANKS <= ranks <= NUM_RANKS):
        raise BadInput(
            f"ranks is {ranks!r}: choose a whole number from {MIN_RANKS} to {NUM_RANKS}, or leave it out for all"
        )
    return Tokenizer(dict(list(_read_ranks(rank_file).items())[:ranks]))


def split_text(text: str) -> Iterator[str]:
    """Pieces of at most 500,000 characters that join to the text and encode to the same ids as the whole.

    A piece ends before a line end that follows a visible character, where the pattern always splits. Only text that
    has no such place within half a million characters is cut elsewhere; it still decodes to itself.
    """
    start = 0
    while len(text) - start > _PIECE_CHARACTERS:
        limit = start + _PIECE_CHARACTERS
        stop = text.rfind("\n", start + 1, limit)
        while stop > start and text[stop - 1].isspace():
            stop = text.rfind("\n", start + 1, stop)
        stop = stop if stop > start else limit
        yield text[start:stop]
        start = stop
    yield text[start:]


def _read_ranks(rank_file: Path) -> dict[bytes, int]:
    """{token: rank} in order of rank."""
    what_to_do = "install the package again"
    try:
        content = rank_file.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read rank file {str(rank_file)!r} ({error.strerror or error}): {what_to_do}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != RANK_FILE_SHA256:
        raise BadInput(
            f"rank file {str(rank_file)!r} is damaged (its sha256 begins with {digest[:12]}, "
            f"not {RANK_FILE_SHA256[:12]}): {what_to_do}"
        )
    lines = (line.split() for line in content.splitlines())
    return {binascii.a2b_base64(token): int(rank) for token, rank in lines}
