"""The handful of calls that a lab notebook makes. Labs go beyond the ladder: each runs experiments of the registry."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from speedlab.device import capabilities
from speedlab.errors import BadInput, check_choice
from speedlab.labs.registry import get_entry
from speedlab.notebook import SOURCES, own_run_folder, run_folder
from speedlab.profile import PROFILES, check_steps, get_profile
from speedlab.publishing.display import clear_progress, show_markdown, show_result, show_svg
from speedlab.publishing.facts import device_title
from speedlab.publishing.formatting import NOTHING
from speedlab.publishing.source_text import source_block
from speedlab.publishing.tables import Table
from speedlab.records.experiment import (
    Experiment,
    committed_experiments,
    experiment_path,
    read_experiments,
    write_experiment,
)

Cell = Callable[[dict[str, Any]], str]
MOST_ROWS = 24  # of a table that is not folded
_NUMBER = re.compile(rf"[-+−]?[\d.,]+(e[-+]?\d+)?( ?[%x])?|{NOTHING}")  # noqa: RUF001


class Lab:
    """One lab: its experiments, measured here, recorded elsewhere, or both.

    stem: name of the notebook, such as "accumulation". profile, steps, source: as for a chapter. On a CPU the
    experiments run in the toy profile, labelled as such beside the recorded ones.
    """

    def __init__(self, stem: str, *, profile: str = "auto", steps: int = 0, source: str = "auto") -> None:
        check_choice("profile", profile, (*PROFILES, "auto"))
        check_choice("source", source, SOURCES)
        self.stem, self.source, self.steps = stem, source, check_steps(steps)
        self.live: dict[str, Experiment] = {}
        self._asked_profile = profile
        self._bench: Any = None

    def run(self, name: str) -> None:
        """Run one experiment here, unless only records are wanted or it needs a GPU that is not there."""
        entry = get_entry(name)
        if self.source == "recorded":
            return
        machine = capabilities()
        if entry.gpu and machine.device_type != "cuda":
            show_markdown(f"*{entry.question}* This one needs a GPU, and there is none here.")
            return
        from speedlab.measuring.experiments import run_experiment
        from speedlab.measuring.workbench import Workbench

        if self._bench is None:
            profile = get_profile(self._asked_profile, gpu_memory_bytes=machine.gpu_memory_bytes)
            self._bench = Workbench(profile, machine, steps=self.steps)
        self.live[name] = run_experiment(
            name, bench=self._bench, report=lambda event: print(event.text[:200], flush=True)
        )
        folder = (run_folder() or own_run_folder(self._bench.profile.name)) / "experiments"
        write_experiment(folder, self.live[name])
        clear_progress()
        print(f"{name}: {_rows_in_words(self.live[name])}")  # what clears the progress: a cell that only runs is empty

    def show_table(
        self, name: str, columns: Mapping[str, str | Cell], *, where: Mapping[str, Any] | None = None
    ) -> None:
        """The rows of an experiment, for each device that has them. columns: heading -> field of a row, or a function
        of a row that gives the text. A row that was not measured shows its reason instead of numbers. where: values
        that the rows to be shown must have."""
        for label, experiment in self.sets(name):
            rows = [row for row in experiment.rows if all(row.get(key) == want for key, want in (where or {}).items())]
            if rows:
                show_markdown(f"{label}:\n\n{rows_table(rows, columns)}")

    def show_tables(self, name: str, make: Callable[[Experiment], Iterable[Table]]) -> None:
        """`make(experiment)`, tables that gather rows, each under its title, for each device; empty ones left out."""
        for label, experiment in self.sets(name):
            for table in make(experiment):
                if table.cells:
                    show_markdown(f"**{table.title}.** {label.replace('**', '')}:\n\n{table.markdown()}")

    def show_figure(self, name: str, draw: Callable[[Experiment], Any]) -> None:
        """`draw(experiment)`, a matplotlib figure with alternative text, for each device that has measured rows."""
        for label, experiment in self.sets(name):
            if experiment.measured:
                show_markdown(label + ":")
                show_svg(draw(experiment))

    def show_words(self, name: str, say: Callable[[Experiment], str]) -> None:
        """Sentences that are made from the rows, toy runs left out: they mean nothing about speed."""
        experiments = [experiment for _, experiment in self.sets(name, toys=False) if experiment.measured]
        for experiment in experiments:
            show_markdown(f"**{device_title(experiment.device)}.** {say(experiment)}")
        if not experiments:
            show_markdown("Nothing recorded yet, and a toy run says nothing about speed.")

    def show_code(self, *things: Any) -> None:
        """The source of classes or functions of the package, or of a table in a module as (module, "NAME")."""
        show_markdown("\n".join(source_block(thing) for thing in things))

    def sets(self, name: str, *, toys: bool = True) -> list[tuple[str, Experiment]]:
        """(label, experiment): the recorded ones of each device, then the one that ran here."""
        get_entry(name)
        found = [
            (f"**Recorded** on {device_title(experiment.device)}", experiment)
            for experiment in read_experiments(committed_experiments(), name)
        ]
        if (live := self.live.get(name)) and (toys or PROFILES[live.profile].publishable):
            profile = PROFILES[live.profile]
            label = f"**Here and now**, {device_title(live.device)}, profile *{profile.name}*"
            found.append((label if profile.publishable else f"{label}: {profile.about}", live))
        return found

    def finish(self) -> None:
        """Emit the lab's result, which the batch runner and the book look for."""
        run = run_folder()
        paths = [
            experiment_path(run / "experiments", experiment.device, name).relative_to(run).as_posix()
            for name, experiment in self.live.items()
            if run is not None
        ]
        failed = [
            name
            for name, experiment in self.live.items()
            if any(row["status"] in ("error", "contract_failed") for row in experiment.rows)
        ]
        result = {
            "chapter": self.stem,
            "profile": self._bench.profile.name if self._bench else self._asked_profile,
            "steps": self.steps,
            "source": self.source,
            "status": "failed" if failed else "measured" if self.live else "recorded",
            "session": self._bench.id if self._bench else None,
            "records": paths,
        }
        show_result(result, f"{self.stem}: {result['status']}" + (f" ({', '.join(failed)})" if failed else ""))


def _rows_in_words(experiment: Experiment) -> str:
    """How many rows there are, and how many of each kind: "13 rows: 12 measured, 1 out of memory"."""
    counts = Counter(row["status"].replace("_", " ") for row in experiment.rows)
    kinds = ", ".join(f"{number} {status}" for status, number in counts.items())
    return f"{counts.total()} {'row' if counts.total() == 1 else 'rows'}: {kinds or 'nothing to measure'}"


def rows_table(rows: list[dict[str, Any]], columns: Mapping[str, str | Cell]) -> str:
    """Markdown. Fields that a row lacks are a dash; a row that was not measured ends with its reason.

    A measured row whose first cell is a dash has no name here and belongs to another table; a column in which nothing
    stands is left out, numbers stand to the right. A table longer than a screen is folded.
    """
    if not columns:
        raise BadInput("a table needs at least one column: give {heading: field}")
    lines, measured = [], []
    for row in rows:
        cells = [_cell(row, column) for column in columns.values()]
        if row["status"] != "measured":
            cells[-1] = f"{row['status'].replace('_', ' ')}: {row['reason']}"
        elif cells[0] == NOTHING:
            continue
        else:
            measured.append(cells)
        lines.append(tuple(cells))
    numbers = frozenset(
        name
        for name, *column in zip(columns, *measured, strict=False)
        if column and all(map(_NUMBER.fullmatch, column))
    )
    table = Table("", tuple(columns), tuple(lines), numbers=numbers).without_empty_columns().markdown()
    if len(lines) <= MOST_ROWS:
        return table
    return f"<details>\n<summary>All {len(lines)} rows</summary>\n\n{table}\n</details>\n"


def _cell(row: dict[str, Any], column: str | Cell) -> str:
    if callable(column):
        return column(row) if row["status"] == "measured" else NOTHING
    value = row.get(column)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return NOTHING if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)
