"""The first cell of a Colab notebook in an environment like Colab's: another torch, a newer numpy, no tiktoken.

The environment claims those by distributions that hold a name, a version and an empty module: enough for pip, which
is then asked for real, without the network.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import speedlab
from speedlab.notebook import own_run_folder
from speedlab.publishing.colab import INSTALL_CELL, KEPT, NEEDED, RUNTIME_CELL

ROOT = Path(__file__).resolve().parents[1]
COLAB = {"torch": "2.99.0+cu130", "numpy": "3.1.4", "matplotlib": "4.0.1", "typer": "0.99", "rich": "99.0"}
MISSING = {"tiktoken": "0.99.0", "nvidia-ml-py": "99.580.1"}


def wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> Path:
    """A wheel that holds one empty module."""
    module = next((module for module, package in NEEDED.items() if package == name), name)
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = "".join(f"Requires-Dist: {need}\n" for need in requires)
    files = {
        f"{module}.py": "",
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()]
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_, text in (files | {record: "\n".join([*lines, f"{record},,"])}).items():
            archive.writestr(name_, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def colab(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The Python of an environment like Colab's, and the variables in which its pip finds wheels and no network."""
    folder = tmp_path_factory.mktemp("colab")
    wheels, there = folder / "wheels", folder / "there"
    wheels.mkdir()
    there.mkdir()
    build = [
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(wheels),
        str(ROOT),
    ]
    done = subprocess.run([sys.executable, *build], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, version in MISSING.items():
        wheel(wheels, name, version, requires=("numpy<2", "torch==1.0"))  # what must not be followed
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    # The environment gets this one's pip, and nothing else of it.
    pip = importlib.metadata.distribution("pip").locate_file("pip")  # importing it would disturb setuptools
    os.symlink(pip, there / "pip")
    python = folder / "venv" / "bin" / "python"
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(there), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HOME": str(folder), "PIP_CONFIG_FILE": os.devnull,
    }  # fmt: skip
    stubs = folder / "stubs"
    stubs.mkdir()
    paths = [str(wheel(stubs, name, version)) for name, version in COLAB.items()]
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", *paths]
    done = subprocess.run(install, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return python, environment


def ask(colab: tuple[Path, dict[str, str]], *arguments: str) -> subprocess.CompletedProcess[str]:
    python, environment = colab
    return subprocess.run([str(python), *arguments], capture_output=True, text=True, env=environment)


def versions(colab: tuple[Path, dict[str, str]]) -> dict[str, str]:
    listed = ask(colab, "-m", "pip", "list", "--format=json")
    return {item["name"]: item["version"] for item in json.loads(listed.stdout)}


def test_resolving_our_requirements_touches_nothing_that_colab_has(colab) -> None:
    """The ranges of the package allow another torch and a newer numpy: not even a full resolution changes them."""
    for name in MISSING:  # here with requirements that can be met
        wheel(Path(colab[1]["PIP_FIND_LINKS"]), name, "999.0", requires=("numpy>=1",))
    done = ask(colab, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", "speedlab")
    assert done.returncode == 0, done.stderr
    planned = {item["metadata"]["name"].lower() for item in json.loads(done.stdout)["install"]}
    assert planned == {"speedlab", *MISSING}
    for name in MISSING:
        next(Path(colab[1]["PIP_FIND_LINKS"]).glob(f"{name.replace('-', '_')}-999.0*")).unlink()


def test_the_first_cell_installs_what_is_missing_and_leaves_the_rest(colab) -> None:
    before = versions(colab)
    assert "speedlab" not in before and {name: before[name] for name in COLAB} == COLAB
    code, replaced = re.subn(r"speedlab @ git\+https://[^\"]+", "speedlab", INSTALL_CELL)
    assert replaced == 1  # without the network the package comes from its wheel
    done = ask(colab, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "left as they are: torch 2.99.0+cu130, numpy 3.1.4"
    after = versions(colab)
    assert after == before | MISSING | {"speedlab": speedlab.__version__}
    # A second run finds everything there and asks pip for nothing.
    again = ask(colab, "-c", code.replace("subprocess.run(", "raise_if_called("))
    assert (again.returncode, again.stdout) == (0, done.stdout)
    # What was installed without its repository shows the committed records.
    code = "from speedlab.records.store import committed_root; print(len(list(committed_root().rglob('*.json'))))"
    assert int(ask(colab, "-c", code).stdout) == len(list((ROOT / "book" / "records").rglob("*.json")))


def test_a_cell_that_changed_torch_says_so(colab) -> None:
    """pip is replaced by one that breaks the promise."""
    code, replaced = re.subn(r"subprocess\.run\(.*\)", 'importlib.metadata.version = lambda name: "0.1"', INSTALL_CELL)
    assert replaced == 1
    code = code.replace('find_spec("speedlab")', 'find_spec("nothing_of_this_name")')
    done = ask(colab, "-c", code)
    assert done.returncode == 1 and "restart the runtime" in done.stderr and "2.99.0+cu130" in done.stderr


@pytest.mark.parametrize("keep", [False, True])
def test_the_second_cell_looks_at_the_runtime_and_keeps_results_on_drive_when_told(
    keep: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mounted: list[str] = []
    drive = SimpleNamespace(mount=mounted.append)
    for name, module in (("google", ModuleType("google")), ("google.colab", SimpleNamespace(drive=drive))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("SPEEDLAB_RUNS", "")
    code = RUNTIME_CELL.format(stem="02_tensor_cores")
    assert "keep = False" in code
    exec(compile(code.replace("keep = False", f"keep = {keep}"), "cell", "exec"), {})
    shown = capsys.readouterr().out
    assert "Profile " in shown and "This notebook takes about " in shown
    assert mounted == (["/content/drive"] if keep else [])
    parent = Path("/content/drive/MyDrive/speedlab-runs") if keep else Path("runs")
    assert own_run_folder("smoke").parent == parent


def test_the_cell_knows_every_requirement_of_the_package() -> None:
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[a-z-]+", requirement)[0] for requirement in listed}
    assert names == {*KEPT, "matplotlib", *NEEDED.values()}
    assert [requirement for requirement in listed if "<" in requirement or "==" in requirement] == []
