"""The two ways in which a user can be told no, each one line, each with its exit code."""

from collections.abc import Iterable


class SpeedLabError(Exception):
    """Base of every error that is shown to the user as one line, without a traceback."""

    exit_code = 1


class BadInput(SpeedLabError, ValueError):
    """Something the user typed, or a file that they named, cannot be used (exit code 2)."""

    exit_code = 2


class NotAvailable(SpeedLabError, RuntimeError):
    """The request is sound, but this machine cannot do it (exit code 3)."""

    exit_code = 3


def check_choice(what: str, value: object, choices: Iterable[object]) -> None:
    """Raise `BadInput` naming `what`, the value and the valid choices, unless `value` is one of them."""
    choices = list(choices)
    if value not in choices:
        raise BadInput(f"unknown {what} {value!r}: choose one of {', '.join(str(c) for c in choices)}")
