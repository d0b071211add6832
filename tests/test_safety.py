"""What no part of the project may do: run what it reads, speak plain http, open connections on import, name people.

Single guards have tests of their own (downloads, checkpoints, traces, paths); here all of the source is read.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "notebooks").rglob("*.py")])
MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src" / "speedlab").rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
]
# Calls that turn data into code, and modules whose files do.
RUNS_WHAT_IT_READS = {
    "eval", "exec", "__import__", "os.system", "os.popen", "yaml.load", "torch.hub.load", "runpy.run_path",
}  # fmt: skip
READS_CODE = {"marshal", "shelve", "dill", "joblib", "cloudpickle"}
NAMESPACES = ("http://www.w3.org/", "http://127.0.0.1", "http://localhost")


def faults(tree: ast.AST) -> Iterator[str]:
    """What is forbidden in one module, in words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"imports {name}" for name in names if name.split(".")[0] in READS_CODE)
        elif isinstance(node, ast.Call):
            name, given = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            if name in RUNS_WHAT_IT_READS or re.fullmatch(r"_?pickle\.(load|loads|dump|dumps|Unpickler|Pickler)", name):
                yield f"calls {name}"
            if name == "torch.load" and given.get("weights_only") != "True":
                yield "calls torch.load without weights_only=True"
            if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
                yield f"calls {name} without allow_pickle=False"
            if given.get("shell", "False") != "False":
                yield f"gives {name} to a shell"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for address in re.findall(r"http://[^\s\"'>)]*", node.value):
                if not address.startswith(NAMESPACES):
                    yield f"holds {address}"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("eval(text)", "calls eval"),
        ("pickle.loads(data)", "calls pickle.loads"),
        ("import joblib", "imports joblib"),
        ("torch.load(path)", "calls torch.load without weights_only=True"),
        ("torch.load(path, weights_only=False)", "calls torch.load without weights_only=True"),
        ("np.load(path)", "calls np.load without allow_pickle=False"),
        ("subprocess.run(text, shell=True)", "gives subprocess.run to a shell"),
        ("open_url('http://example.org/a')", "holds http://example.org/a"),
        ("model.eval(); torch.load(path, weights_only=True); 'http://www.w3.org/2000/svg'", None),
    ],
)
def test_the_search_sees_what_it_is_for(code: str, fault: str | None) -> None:
    assert list(faults(ast.parse(code))) == ([fault] if fault else [])


def test_nothing_that_is_read_is_run_and_no_address_is_plain_http() -> None:
    found = {str(path.relative_to(ROOT)): list(faults(ast.parse(path.read_text("utf-8")))) for path in SOURCES}
    assert {name: words for name, words in found.items() if words} == {}


def test_importing_any_module_opens_no_connection() -> None:
    code = """
import importlib, socket, sys
def refuse(*arguments, **options):
    raise AssertionError(f"a connection was opened: {arguments}")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton":  # kernels that need a GPU
            raise
"""
    done = subprocess.run([sys.executable, "-c", code, *MODULES], capture_output=True, text=True)
    assert (done.returncode, done.stderr[-2_000:]) == (0, "")


def test_what_is_committed_names_no_machine_and_nobody() -> None:
    folders, fields = "/(?:home|Users|root|mnt|tmp|var|workspace)/", "hostname|host|user|home|cwd|path"
    private = re.compile(rf'{folders}|[A-Z]:\\\\|"(?:{fields})":')
    files = [*(ROOT / "book" / "records").rglob("*.json"), *(ROOT / "book" / "experiments").rglob("*.json")]
    assert files
    found = {}
    for path in files:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
        if match := private.search(text):
            found[path.name] = text[max(0, match.start() - 40) : match.end() + 40]
    assert found == {}
