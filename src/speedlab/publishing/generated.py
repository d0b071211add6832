"""Writes everything that the prose pages include: tables and figures of the records, facts of the program, diagrams.

The pages in `book/` name these files and hold no number themselves. It reads records and never changes one. While
there are no records, a page says so in words; a page never shows an empty table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from speedlab.ladder import NINE_STEPS, SIX_STEPS
from speedlab.profile import PROFILES
from speedlab.publishing import facts, figures, roofline
from speedlab.publishing.attribution_table import attribution_section
from speedlab.publishing.bibliography import bibliography_section
from speedlab.publishing.citation import citation_section
from speedlab.publishing.diagrams import write_diagrams
from speedlab.publishing.exercises import exercises_section
from speedlab.publishing.folklore_page import folklore_section
from speedlab.publishing.glossary import glossary_section
from speedlab.publishing.machinery import machinery_tables
from speedlab.publishing.memory_parts import memory_section
from speedlab.publishing.page_tables import page_tables
from speedlab.publishing.referee_tables import determinism_section, harness_section, loss_section
from speedlab.publishing.synthesis import cheat_sheet, which_card
from speedlab.publishing.tables import Row, by_ladder, published_table, table_title
from speedlab.publishing.touch_ladder import explorer
from speedlab.records.experiment import committed_experiments, read_experiments
from speedlab.records.record import Record
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_records, reading_order, write_text_atomic
from speedlab.troubleshooting import troubleshooting_section

FOLDER = "_generated"


def generate(book: Path, run_records: Path | None = None, *, records: Path | None = None) -> list[Path]:
    """Write all included files below `book/_generated` and return their paths; what is stale there goes.

    run_records: folder of the records of the run that the chapters come from, shown in a table of its own. records:
    the published ones, by default those that are committed. Damaged or mixed records are a `BadInput`.
    """
    committed = _read(records or committed_root())
    rows = report_rows(committed)
    writer = _Writer(book / FOLDER)
    writer.fragment("headline", _headline(rows, reference_device(book), writer))
    writer.fragment("rungs_nine_steps", facts.rungs_table(NINE_STEPS))
    writer.fragment("rungs_six_steps", facts.rungs_table(SIX_STEPS))
    writer.fragment("profiles", facts.profiles_table())
    writer.fragment("flops", facts.arithmetic())
    writer.fragment("method_version", facts.method_version())
    groups = sorted(by_ladder(rows), key=lambda group: group[0]["device"] != reference_device(book))
    for ladder in (NINE_STEPS.name, SIX_STEPS.name):
        whole = [group for group in groups if group[0]["ladder"] == ladder and _is_whole(group)]
        words = "".join(_ladder_section(group, writer, committed) for group in whole) or _nothing_yet(ladder)
        writer.fragment(f"results_{ladder.replace('-', '_')}", words)
    others = [
        group for group in groups if not (_is_whole(group) and group[0]["ladder"] in (NINE_STEPS.name, SIX_STEPS.name))
    ]
    writer.fragment("memory_parts", memory_section(committed, writer.figure))
    writer.fragment("ladder_explorer", explorer(rows))
    writer.fragment("attribution", attribution_section(rows))
    writer.fragment("which_card", which_card())
    writer.fragment("cheat_sheet", cheat_sheet(rows, reference_device(book)))
    for name, words in machinery_tables().items():
        writer.fragment(name, words)
    writer.fragment("results_other", "".join(map(_other_section, others)) or "No other records are committed yet.\n")
    writer.fragment("results_run", _run_section(report_rows(_read(run_records)) if run_records else []))
    writer.fragment("published", _published_section())
    experiments = read_experiments(committed_experiments())
    writer.fragment("folklore", folklore_section(committed, experiments))
    writer.fragment("harness_overhead", harness_section(experiments))
    writer.fragment("determinism", determinism_section(experiments))
    writer.fragment("loss_against_time", loss_section(experiments, writer.figure))
    writer.fragment("troubleshooting", troubleshooting_section())
    writer.fragment("glossary", glossary_section())
    writer.fragment("exercises", exercises_section())
    writer.fragment("bibliography", bibliography_section())
    writer.fragment("older_records", facts.older_records(committed))
    writer.fragment("cite", citation_section())
    writer.fragment("environment", facts.machines(committed) or "No records are committed yet.\n")
    writer.paths += write_diagrams(book / FOLDER / "diagrams")
    writer.remove_stale()
    return writer.paths


def write_generated(folder: Path, run_records: Path | None = None) -> list[Path]:
    """`generate` for the folder `book/_generated` itself."""
    return generate(folder.parent, run_records)


def reference_device(book: Path) -> str:
    """The device that prose means where it names none, as `_config.yml` says."""
    import yaml

    config = yaml.safe_load((book / "_config.yml").read_text(encoding="utf-8"))
    return config["sphinx"]["config"]["speedlab_reference_device"]


class _Writer:
    """Writes files into one folder and knows which ones it wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []

    def fragment(self, name: str, words: str) -> None:
        path = self.folder / f"{name}.md"
        write_text_atomic(path, words)
        self.paths.append(path)

    def figure(self, name: str, chart: Any, caption: str) -> str:
        """Save a chart and return the directive that shows it, its alternative text included."""
        path = self.folder / f"{name}.svg"
        figures.save_svg(chart, path)
        self.paths.append(path)
        alt = json.dumps(figures.alt_text(chart), ensure_ascii=False)  # quoted: it may hold colons and signs
        options = f":name: fig-{name}\n:alt: {alt}\n:class: chart\n:width: 100%\n"
        return f":::{{figure}} {FOLDER}/{name}.svg\n{options}\n{caption}\n:::\n\n"

    def remove_stale(self) -> None:
        """Delete what an earlier build left: a figure of a device that is gone."""
        kept = set(self.paths)
        for path in [*self.folder.rglob("*.md"), *self.folder.rglob("*.svg")]:
            if path not in kept:
                path.unlink()


def _read(root: Path) -> list[Record]:
    """The records below `root`; none where there is no such folder yet."""
    return read_records(root) if root.is_dir() else []


def _is_whole(group: list[Row]) -> bool:
    """Whether a device's rows climb the ladder from its start, and are not only a comparison of several GPUs."""
    return any(row["contract"] == "reference" for row in group)


def _nothing_yet(ladder: str) -> str:
    return f"No records of this ladder are committed yet. `speedlab ladder --ladder {ladder}` measures it on a GPU.\n"


def _headline(rows: list[Row], device: str, writer: _Writer) -> str:
    """The opening result on the first page: one sentence, one figure, one short table."""
    ladder = NINE_STEPS.name
    group = [row for row in rows if row["device"] == device and row["ladder"] == ladder]
    measured = [row for row in group if row["status"] == "measured" and row["world_size"] == 1]
    if len(measured) < 2 or measured[0]["contract"] != "reference":
        return _nothing_yet(ladder)
    first, top = (f"{device}/{ladder}/{row['rung']}" for row in (measured[0], measured[-1]))
    sentence = (
        f"On one {facts.device_title(device)} the steps of the chapters take training from "
        f"{{result}}`{first}:tokens_per_s` to {{result}}`{top}:tokens_per_s` (measured): "
        f"{{result}}`{top}:verdict_total`. Memory went from {{result}}`{first}:peak_reserved_bytes` to "
        f"{{result}}`{top}:peak_reserved_bytes`. [Results](results.md) has every row, with the figures that others "
        "published.\n\n"
    )
    chart = writer.figure(
        "headline", figures.ladder_speed(group, published=False),
        "Speed after each step, all earlier ones kept: measured.",
    )  # fmt: skip
    return sentence + chart


def _ladder_section(group: list[Row], writer: _Writer, committed: list[Record]) -> str:
    """One device's climb: its speed as a figure and in tables, then the other figures."""
    device, ladder = group[0]["device"], group[0]["ladder"]
    title = facts.device_title(device)
    measured = [row for row in group if row["status"] == "measured"]
    labels = f"Solid bars: measured on {title}. Hatched bars, where there are any: published."
    # Name, whether the rows hold what it shows, the function that draws it, caption.
    charts: tuple[tuple[str, bool, Callable[[list[Row]], Any], str], ...] = (
        ("speed", bool(measured), figures.ladder_speed, f"Speed along ladder {ladder}. {labels}"),
        (
            "memory", any(row["peak_reserved_bytes"] for row in measured), figures.memory,
            f"Peak memory along ladder {ladder}. {labels}",
        ),
        (
            "waterfall", sum(row["world_size"] == 1 for row in measured) > 1, figures.waterfall,
            f"Where the milliseconds went, for 1,000 tokens: measured on {title}.",
        ),
        (
            "predicted", any(row["predicted_step_ms"] for row in measured), figures.predicted_against_measured,
            f"Step time as counted before the run, and as measured on {title}.",
        ),
    )  # fmt: skip
    drawn = [
        writer.figure(f"{ladder}-{device}-{name}", draw(group), caption)
        for name, wanted, draw, caption in charts
        if wanted
    ]
    of_group = [record for record in committed if (record.device, record.ladder) == (device, ladder)]
    last = _roofline_section(sorted(of_group, key=reading_order), writer, f"{ladder}-{device}-roofline")
    return "".join([f"### {title}\n\n", *drawn[:1], _tables(group), *drawn[1:], last])


def _roofline_section(records: list[Record], writer: _Writer, name: str) -> str:
    """Arithmetic against traffic as a figure, and its numbers as a table; nothing without measured ceilings."""
    if not roofline.points(records):
        return ""
    chart = writer.figure(
        name, roofline.roofline(records),
        "Each numbered point is a rung; the lines are what the same session measured: a long copy, and a large square "
        "matrix multiplication in each number format. The table below has the names. A roof bounds the whole step; "
        "*bound by* in the tables above names what takes most of the predicted time, part by part.",
    )  # fmt: skip
    return f"{chart}{roofline.roofline_table(records).markdown()}\n"


def _other_section(group: list[Row]) -> str:
    return f"### {facts.device_title(group[0]['device'])}, ladder {group[0]['ladder']}\n\n{_tables(group)}"


def _tables(group: list[Row]) -> str:
    """The rows of one device and ladder, and what they were measured with."""
    return f"{_linked(page_tables(group))}\nMeasured: {table_title(group[0])}.\n\n"


def _linked(words: str) -> str:
    """Bare addresses made links."""
    return re.sub(r"https://[^\s,;|]+", r"<\g<0>>", words)


def _run_section(rows: list[Row]) -> str:
    """The rows of the run that the chapters of this build come from."""
    if not rows:
        return "The chapters of this build show committed records; their run measured nothing that is kept.\n"
    parts = ["Each chapter is a process of its own: compare rows inside a chapter, not across this table.\n\n"]
    for group in by_ladder(rows):
        profile = PROFILES[group[0]["profile"]]
        toy = "" if profile.publishable else f" This is the *{profile.name}* profile: {profile.about}."
        parts.append(f"**{facts.device_title(group[0]['device'])}, ladder {group[0]['ladder']}.**{toy}\n\n")
        parts.append(_tables(group))
    return "".join(parts)


def _published_section() -> str:
    """What others measured, with their sources, in tables that hold nothing of ours."""
    wanted: Iterable[tuple[str, str, str | None]] = (
        (NINE_STEPS.name, "A100", None), (SIX_STEPS.name, "A100", None), (SIX_STEPS.name, "T4", None),
        (SIX_STEPS.name, "A100", "karpathy"),
    )  # fmt: skip
    parts = []
    for ladder, card, source in wanted:
        table = published_table(ladder, card=card, source=source)
        parts.append(
            f"### Published: {ladder}, {card}{', another account' if source else ''}\n\n{_linked(table.markdown())}\n"
        )
    return "".join(parts)
