"""Files that can be made again, kept between runs; each carries the sha256 of its bytes in its name.

One atomic rename therefore publishes the content together with its checksum, and a damaged or truncated file is
noticed when it is looked up. It knows nothing of what the files hold.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from speedlab.errors import BadInput


def cache_folder(cache_dir: Path | None = None) -> Path:
    """The cache folder, made if needed: `cache_dir`, else $SPEEDLAB_CACHE, $XDG_CACHE_HOME/speedlab, ~/.cache/speedlab.

    Raises BadInput where it cannot be made.
    """
    folder = Path(cache_dir) if cache_dir is not None else _default_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot("write to", folder, error) from error
    return folder


def find_verified(folder: Path, stem: str, suffix: str) -> Path | None:
    """A file that `write_verified` made under this stem and whose bytes are still whole, else None."""
    for path in sorted(folder.glob(f"{stem}-*{suffix}")):
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _cannot("read", path, error) from error
        if path.name == f"{stem}-{digest}{suffix}":
            return path
    return None


def write_verified(folder: Path, stem: str, suffix: str, write: Callable[[BinaryIO], object]) -> Path:
    """Let `write` fill a file and publish it as <stem>-<sha256><suffix>; until then nothing in the folder changes.

    Raises BadInput where the folder cannot be written or the disk is full.
    """
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{stem}-", suffix=".tmp")
        temporary = Path(name)
        with os.fdopen(descriptor, "w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        path = folder / f"{stem}-{digest}{suffix}"
        os.replace(temporary, path)
    except OSError as error:
        raise _cannot("write to", folder, error) from error
    finally:
        if temporary is not None:  # still there only if something went wrong, an interrupt included
            temporary.unlink(missing_ok=True)
    return path


def _default_folder() -> Path:
    if chosen := os.environ.get("SPEEDLAB_CACHE"):
        return Path(chosen)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "speedlab"
    try:
        return Path.home() / ".cache" / "speedlab"
    except RuntimeError as error:
        raise BadInput("this user has no home folder for the cache: set SPEEDLAB_CACHE to a folder") from error


def _cannot(what: str, path: Path, error: OSError) -> BadInput:
    return BadInput(
        f"cannot {what} the cache at {str(path)!r} ({error.strerror or error}): set SPEEDLAB_CACHE to another folder"
    )
