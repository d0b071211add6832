"""Sphinx extension: {result}`nvidia-h200/nine-steps/tensor_cores:tokens_per_s` puts a recorded number into a sentence.

It reads committed records and formats one value of one row; it never measures, rounds silently to a claim or falls
back: a record, row or value that is missing stops the build. Without a device, `nine-steps/tensor_cores:mfu`, the
reference device of the configuration (`speedlab_reference_device`) is meant.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxRole

from speedlab import __version__
from speedlab.errors import BadInput
from speedlab.publishing.formatting import words_of
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_records, record_path

_TARGET = re.compile(r"(?:(?P<device>[a-z0-9-]+)/)?(?P<ladder>[a-z0-9-]+)/(?P<rung>[a-z0-9_]+):(?P<key>[a-z0-9_]+)")


class MissingResult(ExtensionError):
    """A page cites a number that nobody measured."""

    category = "Missing result"


class Results:
    """The report rows of one build, read from the records once, when the first page asks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._rows: dict[tuple[str, str, str], dict[str, Any]] | None = None

    def row(self, device: str, ladder: str, rung: str) -> dict[str, Any]:
        """The row of one rung; `BadInput` names what there is when it is missing."""
        if self._rows is None:
            rows = report_rows(read_records(self.root))
            self._rows = {(row["device"], row["ladder"], row["rung"]): row for row in rows}
        found = self._rows.get((device, ladder, rung))
        if found is None:
            there = ", ".join("/".join(name) for name in self._rows) or "none at all"
            raise BadInput(f"no record {device}/{ladder}/{rung} in {self.root}: there are {there}")
        return found

    def files(self, device: str, ladder: str) -> list[Path]:
        """The record files that the rows of this device and ladder are computed from; ratios need several."""
        return sorted(record_path(self.root, device, ladder, "any").parent.glob("*.json"))


class ResultRole(SphinxRole):
    """The role itself; one object serves all pages of a build, so that the records are read once."""

    results: Results | None = None

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            words = self._words()
        except BadInput as error:
            raise MissingResult(f"{self.get_location()}: {{result}}`{self.text}`: {error}") from error
        words = words.replace(" ", "\N{NO-BREAK SPACE}")  # a number and its unit stay on one line
        return [nodes.inline(self.rawtext, words, classes=["speedlab-result"])], []

    def _words(self) -> str:
        match = _TARGET.fullmatch(self.text.strip())
        if match is None:
            raise BadInput("write it as device/ladder/rung:key or ladder/rung:key")
        if self.results is None:
            configured = self.config.speedlab_records
            self.results = Results(Path(self.env.app.confdir, configured) if configured else committed_root())
        device = match["device"] or self.config.speedlab_reference_device
        row = self.results.row(device, match["ladder"], match["rung"])
        for path in self.results.files(device, match["ladder"]):
            self.env.note_dependency(str(path))
        return words_of(row, match["key"])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("speedlab_reference_device", "nvidia-h200", "env")
    app.add_config_value("speedlab_records", None, "env", [str, type(None)])
    app.add_role("result", ResultRole())
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
