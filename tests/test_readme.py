"""README against the repository: its annotated tree, its commands, its links."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from speedlab import cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = typer.main.get_command(cli.app).commands
# Named in the tree as one line for the whole folder, or not worth a line each.
UNLISTED = ("__init__.py", "__main__.py")


def real_names(folder: Path) -> set[str]:
    """Names in a folder that git keeps or would keep, folders with a slash; hidden ones other than .ci left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "."],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    there = [name for name in listed if (folder / name).exists()]
    names = {name.split("/")[0] + ("/" if "/" in name else "") for name in there}
    return {name for name in names if not name.startswith(".") or name == ".ci/"} - set(UNLISTED)


def tree() -> dict[str, dict[str, str]]:
    """The annotated tree as {folder: {name: annotation}}; the top is "".

    Each line is indented under its folder, by blanks or box lines, and holds a name, two blanks or more, and the
    annotation. `a.py ... b.py` (or the one sign for three dots) stands for all files from a.py to b.py.
    """
    block = next(text for _, text in BLOCKS if "src/speedlab/" in text and "notebooks/" in text and "make " not in text)
    found: dict[str, dict[str, str]] = {"": {}}
    above: list[tuple[int, str]] = []
    for line in block.splitlines():
        match = re.fullmatch(r"([\s│├└─|`+-]*)(\S+(?: (?:…|\.\.\.) \S+)?)(?:\s{2,}#?\s*(.*))?", line)
        assert match, f"README's tree holds a line without a name: {line!r}"
        depth, name, words = len(match[1]), match[2], match[3] or ""
        while above and above[-1][0] >= depth:
            above.pop()
        folder = "".join(part for _, part in above)
        first, *last = re.split(r" (?:…|\.\.\.) ", name)
        names = [n for n in sorted(real_names(ROOT / folder)) if first <= n <= last[0]] if last else [name]
        found.setdefault(folder, {}).update(dict.fromkeys(names, words))
        if name.endswith("/"):
            above.append((depth, name))
    return found


def expanded() -> dict[str, dict[str, str]]:
    """The tree with `src/speedlab/` told as `src/` and `speedlab/`."""
    told: dict[str, dict[str, str]] = {}
    for folder, names in tree().items():
        for name, words in names.items():
            *parents, own = re.findall(r"[^/]+/?", name)
            told.setdefault(folder + "".join(parents), {})[own] = words
            for depth in range(len(parents)):
                told.setdefault(folder + "".join(parents[:depth]), {}).setdefault(parents[depth], words)
    return told


def test_the_tree_names_everything_at_the_top_and_in_the_package() -> None:
    told = expanded()
    assert {"", "src/", "src/speedlab/"} <= set(told)
    packages = [f"src/speedlab/{name}" for name in real_names(ROOT / "src" / "speedlab") if name.endswith("/")]
    whole = {"src/speedlab/data/"}  # its data file needs no line
    for folder in ("", "src/speedlab/", *packages):
        names = set(told.get(folder, {}))
        real = real_names(ROOT / folder)
        if folder in whole:
            real = {name for name in real if name.endswith(".py")} | (names & real)
        assert (folder, sorted(names)) == (folder, sorted(real))


def test_the_tree_names_nothing_that_is_not_there() -> None:
    missing = [
        folder + name for folder, names in expanded().items() for name in names if not (ROOT / folder / name).exists()
    ]
    assert missing == []


def test_every_name_in_the_tree_says_what_it_is_for() -> None:
    assert [folder + name for folder, names in expanded().items() for name, words in names.items() if not words] == []


def command_lines() -> list[list[str]]:
    """Every command line in code blocks and inline code that calls make or speedlab."""
    lines = [line for kind, text in BLOCKS if kind in ("bash", "sh", "console", "shell") for line in text.splitlines()]
    lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", README)
    found = []
    for line in lines:
        for part in re.split(r"&&|\|\||;|\|", line.removeprefix("$ ").split(" #")[0]):
            words = shlex.split(part)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if (
                len(words) >= 3
                and re.fullmatch(r"(.*/)?python3?(\.\d+)?", words[0])
                and words[1:3] == ["-m", "speedlab"]
            ):
                words = words[2:]
            if len(words) >= 2 and words[0] in ("make", "speedlab"):
                found.append(words)
    return found


def test_readme_shows_the_two_main_commands() -> None:
    assert ["make", "reproduce"] in command_lines() and ["make", "test"] in command_lines()


def test_every_make_target_in_readme_exists() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    used = [
        word for words in command_lines() if words[0] == "make" for word in words[1:] if not re.search(r"=|^-", word)
    ]
    assert used and set(used) <= set(phony)


def test_every_speedlab_command_and_flag_in_readme_exists() -> None:
    wrong = []
    for _, name, *rest in (words for words in command_lines() if words[0] == "speedlab"):
        if name in ("--help", "-h", "--version"):
            continue
        flags = {flag for option in COMMANDS[name].params for flag in option.opts} if name in COMMANDS else None
        wrong += [
            f"{name} {word}"
            for word in rest
            if flags is None or (word.startswith("-") and word.split("=")[0] not in flags)
        ]
        wrong += [name] if flags is None and not rest else []
    assert wrong == []


@pytest.mark.parametrize("target", ["reproduce", "test", "env", "quick", "book", "colab", "clean"])
def test_every_make_target_is_explained_by_make_help(target: str) -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert re.search(rf"^make {target}\s+\w+", shown, re.MULTILINE)


def test_every_relative_link_in_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#\s]+)", README) + re.findall(r'(?:src|href)="([^"#]+)"', README)
    assert [link for link in links if not re.match(r"https?:|mailto:", link) and not (ROOT / link).exists()] == []
