"""The book as one EPUB file, from the pages that the last `speedlab book` staged; nothing is executed or measured.

    python -m speedlab.publishing.epub [OUT.epub]

Scripts have no place in it: a piece that can be touched shows its words and its table.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.parsers.expat
import zipfile
from pathlib import Path

from speedlab import __version__
from speedlab.errors import NotAvailable, SpeedLabError
from speedlab.publishing.checkout import checkout_root
from speedlab.records.store import write_text_atomic

NAME = "gpt2-speedlab.epub"
# Elements that hold nothing, closed or not.
EMPTY = re.compile(r"<(area|br|col|hr|img|input|link|meta|source|wbr)\b([^<>]*?)\s*/?>")


def build_epub(root: Path, out: Path | None = None) -> Path:
    """Build the EPUB of the checkout at `root` and return its path. out: `book/_build/gpt2-speedlab.epub` by default.

    `NotAvailable` where no pages are staged, `SpeedLabError` for a build with any warning.
    """
    book = root / "book"
    contents, build = book / "_generated" / "_toc.yml", book / "_build" / "for_epub"
    if not contents.is_file() or not (book / "chapters").is_dir():
        raise NotAvailable("no pages are staged: build the book first, by `speedlab book`")
    config = book / "_generated" / "_config.epub.yml"
    write_text_atomic(config, epub_config((book / "_config.yml").read_text(encoding="utf-8")))
    command = [
        sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(book), "--all",
        "--builder", "custom", "--custom-builder", "epub", "--warningiserror", "--keep-going",
        "--path-output", str(build), "--toc", str(contents), "--config", str(config),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )  # fmt: skip
    made = list((build / "_build").rglob("*.epub"))
    if done.returncode or len(made) != 1:
        words = [line for line in (done.stdout + done.stderr).splitlines() if "WARNING" in line or "rror" in line]
        raise SpeedLabError(f"the EPUB was not built: {words[0].strip() if words else f'status {done.returncode}'}")
    target = out or book / "_build" / NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    well_formed(made[0], target)
    shutil.rmtree(build)
    return target


def well_formed(source: Path, target: Path) -> None:
    """Copy an EPUB, its pages made XML: tabs and outputs of notebooks bring HTML whose empty elements stay open.

    `SpeedLabError` names a page that is none even so.
    """
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():  # the order and the first, stored entry are part of the format
            content = old.read(item)
            if item.filename.endswith(".xhtml"):
                content = EMPTY.sub(r"<\1\2 />", content.decode()).encode()
                try:
                    xml.parsers.expat.ParserCreate().Parse(content, True)
                except xml.parsers.expat.ExpatError as error:
                    raise SpeedLabError(f"{item.filename} of the EPUB is no XML: {error}") from error
            new.writestr(item, content)


def epub_config(text: str) -> str:
    """The book's `_config.yml` with what an EPUB needs besides: a version, and the project's name."""
    import yaml

    config = yaml.safe_load(text)
    config.setdefault("sphinx", {}).setdefault("config", {}).update(
        version=__version__, release=__version__, project=config["title"], epub_show_urls="no"
    )
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


if __name__ == "__main__":
    try:
        print(build_epub(checkout_root(), Path(sys.argv[1]) if len(sys.argv) > 1 else None))
    except SpeedLabError as error:
        sys.exit(f"speedlab: {error}")
