"""Token ids as a file of their own that any program can map into memory: uint16, little-endian, nothing else.

What they are ids of stands in a small JSON file beside it. It knows nothing of batches or torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

import numpy as np

from speedlab.data.tokens import TokenFile
from speedlab.errors import BadInput

SUFFIX = ".bin"
_TYPE = np.dtype("<u2")
_FIELDS = ("corpus_name", "corpus_sha256", "tokenizer_ranks", "num_tokens")


def write_token_file(path: Path, tokens: TokenFile) -> Path:
    """Write `path` and its description, whole or not at all; returns the path of the description."""
    from speedlab.records.store import write_text_atomic

    path = Path(path)
    check_name(path)
    facts = {
        "corpus_name": tokens.corpus_name, "corpus_sha256": tokens.corpus_sha256,
        "tokenizer_ranks": tokens.tokenizer_ranks, "num_tokens": tokens.num_tokens, "dtype": "uint16, little-endian",
    }  # fmt: skip
    description = _description(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            np.asarray(tokens.tokens, dtype=_TYPE).tofile(file)
            file.flush()
            os.fsync(file.fileno())
        # Only when the long part has found room: what stood here before keeps its own description until then.
        write_text_atomic(description, json.dumps(facts, indent=1) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        # NumPy counts what was taken and forgets why it was not all.
        reason = error.strerror or f"no room for all of it ({error})"
        raise BadInput(f"cannot write {path}: {reason}; choose another folder or make room") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    return description


def check_name(path: Path) -> None:
    """Raise `BadInput` unless `path` has a name that ends as token files do."""
    if path.suffix != SUFFIX:
        raise BadInput(f"cannot write tokens to {path}: the name must end in {SUFFIX}, as in book{SUFFIX}")


def read_token_file(path: Path) -> TokenFile:
    """The tokens of a file that `write_token_file` wrote, mapped and read-only; `BadInput` where the two disagree."""
    path = Path(path)
    try:
        facts = json.loads(_description(path).read_text(encoding="utf-8"))
        values = {name: facts[name] for name in _FIELDS}
        size = path.stat().st_size
    except OSError as error:
        raise BadInput(
            f"cannot read {error.filename}: {error.strerror}; make it with `speedlab tokenize TEXT --out {path.name}`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{_description(path)} does not describe tokens ({error}): tokenize again") from error
    count = values.pop("num_tokens")
    if size != count * _TYPE.itemsize or not count:
        raise BadInput(f"{path} has {size:,} bytes, its description says {count} tokens of 2 bytes: tokenize again")
    return TokenFile(tokens=np.memmap(path, dtype=_TYPE, mode="r"), **values)


def _description(path: Path) -> Path:
    return path.with_name(path.name + ".json")
