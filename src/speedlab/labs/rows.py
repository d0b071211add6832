"""One row of an experiment, whatever becomes of it: measured, out of memory, not to be had here, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from speedlab.errors import BadInput, NotAvailable


def attempt(make: Callable[[], dict[str, Any]], **what: Any) -> dict[str, Any]:
    """`what` was tried, together with what `make` gives; where it fails, with the reason in one line instead.

    `BadInput` passes through: it is the request that is wrong, not this row.
    """
    import torch

    try:
        return {**what, "status": "measured", "reason": None, **make()}
    except torch.OutOfMemoryError:
        return {**what, "status": "out_of_memory", "reason": "it needs more memory than there is"}
    except NotAvailable as error:
        return {**what, "status": "unavailable", "reason": str(error)}
    except BadInput:
        raise
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        return {**what, "status": "error", "reason": f"{type(error).__name__}: {first[:300]}"}


def attempt_all(make: Callable[[], Iterable[dict[str, Any]]], **what: Any) -> list[dict[str, Any]]:
    """The rows of `make`, each together with `what`; where it fails, those before it and one with the reason."""
    rows: list[dict[str, Any]] = []

    def collect() -> dict[str, Any]:
        for row in make():
            rows.append({**what, "status": "measured", "reason": None, **row})
        return {}

    outcome = attempt(collect, **what)
    return rows if outcome["status"] == "measured" else [*rows, outcome]
