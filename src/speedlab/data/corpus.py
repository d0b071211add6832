"""The texts that models are trained on, by name or by path. It knows nothing of tokens."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speedlab.data.download import Source, fetch, open_https
from speedlab.errors import BadInput

STANDARD_LIBRARY = "standard-library"

SOURCES = {
    source.name: source
    for source in (
        # The novel that the published program trains on. Project Gutenberg revises its files in place and gives no
        # checksum that would last, so none is pinned: the corpus carries a note instead, and its hash is recorded.
        Source(
            name="middlemarch",
            url="https://www.gutenberg.org/cache/epub/145/pg145.txt",
            sha256=None,
            min_bytes=1_500_000,
            max_bytes=2_500_000,
            must_contain=("Project Gutenberg", "Middlemarch", "*** START OF TH", "*** END OF TH"),
        ),
        Source(
            name="shakespeare",
            url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            sha256="86c4e6aa9db7c042ec79f339dcb29d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            min_bytes=1_115_394,
            max_bytes=1_115_394,
        ),
    )
}
CORPUS_NAMES = (STANDARD_LIBRARY, *SOURCES)

# What counts as text in a folder; a file that is named on its own may have any ending.
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py")

_TEST_FOLDERS = {"test", "tests", "idle_test"}
_FOREIGN_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}
# UTF-8 never contains this byte, so no text can imitate the border between two documents.
_SEPARATOR = b"\xff"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Whole documents in a fixed order, none of them empty.

    name: for records, never a path. sha256: over the documents as UTF-8 in order, borders included; for one document
    it is the sha256 of the text itself. note: what a reader of a record should know about the origin, may be empty.
    """

    name: str
    documents: tuple[str, ...]
    sha256: str
    note: str = ""

    @classmethod
    def from_documents(cls, name: str, documents: Iterable[str], note: str = "") -> Corpus:
        """Raises BadInput where there is no document."""
        documents = tuple(documents)
        if not documents:
            raise BadInput(f"corpus {name!r} is empty: give at least one document")
        digest = hashlib.sha256()
        for number, document in enumerate(documents):
            if number:
                digest.update(_SEPARATOR)
            digest.update(document.encode())
        return cls(name=name, documents=documents, sha256=digest.hexdigest(), note=note)


def load_corpus(
    name_or_path: str | Path,
    *,
    max_bytes: int | None = None,
    cache_dir: Path | None = None,
    open_url: Callable[[str], Any] = open_https,
) -> Corpus:
    """The corpus of this name (see CORPUS_NAMES), or the text of this file or folder.

    Names come first; write ./shakespeare for a file called so. With `max_bytes`, documents are added until that many
    bytes of UTF-8 are reached: always whole documents and at least one, so a corpus of one file is read in full.
    A byte order mark is dropped and line ends become "\\n", as in Python's text mode. `cache_dir` and `open_url` are
    for the sources that are downloaded.

    Raises BadInput for a corpus that is missing, empty, binary or unreadable; NotAvailable where a download fails.
    """
    if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
        raise BadInput(f"max_bytes is {max_bytes!r}: it must be a whole number of at least 1, or None for everything")
    if name_or_path == STANDARD_LIBRARY:
        return _standard_library(max_bytes)
    if name_or_path in SOURCES:
        source = SOURCES[str(name_or_path)]
        text = _read_text(fetch(source, cache_dir=cache_dir, open_url=open_url))
        note = "" if source.sha256 else "downloaded text without a pinned sha256: its publisher revises it in place"
        return Corpus.from_documents(source.name, [text], note)
    return _from_path(name_or_path, max_bytes)


def _standard_library(max_bytes: int | None) -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))

    def is_library(relative: Path) -> bool:
        # Files that the build of this Python wrote hold its paths and differ from machine to machine.
        built_here = any(part.startswith(("config-", "_sysconfigdata")) for part in relative.parts)
        return not built_here and not (_TEST_FOLDERS | _FOREIGN_FOLDERS) & set(relative.parts)

    documents = _read_folder(root, (".py",), is_library, max_bytes)
    if not documents:
        raise BadInput(f"this Python has no library sources in {str(root)!r}: give a text file or folder as the corpus")
    return Corpus.from_documents(STANDARD_LIBRARY, documents, f"sources of Python {platform.python_version()}")


def _from_path(name_or_path: str | Path, max_bytes: int | None) -> Corpus:
    path = Path(os.path.expanduser(name_or_path))
    try:
        if not str(name_or_path).strip():
            raise FileNotFoundError
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a NUL in the path
        raise BadInput(
            f"unknown corpus {str(name_or_path)!r}: it is neither a name ({', '.join(CORPUS_NAMES)}) "
            "nor a file or folder that exists"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    # Without undecodable bytes, so that the name can go into a record.
    base = path.resolve().name.encode(errors="backslashreplace").decode()
    if stat.S_ISDIR(mode):
        documents = _read_folder(path, TEXT_SUFFIXES, _is_visible, max_bytes)
        if not documents:
            raise BadInput(
                f"corpus folder {str(path)!r} holds no text: put files that end in {', '.join(TEXT_SUFFIXES)} there"
            )
        return Corpus.from_documents(f"folder:{base}", documents)
    text = _read_text(path)
    if not text.strip():
        raise BadInput(f"corpus file {str(path)!r} is empty: give a file with text")
    return Corpus.from_documents(f"file:{base}", [text])


def _is_visible(relative: Path) -> bool:
    return not any(part.startswith(".") or part in _FOREIGN_FOLDERS for part in relative.parts)


def _read_folder(
    root: Path, suffixes: tuple[str, ...], keep: Callable[[Path], bool], max_bytes: int | None
) -> list[str]:
    """Texts below `root`, sorted by relative path, those without a visible character left out."""

    def refuse(error: OSError) -> None:  # os.walk would leave an unreadable folder out without a word
        raise _unreadable(Path(error.filename or root), error) from error

    found: list[Path] = []
    for folder, subfolders, files in os.walk(root, onerror=refuse):
        here = Path(folder).relative_to(root)
        subfolders[:] = [name for name in subfolders if keep(here / name)]
        found += [here / name for name in files if name.lower().endswith(suffixes) and keep(here / name)]

    documents: list[str] = []
    num_bytes = 0
    for relative in sorted(found, key=lambda path: path.as_posix()):
        text = _read_text(root / relative)
        if not text.strip():
            continue
        documents.append(text)
        num_bytes += len(text.encode())
        if max_bytes is not None and num_bytes >= max_bytes:
            break
    return documents


def _read_text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to read from a pipe would wait for ever
            raise BadInput(f"corpus {str(path)!r} is neither a file nor a folder: give one of these")
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    if (position := content.find(0)) >= 0:
        raise BadInput(f"corpus file {str(path)!r} is binary (byte {position} is NUL): give UTF-8 text")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"corpus file {str(path)!r} is not UTF-8 text (byte {error.start}): convert it first") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unreadable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"cannot read corpus {str(path)!r} ({error.strerror or error}): give a file or folder you may read")
