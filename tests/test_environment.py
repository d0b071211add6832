"""The files that say what is installed agree with each other: read as data and compared."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {name: [Requirement(text) for text in texts] for name, texts in PROJECT["optional-dependencies"].items()}
INSTALLED_EXTRAS = ("notebooks", "book", "dev")


def constraints() -> dict[str, Version]:
    """Every pin of constraints.txt; a line that is anything but `name==version` fails the test that asks."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line)
            assert match, f"constraints.txt: {line!r} is not name==version"
            name = canonicalize_name(match[1])
            assert name not in pins, f"constraints.txt pins {name} twice"
            pins[name] = Version(match[2])
    return pins


def conda() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


@pytest.mark.parametrize("group", ["core", *INSTALLED_EXTRAS])
def test_every_direct_requirement_is_pinned_inside_its_range(group: str) -> None:
    pins = constraints()
    wrong = [
        f"{requirement} (pinned: {pins.get(canonicalize_name(requirement.name))})"
        for requirement in (CORE if group == "core" else EXTRAS[group])
        if canonicalize_name(requirement.name) not in pins
        or not requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    ]
    assert wrong == []


def test_what_the_pinned_packages_need_is_pinned_too() -> None:
    """Otherwise two installations a month apart differ. Followed through the metadata of what is installed here."""
    pins = constraints()
    wanted = [requirement for group in (CORE, *(EXTRAS[name] for name in INSTALLED_EXTRAS)) for requirement in group]
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        wanted += [Requirement(text) for text in importlib.metadata.requires(name) or []]
    # torch's CUDA build brings its own libraries, each pinned by torch itself.
    unpinned = [n for n in seen if n not in pins and not re.match(r"nvidia-|cuda-|triton$", n)]
    assert sorted(unpinned) == [] and len(seen) > 60


def test_torch_is_pinned_to_the_version_that_was_tested() -> None:
    assert constraints()["torch"] == Version("2.13.0")


@pytest.mark.parametrize("name", ["torch", "numpy", "matplotlib"])
def test_what_colab_brings_has_lower_bounds_only(name: str) -> None:
    """An upper bound or a pin would replace what Colab has loaded, and break the session."""
    requirement = next(r for r in CORE if r.name == name)
    assert [specifier.operator for specifier in requirement.specifier] == [">="]


def test_the_book_tools_are_no_part_of_the_core() -> None:
    heavy = {"jupyter-book", "sphinx", "sphinx-book-theme", "papermill", "jupytext", "pytest", "ipykernel"}
    assert heavy.isdisjoint({requirement.name for requirement in CORE})


def test_conda_installs_what_make_installs() -> None:
    dependencies = conda()["dependencies"]
    pip = next(item["pip"] for item in dependencies if isinstance(item, dict))
    extras = re.search(r"^EXTRAS := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert pip == ["-c constraints.txt", f"-e .[{extras}]"]
    assert tuple(extras.split(",")) == INSTALLED_EXTRAS
    assert f"python{PROJECT['requires-python']}" in dependencies and "pip" in dependencies


def test_jupyter_book_is_version_1_everywhere() -> None:
    """Version 2 is another engine, which ignores the configuration and downloads its theme while it builds."""
    requirement = next(r for r in EXTRAS["book"] if r.name == "jupyter-book")
    assert requirement.specifier.contains("1.0.4.post1") and not requirement.specifier.contains("2.0")
    assert constraints()["jupyter-book"].major == 1
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\n")
    texts = [
        ROOT / name for name in tracked if name.endswith((".md", ".py", ".yml", ".toml", ".ipynb", "Makefile", "run"))
    ]
    assert len(texts) > 20
    install = re.compile(r"pip3? install[^\n]*jupyter-book(?![^\n]*<\s*2)")
    assert [str(p) for p in texts if p != Path(__file__) and p.is_file() and install.search(p.read_text())] == []


def test_the_licence_is_the_one_that_the_project_names() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "MIT" and text.startswith("MIT License") and "GPT-2 Speed Lab authors" in text
