"""The `speedlab` command: it reads what was typed and turns every error of the request into one line.

What each command does stands in `commands`. Everything heavy is imported inside the command that needs it, so that
`--help` and `report` answer at once.
Exit codes: 0 done, 1 something failed, 2 bad input, 3 not available here, 130 and 143 stopped by a signal.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer

from speedlab import __version__
from speedlab.commands import batch, measure, memory, memory_levers, several, show, train
from speedlab.errors import BadInput, SpeedLabError

# What a file system answers to a path that cannot be used; anything else is a fault of this program.
UNUSABLE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOTDIR,
    errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip
MAY_BE_EMPTY = ("--prompt",)

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
        _refuse_empty(sys.argv[1:] if arguments is None else arguments)
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
        if error.errno not in UNUSABLE:
            raise
        where = f" {error.filename}" if error.filename else ""
        return _complain(f"cannot read or write{where}: {error.strerror}; choose another path or make room", 2)
    except Exception as error:
        # Errors of usage come from click, which typer carries under a name of its own since 0.26.
        if not hasattr(error, "format_message"):
            raise
        return _complain(_usage_message(error, sys.argv[1:] if arguments is None else arguments), 2)


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


COMMANDS: tuple[Callable[..., None], ...] = (
    measure.doctor, measure.ladder, measure.kernels, measure.experiment, memory.memory, memory_levers.probe_batch,
    several.scaling, show.report, show.compare, batch.reproduce, batch.book, batch.publish, train.train, train.tokenize,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)


def _refuse_empty(arguments: list[str]) -> None:
    """An empty value comes from a shell variable that is not set, and an empty path would be this very folder."""
    for before, word in pairwise(["", *arguments]):
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals and not value.strip() and name not in MAY_BE_EMPTY:
            raise BadInput(f"{name} is empty: give it a value, or leave it out")
        if not word.strip() and before not in MAY_BE_EMPTY:
            what = before if before.startswith("--") else f"what follows {before or 'speedlab'}"
            raise BadInput(f"{what} is empty: give it a value, or leave it out")


def _usage_message(error: Any, arguments: list[str]) -> str:
    """click's message as one line, with what was typed, and the valid commands or where the options are listed."""
    message = " ".join(error.format_message().split()).rstrip(".")
    names = getattr(getattr(error, "param", None), "opts", ())
    for word, after in pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        if name in names and name.startswith("-"):
            message = message.replace("Invalid value", f"Invalid value {value if equals else after!r}", 1)
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
