"""Finds the commit whose package is the one that measured, by the hash in a record. It reads git and writes nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from speedlab.errors import NotAvailable
from speedlab.records.store import hash_sources

PACKAGE = "src/speedlab"  # inside a checkout


def commits_of_sources(wanted: Iterable[str], root: Path) -> dict[str, str]:
    """{source_hash: commit} for those of `wanted` that any commit of the history of HEAD holds, the newest one first.

    `NotAvailable` where there is no git or only the end of the history, so that nothing could be found for certain.
    """
    wanted = set(wanted)
    if not (root / ".git").exists() or _git(root, "rev-parse", "--is-shallow-repository") != "false":
        raise NotAvailable(
            f"{root} has no git history to look the source hash up in: clone the repository in full (git fetch "
            "--unshallow)"
        )
    found: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    for commit in _git(root, "log", "--format=%H", "--", PACKAGE).split():
        if wanted <= set(found):
            break
        files = _python_files(root, commit)
        contents |= _read_blobs(root, sorted(set(files.values()) - set(contents)))
        digest = hash_sources((name, contents[blob]) for name, blob in files.items())
        if digest in wanted:
            found.setdefault(digest, commit)
    return found


def _python_files(root: Path, commit: str) -> dict[str, str]:
    """{name relative to the package: id of its contents} for the Python files of a commit."""
    files = {}
    for entry in _git(root, "ls-tree", "-r", "-z", commit, "--", PACKAGE).split("\0"):
        if entry.endswith(".py"):
            facts, path = entry.split("\t", 1)
            files[path.removeprefix(f"{PACKAGE}/")] = facts.split()[2]
    return files


def _read_blobs(root: Path, blobs: list[str]) -> dict[str, bytes]:
    """The contents of all of them by one call: `<id> blob <size>`, a line end, the bytes, a line end, for each."""
    if not blobs:
        return {}
    done = subprocess.run(
        ["git", "-C", str(root), "cat-file", "--batch"],
        input="\n".join(blobs).encode(),
        capture_output=True,
        check=True,
    )
    found, position = {}, 0
    for blob in blobs:
        end = done.stdout.index(b"\n", position)
        size = int(done.stdout[position:end].split()[2])
        found[blob] = done.stdout[end + 1 : end + 1 + size]
        position = end + 1 + size + 1
    return found


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotAvailable(f"git cannot be asked about the history of {root}: {error}") from error
    return done.stdout.strip()
