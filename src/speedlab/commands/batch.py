"""Commands that run the chapters in batch and make the book of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from speedlab.commands.shared import ProfileName
from speedlab.errors import check_choice
from speedlab.progress import Progress


def reproduce(
    profile: ProfileName = "auto",
    only: Annotated[str | None, typer.Option(help="Only these chapters: names or numbers joined by commas.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start a new run even if one could go on.")] = False,
    kernel: Annotated[str, typer.Option(help="Jupyter kernel that executes the chapters.")] = "python3",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and run nothing.")] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the chapters and labs.")] = False,
    labs: Annotated[
        bool, typer.Option("--labs", help="Measure in the labs too; otherwise they show the committed records.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Timed steps per variant; 0 for what the profile says.")] = 0,
    source: Annotated[str, typer.Option(help="measure, recorded, or auto.")] = "auto",
    cell_limit: Annotated[int, typer.Option(help="Seconds after which a cell counts as hung.")] = 1_800,
    chapter_limit: Annotated[int, typer.Option(help="Seconds after which a whole chapter does.")] = 5_400,
) -> None:
    """Execute the chapters in batch into a run folder.

    An earlier run of the same profile, parameters, package and machine is continued. Exit code 1: a chapter failed;
    3: none failed, but one is not available here.
    """
    from speedlab.profile import PROFILES, check_steps
    from speedlab.publishing import reproduce as batch
    from speedlab.publishing import summary
    from speedlab.publishing.checkout import checkout_root
    from speedlab.publishing.currency import can_remember
    from speedlab.publishing.execute import Limits
    from speedlab.publishing.sources import find_chapters, find_labs, select

    root = checkout_root()
    notebooks = root / "notebooks"
    found_names = [*find_chapters(notebooks), *find_labs(notebooks)]
    if list_only:
        print("\n".join(found_names))
        return
    check_choice("profile", profile, ("auto", *PROFILES))
    check_choice("source", source, ("measure", "recorded", "auto"))
    check_steps(steps)
    limits = Limits(cell_s=cell_limit, chapter_s=chapter_limit)
    select(found_names, only)
    found = batch.probe_machine()
    profile = found["profile"] if profile == "auto" else profile
    batch.check_profile(profile, found["machine"])
    planned = batch.plan(
        notebooks=notebooks,
        runs=root / "runs",
        profile=profile,
        # A card that plays an older or smaller one is another machine.
        machine={
            name: found["machine"].get(name)
            for name in ("machine_id", "torch", "python", "capability", "memory_limit_bytes")
        },
        kernel=kernel,
        fresh=fresh,
        labs=labs,
        steps=steps,
        source=source,
    )
    names = batch.to_run(planned, only)
    minutes = batch.estimated_minutes(planned, names)
    if not can_remember():
        print("doit is not installed: nothing that ran before counts as current", file=sys.stderr)
    count = f"{len(names)} of {len(planned.chapters)} chapters to run with profile {planned.profile}"
    print(f"{count}, about {minutes} min, in {planned.folder}", file=sys.stderr)
    if dry_run:
        print("\n".join(f"{chapter.chapter}  {_intention(chapter, names)}" for chapter in planned.chapters))
        return
    with Progress() as progress:
        done = batch.reproduce(planned, notebooks=notebooks, only=only, limits=limits, listener=progress.show)
    print(summary.summary_table(done, names))
    print(done.folder)
    if code := summary.exit_code(done, names):
        raise typer.Exit(code)


def book(
    run: Annotated[Path | None, typer.Argument(help="Run folder; the newest complete run by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Build below this folder instead of book/_build.")] = None,
) -> None:
    """Build the book from an executed run.

    The run is checked first; the path of the first page is printed.
    """
    from speedlab.publishing.book import build_book
    from speedlab.publishing.checkout import checkout_root

    print(build_book(checkout_root(), run, out=out))


def publish(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or one that `--out` wrote.")],
    to: Annotated[Path | None, typer.Option(help="Book folder that receives it instead of book/.")] = None,
) -> None:
    """Check what was measured and take it into the book.

    Refused, with the reason: smoke runs, failed or foreign ones, mixed sessions, and a package that no commit holds.
    """
    from speedlab.publishing.checkout import checkout_root
    from speedlab.publishing.publish import publish as put

    print("\n".join(str(path) for path in put(run, root=checkout_root(), to=to)))


def _intention(chapter: Any, names: list[str]) -> str:
    return "run" if chapter.chapter in names else "current" if chapter.status == "completed" else "not asked for"
