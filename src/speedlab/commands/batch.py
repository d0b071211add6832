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
    list_only: Annotated[bool, typer.Option("--list", help="List the chapters.")] = False,
) -> None:
    """Execute the chapters in batch into a run folder.

    An earlier run of the same profile, parameters, package and machine is continued.
    """
    from speedlab.profile import PROFILES
    from speedlab.publishing import reproduce as batch
    from speedlab.publishing.checkout import checkout_root

    root = checkout_root()
    notebooks = root / "notebooks"
    if list_only:
        print("\n".join(batch.find_chapters(notebooks)))
        return
    check_choice("profile", profile, ("auto", *PROFILES))
    batch.select_chapters(list(batch.find_chapters(notebooks)), only)
    found = batch.probe_machine()
    profile = found["profile"] if profile == "auto" else profile
    batch.check_profile(profile, found["machine"])
    planned = batch.plan(
        notebooks=notebooks,
        runs=root / "runs",
        profile=profile,
        machine={name: found["machine"][name] for name in ("machine_id", "torch", "python")},
        kernel=kernel,
        fresh=fresh,
    )
    names = batch.to_run(planned, only)
    minutes = batch.estimated_minutes(planned, names)
    count = f"{len(names)} of {len(planned.chapters)} chapters to run with profile {planned.profile}"
    print(f"{count}, about {minutes} min, in {planned.folder}", file=sys.stderr)
    if dry_run:
        print("\n".join(f"{chapter.chapter}  {_intention(chapter, names)}" for chapter in planned.chapters))
        return
    with Progress() as progress:
        done = batch.reproduce(planned, notebooks=notebooks, only=only, listener=progress.show)
    print(batch.summary_table(done))
    print(done.folder)
    if any(done.chapter(name).status != "completed" for name in names):
        raise typer.Exit(1)


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


def _intention(chapter: Any, names: list[str]) -> str:
    return "run" if chapter.chapter in names else "current" if chapter.status == "completed" else "not asked for"
