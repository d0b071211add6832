"""The `speedlab` command: it reads what was typed, calls the package, and shows the answer. It computes nothing.

Everything heavy is imported inside the command that needs it, so that `--help` and `report` answer at once.
Exit codes: 0 done, 1 something failed, 2 bad input, 3 not available here, 130 and 143 stopped by a signal.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from speedlab import __version__
from speedlab.errors import SpeedLabError, check_choice
from speedlab.progress import Progress

FORMATS = ("table", "markdown", "csv", "json")
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    name="speedlab",
    help="Measure and explain what makes training GPT-2 fast.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: an error of usage is one line, not a box
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Terminated(BaseException):
    """SIGTERM, raised so that every `finally` runs: nothing is left half written and no kernel is left behind."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; every error that has to do with the request is one line on standard error."""
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="speedlab", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # typer turns Ctrl-C into an exit code
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except SpeedLabError as error:
        return _complain(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)
    except Terminated:
        return _complain("stopped by SIGTERM", 143)
    except BrokenPipeError:
        # Whoever read our output has enough (`speedlab report | head`); what is buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        where = f" {error.filename}" if error.filename else ""
        return _complain(f"cannot write{where}: {error.strerror}; choose another folder or make room", 2)
    except Exception as error:
        # Errors of usage come from click, which typer carries under a name of its own since 0.26.
        if not hasattr(error, "format_message"):
            raise
        return _complain(f"{_usage_message(error)}", 2)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"speedlab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what this machine can run, and why not the rest."""
    from speedlab.doctor import as_text, examine

    report = examine()
    print(json.dumps(report, indent=1) if as_json else as_text(report))


@app.command()
def ladder(
    name: Annotated[str, typer.Option("--ladder", help="nine-steps, six-steps, alone or removed.")] = "nine-steps",
    profile: Annotated[str, typer.Option(help="full, t4, smoke, or auto: by this machine's GPU.")] = "auto",
    corpus: Annotated[
        str, typer.Option(help="standard-library, middlemarch, shakespeare, or the path of a file or folder.")
    ] = "standard-library",
    rungs: Annotated[str | None, typer.Option(help="Only these rungs, joined by commas.")] = None,
    order: Annotated[
        str, typer.Option(help="Its changes in another order, all of them joined by commas; as-is: its own order.")
    ] = "as-is",
    steps: Annotated[int, typer.Option(help="Timed steps per rung; 0 for what the profile says.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the records below this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Measure a whole ladder in this process, without notebooks."""
    from speedlab.measuring.session import run_ladder
    from speedlab.records.rows import report_rows

    chosen = _words(rungs) if rungs is not None else None
    wanted = _words(order) if order != "as-is" else None
    with Progress() as progress:
        records = run_ladder(
            name, profile=profile, corpus=corpus, rungs=chosen, order=wanted, steps=steps, out=out,
            report=lambda event: progress.show(_event_text(event), event.done, event.total),
        )  # fmt: skip
    _print_rows(report_rows(records), "json" if as_json else "table")
    if any(record.status in ("error", "contract_failed") for record in records):
        raise typer.Exit(1)


@app.command()
def kernels(
    rung: Annotated[str, typer.Argument(help="Key of a rung, such as baseline or flash_attention.")],
    name: Annotated[str, typer.Option("--ladder", help="nine-steps or six-steps.")] = "nine-steps",
    profile: Annotated[str, typer.Option(help="full, t4, smoke, or auto: by this machine's GPU.")] = "auto",
    shapes: Annotated[bool, typer.Option("--shapes", help="Tell kernels apart by the shapes they work on.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Show what each allocates.")] = False,
    top: Annotated[int, typer.Option(min=1, help="How many of the longest kernels to show.")] = 15,
    trace: Annotated[
        Path | None, typer.Option(help="Write a new file for Perfetto, or TensorBoard: NAME.pt.trace.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every kernel.")] = False,
) -> None:
    """Show which kernels one step of a rung runs, and what it waits for."""
    from speedlab.measuring.kernel_profile import profile_rung
    from speedlab.publishing.kernel_tables import kernel_report

    with Progress() as progress:
        profiled = profile_rung(
            rung, ladder=name, profile=profile, shapes=shapes, memory=memory, trace=trace,
            report=lambda event: progress.show(_event_text(event), event.done, event.total),
        )  # fmt: skip
    print(json.dumps(profiled.as_dict(), indent=1) if as_json else kernel_report(profiled, top))


@app.command()
def report(
    records: Annotated[Path | None, typer.Option(help="Folder of records; the committed ones by default.")] = None,
    form: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",
    price_per_hour: Annotated[
        float | None, typer.Option(help="What one GPU costs for an hour: adds seconds, joules and money.")
    ] = None,
) -> None:
    """Show what was measured: one row per record."""
    check_choice("format", form, FORMATS)
    from speedlab.records.rows import report_rows
    from speedlab.records.store import committed_root, read_records

    folder = records or committed_root()
    rows = report_rows(read_records(folder))
    _print_rows(rows, form, price_per_hour)
    if not rows:
        print(f"no records below {folder}", file=sys.stderr)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="Folder of records.")],
    b: Annotated[str, typer.Argument(help="Another one; by default the committed records.")] = "published",
    form: Annotated[str, typer.Option("--format", help="table, markdown, json")] = "table",
) -> None:
    """Put two folders of records side by side: what is faster, and what differs."""
    from speedlab.publishing.compare import FORMATS, compare_folders, render_comparison

    check_choice("format", form, FORMATS)
    print(render_comparison(compare_folders(a, b), form), end="")


@app.command()
def reproduce(
    profile: Annotated[str, typer.Option(help="full, t4, smoke, or auto: by this machine's GPU.")] = "auto",
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


@app.command()
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


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _print_rows(rows: list[dict[str, Any]], form: str, price_per_hour: float | None = None) -> None:
    from speedlab.publishing.cost import render_with_cost
    from speedlab.publishing.tables import render

    text = render(rows, form) if price_per_hour is None else render_with_cost(rows, form, price_per_hour)
    print(text, end="")


def _intention(chapter: Any, names: list[str]) -> str:
    return "run" if chapter.chapter in names else "current" if chapter.status == "completed" else "not asked for"


def _event_text(event: Any) -> str:
    return f"{event.rung}: {event.text}" if event.rung else event.text


def _usage_message(error: Any) -> str:
    """click's message as one line, with the valid commands or the place where the options are listed."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    if commands := getattr(context.command, "commands", None):
        return f"{message}: choose one of {', '.join(commands)}"
    return f"{message}: see `{context.command_path} --help`"


def _complain(message: str, code: int) -> int:
    print(f"speedlab: {' '.join(message.split())}", file=sys.stderr)
    return code


def _terminate(number: int, frame: Any) -> NoReturn:
    raise Terminated
