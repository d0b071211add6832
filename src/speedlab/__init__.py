"""GPT-2 Speed Lab: measure and explain what makes training GPT-2 fast.

Importing the package imports nothing heavy: neither torch nor matplotlib is loaded until something needs it.
`speedlab.measure(step, tokens_per_step=...)` times anybody's own training step.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "measure"]


def __getattr__(name: str) -> Any:
    """`speedlab.measure` is looked up when it is first used, not when the package is imported."""
    if name == "measure":
        from speedlab.measuring.own_step import measure

        return measure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
