"""The reader checks: what they do where something is missing, and that each can fail; by Node, on a toy book."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent / "browser"
STARTER = FOLDER / "with_chromium.sh"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


def start(book: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["/bin/bash", str(STARTER), "check.mjs", str(book)], capture_output=True, text=True, timeout=60,
        env={**os.environ, **environment},
    )  # fmt: skip


def folder_with(tmp_path: Path, *programs: str) -> str:
    """A PATH on which only these programs, and what the script itself uses, are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("dirname", *programs):
        (folder / name).symlink_to(shutil.which(name) or "/bin/true")
    return str(folder)


@pytest.mark.parametrize(
    ("programs", "chromium", "words"),
    [((), "", "no Chromium"), ((), "/nowhere/chromium", "no Chromium"), (("chromium",), "", "no Node")],
)
def test_one_line_says_what_is_missing(tmp_path: Path, programs: tuple[str, ...], chromium: str, words: str) -> None:
    done = start(tmp_path, PATH=folder_with(tmp_path, *programs), CHROMIUM=chromium)
    assert done.returncode == 3
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert words in done.stderr and done.stderr.startswith("reader checks left out: ")


@needs_node
def test_without_a_book_nothing_is_installed(tmp_path: Path) -> None:
    done = start(tmp_path, CHROMIUM="/bin/true")
    assert (done.returncode, "make book" in done.stderr) == (3, True)


@needs_node
def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.html").touch()
    facts = [
        {"name": "a.html", "ids": ["top"], "links": [
            [f"http://x/{target}", target]
            for target in ("b.html", "b.html#here", "b.html#gone", "c.html", "a.html#top", "")
        ] + [["https://elsewhere/c.html", "c"]]},
        {"name": "b.html", "ids": ["here"], "links": []},
    ]  # fmt: skip
    (tmp_path / "a.html").touch()
    (tmp_path / "index.html").touch()
    program = (
        f"import {{ brokenLinks }} from {json.dumps(str(FOLDER / 'links.mjs'))};"
        f"console.log(JSON.stringify(brokenLinks({json.dumps(facts)}, 'http://x/', {json.dumps(str(tmp_path))})));"
    )
    done = subprocess.run(
        ["node", "--input-type=module", "-e", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert [found["where"] for found in json.loads(done.stdout)] == ["b.html#gone", "c.html"]


def test_every_known_finding_has_a_reason_and_versions_are_pinned() -> None:
    baseline = json.loads((FOLDER / "baseline.json").read_text(encoding="utf-8"))
    assert all(len(entry["reason"]) > 20 and entry["where"] for entry in baseline["known"])
    package = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
    locked = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for name, version in package["dependencies"].items():
        assert locked[f"node_modules/{name}"]["version"] == version
        assert "resolved" not in locked[f"node_modules/{name}"]  # from the registry that the machine uses
