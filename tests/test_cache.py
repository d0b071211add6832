"""Cached files appear whole or not at all, and damage to one is noticed."""

import hashlib
from pathlib import Path

import pytest
from data_helper import one_line_error

from speedlab.data.cache import cache_folder, find_verified, write_verified
from speedlab.errors import BadInput


def test_a_written_file_is_found_under_the_sha256_of_its_content(tmp_path):
    path = write_verified(tmp_path, "text", ".txt", lambda file: file.write(b"content"))
    assert path == tmp_path / f"text-{hashlib.sha256(b'content').hexdigest()}.txt"
    assert path.read_bytes() == b"content"
    assert find_verified(tmp_path, "text", ".txt") == path
    assert find_verified(tmp_path, "other", ".txt") is None


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b""])
def test_a_damaged_file_is_not_found(tmp_path, damage):
    path = write_verified(tmp_path, "text", ".txt", lambda file: file.write(b"content"))
    path.write_bytes(damage(b"content"))
    assert find_verified(tmp_path, "text", ".txt") is None


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_write_leaves_the_folder_as_it_was(tmp_path, fault):
    kept = write_verified(tmp_path, "text", ".txt", lambda file: file.write(b"content"))

    def write(file):
        file.write(b"half of the new")
        raise fault

    with pytest.raises(fault):
        write_verified(tmp_path, "text", ".txt", write)
    assert list(tmp_path.iterdir()) == [kept]
    assert kept.read_bytes() == b"content"


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.delenv("SPEEDLAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "speedlab"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder() == tmp_path / "shared" / "speedlab"
    monkeypatch.setenv("SPEEDLAB_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    assert all((tmp_path / name).is_dir() for name in ("home", "shared", "chosen", "given"))


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    one_line_error(BadInput, lambda: cache_folder(tmp_path / "file" / "cache"), "file/cache", "SPEEDLAB_CACHE")


def test_a_full_disk_is_one_line(tmp_path):
    # A device that takes no byte, present on every Linux.
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")

    def write(file):
        with open("/dev/full", "wb") as full:
            full.write(b"content")

    one_line_error(BadInput, lambda: write_verified(tmp_path, "text", ".txt", write), "No space left", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
