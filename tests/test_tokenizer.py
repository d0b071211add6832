"""The tokenizer against a byte-pair encoding written out here, and against ids that are known from GPT-2."""

import base64
import shutil
import socket
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from data_helper import one_line_error

from speedlab.data.tokenizer import RANK_FILE, get_tokenizer, split_text
from speedlab.errors import BadInput

# The pattern as published with GPT-2, in another engine than the one under test.
GPT2_PATTERN = regex.compile(r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")

TEXTS = [
    "", "Hello, I am", "don't we'll  they've", "  leading and trailing  ", "\n\n\tdef f(x):\n        return x**2\n\n",
    "naïve café ≠ 東京 🙂 \u00a0\u2003x", "\x00\x1c \x7f\ufeff", "1234567890 3.14e-10", "a" * 300, " " * 300 + "x",
    "<|endoftext|>", "\r\n \r\n", "日本語テキスト\nЖизнь даёт", "'S 'LL it's\u0301",
]  # fmt: skip


def slow_encode(text: str, ranks: dict[bytes, int]) -> list[int]:
    """Byte-pair encoding as it is defined: merge the pair of lowest rank, the first of several, until none is left."""
    ids = []
    for match in GPT2_PATTERN.finditer(text):
        parts = [bytes([byte]) for byte in match.group().encode()]
        while len(parts) > 1:
            pairs = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
            best = min(pairs)
            if best == len(ranks):
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.fixture(scope="module")
def all_ranks():
    lines = [line.split() for line in RANK_FILE.read_bytes().splitlines()]
    return {base64.b64decode(token): int(rank) for token, rank in lines}


@pytest.mark.parametrize("num_ranks", [None, 1000, 256])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_written_out_encoding(all_ranks, num_ranks, text):
    tokenizer = get_tokenizer(num_ranks)
    kept = {token: rank for token, rank in all_ranks.items() if num_ranks is None or rank < num_ranks}
    ids = tokenizer.encode(text)
    assert ids == slow_encode(text, kept)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < tokenizer.end_of_text for i in ids)


def test_known_ids_of_gpt2():
    tokenizer = get_tokenizer()
    assert tokenizer.vocab_size == 50_257
    assert tokenizer.end_of_text == 50_256
    assert tokenizer.encode("Hello, I am") == [15496, 11, 314, 716]
    assert tokenizer.encode("Every effort moves you") == [6109, 3626, 6100, 345]


def test_the_small_vocabulary():
    tokenizer = get_tokenizer(1000)
    assert (tokenizer.ranks, tokenizer.vocab_size, tokenizer.end_of_text) == (1000, 1001, 1000)
    assert tokenizer.decode([tokenizer.end_of_text]) == "<|endoftext|>"


@pytest.mark.parametrize("num_ranks", [None, 1000])
def test_ids_of_a_padded_vocabulary_decode_to_nothing(num_ranks):
    tokenizer = get_tokenizer(num_ranks)
    padded = range(tokenizer.vocab_size, tokenizer.vocab_size + 47)
    hello = tokenizer.encode("Hello")
    assert tokenizer.decode([*padded, *hello, *padded, -1]) == "Hello"
    assert tokenizer.decode(padded) == ""


def test_half_a_character_decodes_to_a_replacement():
    ids = get_tokenizer(256).encode("é")
    assert len(ids) == 2
    assert get_tokenizer(256).decode(ids[:1]) == "\ufffd"


@pytest.mark.parametrize("ranks", [0, 255, 50_257, -1, 1.5, True, "1000"])
def test_an_impossible_number_of_ranks_is_one_line(ranks):
    one_line_error(BadInput, lambda: get_tokenizer(ranks), repr(ranks), "256", "50256")


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b.replace(b"IQ== 0", b"IQ== 1", 1),
        lambda b: b"",
        lambda b: b + b"\n",
        lambda b: None,
    ],
)
def test_a_damaged_or_missing_rank_file_is_one_line(tmp_path, damage):
    path = tmp_path / "ranks.tiktoken"
    content = damage(RANK_FILE.read_bytes())
    if content is not None:
        assert content != RANK_FILE.read_bytes()
        path.write_bytes(content)
    one_line_error(BadInput, lambda: get_tokenizer(rank_file=path), "ranks.tiktoken", "install")


def test_no_network_and_no_cache_of_tiktoken_is_used(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise AssertionError("the tokenizer opened a socket")

    monkeypatch.setattr(socket, "socket", no_network)
    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    path = Path(shutil.copy(RANK_FILE, tmp_path / "a_copy_that_was_not_read_before"))
    assert get_tokenizer(rank_file=path).encode("Hello") == [15496]
    assert not (tmp_path / "cache").exists()


def test_a_long_text_has_the_same_ids_whole_and_in_pieces():
    import argparse

    tokenizer = get_tokenizer(1000)
    source = Path(argparse.__file__).read_text(encoding="utf-8")
    text = (source + "\n \n\u2003\n\x1c\n") * (1_200_000 // len(source) + 1)
    pieces = list(split_text(text))
    assert len(pieces) >= 3
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 500_000
    # The engine of tiktoken can still take this text at once.
    whole = tokenizer._encoding.encode_ordinary(text)
    assert [i for piece in pieces for i in tokenizer.encode(piece)] == whole
    assert tokenizer.encode(text) == whole


@pytest.mark.parametrize("text", ["\n" * 1_200_000 + "x", " \n" * 600_000, "a" * 1_100_000, "a\n" + "é" * 700_000])
def test_a_text_without_a_place_to_split_is_still_lossless(text):
    tokenizer = get_tokenizer(1000)
    assert "".join(split_text(text)) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text
