"""A profiler's events as a file for Perfetto, chrome://tracing and TensorBoard, without a word about whose they are."""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

from torch.profiler import profile

from speedlab.errors import BadInput
from speedlab.records.store import write_text_atomic

# The profiler adds the host's name, the path of the file and an id of the run; none of these is drawn.
KEPT = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents")
# What tells one card from another of its kind.
IDENTITIES = ("uuid", "pciBusId", "pciDeviceId", "pciDomainId")
# An absolute path of two parts or more: compiled kernels name the file that they come from.
PATH = re.compile(r"(?<![\w.:/])~?(?:/[\w.+@~-]+){2,}")


def check_free(path: Path) -> None:
    """Refuse a path where something is: a trace is never written over another file."""
    if path.exists() or path.is_symlink():
        raise BadInput(f"{path} is there already: give the trace another name, or move that file away")


def write_trace(profiler: profile, path: Path) -> None:
    """Write the events of a profiler that has stopped to `path` as JSON, all of it or nothing."""
    with tempfile.TemporaryDirectory(prefix="speedlab-trace-") as folder:
        raw = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(raw))
        trace = json.loads(raw.read_text(encoding="utf-8", errors="replace"))
    text = json.dumps(anonymous(trace), separators=(",", ":"), allow_nan=False)
    check_free(path)
    write_text_atomic(path, text)


def anonymous(trace: dict[str, Any], *, names: frozenset[str] | None = None, home: str | None = None) -> dict[str, Any]:
    """A Chrome trace without paths, host and user.

    names: words to take out, by default this host's and user's. home: the home folder, by default this user's. What
    kernels and operators are called stays, but for paths; elsewhere each of the names becomes "-".
    """
    names = _own_names() if names is None else names
    home = str(Path.home()) if home is None else home
    words = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in sorted(names, key=len)[::-1]))

    def clean(value: Any, *, is_name: bool = False) -> Any:
        if isinstance(value, str):
            text = value.replace(home, "~") if len(home) > 1 else value
            text = PATH.sub(lambda found: found[0].rsplit("/", 1)[1], text)
            return text if is_name or not names else words.sub("-", text)
        if isinstance(value, dict):
            return {key: clean(inner) for key, inner in value.items() if key not in IDENTITIES}
        if isinstance(value, list):
            return [clean(inner) for inner in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    kept: dict[str, Any] = {key: clean(value) for key, value in trace.items() if key in KEPT and key != "traceEvents"}
    fixed = ("name", "ph", "cat")  # what the viewers go by
    kept["traceEvents"] = [
        {key: clean(value, is_name=key in fixed) for key, value in event.items()} for event in trace["traceEvents"]
    ]
    return kept


def _own_names() -> frozenset[str]:
    host = socket.gethostname()
    names = {host, host.split(".")[0]}
    with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a name has none to take out
        names.add(getpass.getuser())
    return frozenset(names - {""})
