"""A corpus as one row of ids: what is in it, and a cache that is never trusted without a check."""

import os
import tempfile

import numpy as np
import pytest
from data_helper import as_ordinary_user, one_line_error

from speedlab.data import tokens as tokens_module
from speedlab.data.corpus import Corpus, load_corpus
from speedlab.data.tokenizer import get_tokenizer
from speedlab.data.tokens import tokenize
from speedlab.errors import BadInput

CORPUS = Corpus.from_documents("three", ["First document.\n", "Second <|endoftext|> one", "Ende \u2026 äöü"])


@pytest.fixture
def count_encodings(monkeypatch):
    """How often text was encoded, so that a test can tell the cache from new work."""
    calls = []
    encode = tokens_module._encode
    monkeypatch.setattr(tokens_module, "_encode", lambda *args: calls.append(args) or encode(*args))
    return calls


@pytest.mark.parametrize("ranks", [None, 1000])
def test_documents_in_order_with_one_end_of_text_between_two(tmp_path, ranks):
    tokenizer = get_tokenizer(ranks)
    file = tokenize(CORPUS, tokenizer, tmp_path)
    expected = []
    for number, document in enumerate(CORPUS.documents):
        expected += ([tokenizer.end_of_text] if number else []) + tokenizer.encode(document)
    assert file.tokens.tolist() == expected
    assert expected.count(tokenizer.end_of_text) == 2
    assert file.tokens.dtype == np.uint16
    assert file.num_tokens == len(expected)
    assert (file.corpus_name, file.corpus_sha256) == ("three", CORPUS.sha256)
    assert file.tokenizer_ranks == tokenizer.ranks


def test_many_and_large_documents_are_joined_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "_BATCH_CHARACTERS", 1_000)
    tokenizer = get_tokenizer(256)  # one id a byte, so that the ids are the text
    documents = [f"document {number}\n" * (number % 7 * 30 + 1) for number in range(23)]
    assert sum(map(len, documents)) > 10 * tokens_module._BATCH_CHARACTERS
    file = tokenize(Corpus.from_documents("many", documents), tokenizer, tmp_path)
    assert tokenizer.decode(file.tokens.tolist()).split("<|endoftext|>") == documents


def test_the_cache_is_used_and_mapped_read_only(tmp_path, count_encodings):
    first = tokenize(CORPUS, get_tokenizer(1000), tmp_path)
    second = tokenize(CORPUS, get_tokenizer(1000), tmp_path)
    assert len(count_encodings) == 1
    assert isinstance(second.tokens, np.memmap)
    assert not second.tokens.flags.writeable
    assert first.tokens.tolist() == second.tokens.tolist()


def test_another_text_or_vocabulary_is_another_file(tmp_path, count_encodings):
    other = Corpus.from_documents("three", ["Another text."])
    for corpus, ranks in ((CORPUS, 1000), (CORPUS, 1001), (other, 1000)):
        tokenize(corpus, get_tokenizer(ranks), tmp_path)
    assert len(count_encodings) == 3
    assert len(list(tmp_path.iterdir())) == 3


def test_a_renamed_corpus_shares_the_cached_ids_but_keeps_its_name(tmp_path, count_encodings):
    tokenize(CORPUS, get_tokenizer(1000), tmp_path)
    renamed = Corpus.from_documents("renamed", CORPUS.documents)
    assert tokenize(renamed, get_tokenizer(1000), tmp_path).corpus_name == "renamed"
    assert len(count_encodings) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-2], lambda b: b[:20], lambda b: b"", lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b"\x80\x04."],
)
def test_a_damaged_cache_is_noticed_and_made_again(tmp_path, damage, count_encodings):
    expected = tokenize(CORPUS, get_tokenizer(1000), tmp_path).tokens.tolist()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert tokenize(CORPUS, get_tokenizer(1000), tmp_path).tokens.tolist() == expected
    assert len(count_encodings) == 2
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        with as_ordinary_user():
            one_line_error(
                BadInput,
                lambda: tokenize(CORPUS, get_tokenizer(1000), name),
                name, "Permission denied", "SPEEDLAB_CACHE",
            )  # fmt: skip
        os.chmod(name, 0o755)
        assert os.listdir(name) == []


def test_the_whole_standard_library(tmp_path):
    corpus = load_corpus("standard-library")
    tokenizer = get_tokenizer()
    file = tokenize(corpus, tokenizer, tmp_path)
    assert 3_000_000 < file.num_tokens < 12_000_000
    borders = np.flatnonzero(file.tokens == tokenizer.end_of_text)
    assert len(borders) == len(corpus.documents) - 1
    assert tokenizer.decode(file.tokens[: borders[0]].tolist()) == corpus.documents[0]
    assert tokenizer.decode(file.tokens[borders[-1] + 1 :].tolist()) == corpus.documents[-1]
