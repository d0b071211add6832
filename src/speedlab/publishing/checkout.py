"""Where the checkout is that some commands need beside the package; it opens none of its files."""

from __future__ import annotations

from pathlib import Path

from speedlab.errors import NotAvailable
from speedlab.records.store import REPOSITORY_ROOT
from speedlab.repository import REPOSITORY_URL


def checkout_root() -> Path:
    """The checkout that this package runs from, or the current folder where that is one.

    Raises `NotAvailable` for a package that was installed without its repository.
    """
    for folder in (REPOSITORY_ROOT, Path.cwd()):
        if (folder / "notebooks").is_dir() and (folder / "book" / "_config.yml").is_file():
            return folder
    raise NotAvailable(
        f"no notebooks/ and book/ beside this package: run the command in a checkout, git clone {REPOSITORY_URL}"
    )
