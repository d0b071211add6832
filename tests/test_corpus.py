"""Corpora by name and by path: what is read, in which order, and one line for everything that cannot be."""

import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from data_helper import as_ordinary_user, one_line_error, send, web_server

from speedlab.data.corpus import CORPUS_NAMES, Corpus, load_corpus
from speedlab.errors import BadInput, NotAvailable


@pytest.fixture
def open_folder():
    """A folder that any user can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def library():
    return load_corpus("standard-library")


def test_the_default_corpus_is_this_pythons_library(library):
    import argparse
    import json.decoder

    assert library.name == "standard-library"
    assert platform.python_version() in library.note
    for module in (argparse, json.decoder):
        assert library.documents.count(Path(module.__file__).read_text(encoding="utf-8")) == 1
    # Large enough that the longest ladder never begins a second epoch.
    assert 8_000_000 < sum(map(len, library.documents)) < 40_000_000


def test_the_default_corpus_has_no_tests_no_packages_and_no_settings_of_this_machine(library):
    import asyncio
    import unittest.case

    import numpy

    assert Path(numpy.__file__).read_text(encoding="utf-8") not in library.documents
    assert Path(unittest.case.__file__).read_text(encoding="utf-8") in library.documents  # not a test itself
    assert Path(asyncio.__file__).read_text(encoding="utf-8") in library.documents
    assert not any("class TestCase(unittest.TestCase)" in document for document in library.documents)
    built_here = importlib.util.find_spec(sysconfig._get_sysconfigdata_name()).origin
    assert Path(built_here).read_text(encoding="utf-8") not in library.documents


def test_the_same_text_is_read_every_time(library):
    again = load_corpus("standard-library")
    assert again == library


def test_a_limit_gives_whole_documents_from_the_front(library):
    part = load_corpus("standard-library", max_bytes=400_000)
    sizes = [len(document.encode()) for document in part.documents]
    assert sum(sizes[:-1]) < 400_000 <= sum(sizes)
    assert part.documents == library.documents[: len(sizes)]
    assert part.sha256 != library.sha256
    assert len(load_corpus("standard-library", max_bytes=1).documents) == 1


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, True, "400"])
def test_an_impossible_limit_is_one_line(max_bytes):
    one_line_error(BadInput, lambda: load_corpus("standard-library", max_bytes=max_bytes), "max_bytes", repr(max_bytes))


def test_a_file(tmp_path):
    path = tmp_path / "novel.dat"
    path.write_bytes("Ein schöner Tag.\nEnde\n".encode())
    corpus = load_corpus(str(path), max_bytes=3)
    assert corpus.documents == ("Ein schöner Tag.\nEnde\n",)
    assert corpus.name == "file:novel.dat"
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_corpus(path) == corpus


def test_line_ends_and_a_byte_order_mark_make_no_difference(tmp_path):
    for name, content in (("unix", b"one\ntwo\n"), ("windows", b"\xef\xbb\xbfone\r\ntwo\r\n"), ("mac", b"one\rtwo\r")):
        (tmp_path / name).write_bytes(content)
    assert {load_corpus(tmp_path / name).sha256 for name in ("unix", "windows", "mac")} == {
        hashlib.sha256(b"one\ntwo\n").hexdigest()
    }


def test_a_folder_is_read_in_order_of_the_names(tmp_path):
    folder = tmp_path / "texts"
    for name, content in {
        "b.txt": "second", "a/z.md": "first", "c.TXT": "third", "blank.txt": " \n", "picture.png": "no text",
        ".hidden/d.txt": "no", ".e.txt": "no", "__pycache__/f.py": "no",
    }.items():  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "picture.png").write_bytes(b"\x00\x01")
    corpus = load_corpus(folder)
    assert corpus.documents == ("first", "second", "third")
    assert corpus.name == "folder:texts"
    assert load_corpus(folder, max_bytes=5).documents == ("first",)
    assert load_corpus(folder, max_bytes=6).documents == ("first", "second")


def test_the_hash_tells_where_documents_end():
    digests = {
        Corpus.from_documents("x", documents).sha256
        for documents in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["a", "b", "c"])
    }
    assert len(digests) == 5


def test_a_name_in_a_record_is_text_without_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here.txt").write_text("text")
    assert load_corpus(".").name == f"folder:{tmp_path.name}"
    odd = os.path.join(os.fsencode(tmp_path), b"odd\xff.txt")
    with open(odd, "w") as file:
        file.write("text")
    assert load_corpus(os.fsdecode(odd)).name.encode() == rb"file:odd\udcff.txt"


@pytest.mark.parametrize("name", ["shakespear", "", " ", "nul\0inside", "no/such\nfile", "~nobody-of-this-name/x"])
def test_a_missing_corpus_is_one_line_with_the_names(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one_line_error(BadInput, lambda: load_corpus(name), repr(name), *CORPUS_NAMES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty"), (b" \n\t", "empty"), (b"ELF\0\1", "NUL"), (b"caf\xe9", "byte 3"), ("a".encode("utf-16"), "NUL")],
)
def test_an_unusable_file_is_one_line(tmp_path, content, reason):
    path = tmp_path / "input.txt"
    path.write_bytes(content)
    one_line_error(BadInput, lambda: load_corpus(path), "input.txt", reason)
    if content.strip():  # blank files are left out of a folder, others are not passed over in silence
        one_line_error(BadInput, lambda: load_corpus(tmp_path), "input.txt", reason)
    else:
        one_line_error(BadInput, lambda: load_corpus(tmp_path), str(tmp_path), "holds no text", ".txt")


def test_a_folder_without_text_is_one_line(tmp_path):
    (tmp_path / "image.png").write_bytes(b"\0")
    one_line_error(BadInput, lambda: load_corpus(tmp_path), str(tmp_path), "holds no text", ".txt")


def test_what_is_no_file_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    one_line_error(BadInput, lambda: load_corpus(tmp_path / "pipe.txt"), "pipe.txt", "neither a file nor a folder")
    one_line_error(BadInput, lambda: load_corpus(tmp_path), "pipe.txt", "neither a file nor a folder")
    one_line_error(BadInput, lambda: load_corpus("/dev/zero"), "/dev/zero", "neither a file nor a folder")


def test_a_link_to_nowhere_is_one_line(tmp_path):
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    one_line_error(BadInput, lambda: load_corpus(tmp_path), "gone.txt")


def test_a_link_in_a_circle_ends(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert load_corpus(tmp_path).documents == ("text",)


def test_no_permission_is_one_line(open_folder):
    (open_folder / "secret.txt").write_text("text")
    (open_folder / "secret.txt").chmod(0)
    (open_folder / "closed").mkdir()
    (open_folder / "closed" / "inside.txt").write_text("text")
    (open_folder / "closed").chmod(0)
    (open_folder / "half").mkdir()
    (open_folder / "half" / "closed").mkdir(mode=0)
    (open_folder / "half" / "a.txt").write_text("text")
    try:
        with as_ordinary_user():
            for name in ("secret.txt", "closed", "closed/inside.txt", "half"):
                one_line_error(BadInput, lambda name=name: load_corpus(open_folder / name), name, "Permission denied")
    finally:
        for name in ("closed", "half/closed"):
            (open_folder / name).chmod(0o755)


def test_middlemarch_is_read_from_its_address_and_says_that_its_hash_is_not_pinned(tmp_path):
    body = "Miss Brooke had that kind of beauty.\r\n" * 45_000
    text = (
        "\ufeffThe Project Gutenberg eBook of Middlemarch\r\n"
        "*** START OF THE PROJECT GUTENBERG EBOOK MIDDLEMARCH ***\r\n"
        f"{body}*** END OF THE PROJECT GUTENBERG EBOOK MIDDLEMARCH ***\r\n"
    )
    with web_server(lambda handler: send(handler, text.encode())) as (open_url, asked):
        corpus = load_corpus("middlemarch", cache_dir=tmp_path, open_url=open_url)
    assert asked == ["/cache/epub/145/pg145.txt"]
    assert corpus.name == "middlemarch"
    assert corpus.documents == (text.removeprefix("\ufeff").replace("\r\n", "\n"),)
    assert "without a pinned sha256" in corpus.note
    # From now on no network is needed.
    with web_server(lambda handler: handler.send_error(500)) as (open_url, asked):
        assert load_corpus("middlemarch", cache_dir=tmp_path, open_url=open_url) == corpus
    assert asked == []


@pytest.mark.parametrize("name", ["middlemarch", "shakespeare"])
def test_another_text_at_the_address_is_refused(tmp_path, name):
    page = b"<html>Please log in to this network.</html>"
    with web_server(lambda handler: send(handler, page)) as (open_url, _):
        one_line_error(BadInput, lambda: load_corpus(name, cache_dir=tmp_path, open_url=open_url), repr(name))
    assert list(tmp_path.iterdir()) == []


def test_a_named_download_without_a_network_is_one_line(tmp_path):
    with web_server(lambda handler: None) as (open_url, _):
        pass
    one_line_error(
        NotAvailable,
        lambda: load_corpus("shakespeare", cache_dir=tmp_path, open_url=open_url),
        "'shakespeare'", "https://", "standard-library",
    )  # fmt: skip


def test_only_the_stream_needs_torch():
    code = (
        "import sys, speedlab.data.corpus, speedlab.data.tokenizer, speedlab.data.tokens; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
