"""Which recipe a word stands for: a rung as LADDER/RUNG, or a preset. It builds nothing."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from speedlab.device import Capabilities
from speedlab.errors import BadInput
from speedlab.ladder import LADDERS, NINE_STEPS
from speedlab.recipe import Recipe

# A module with a table PRESETS, from a name to a Recipe or to a function of Capabilities that gives one.
PRESETS_MODULE = "speedlab.presets"


def recipe_by_name(name: str, machine: Capabilities) -> Recipe:
    """The full-size recipe called `name`, for one process: "nine-steps/padded_vocab", or "fastest" and other presets.

    `BadInput` lists the ladders, the rungs of the ladder named, or the presets.
    """
    ladder, slash, rung = name.partition("/")
    if slash and ladder in LADDERS:
        return LADDERS[ladder].recipe_at(LADDERS[ladder].rung(rung).key).but(data_parallel=1)
    presets = _presets()
    if name not in presets:
        raise BadInput(
            f"unknown recipe {name!r}: choose {' or '.join(presets)}, or a rung as LADDER/RUNG with a ladder of "
            f"{', '.join(LADDERS)}"
        )
    found = presets[name]
    return (found(machine) if callable(found) else found).but(data_parallel=1)


def _presets() -> dict[str, Any]:
    """The table of presets; without one, "fastest" is the top of ladder nine-steps on one device."""
    presets: dict[str, Any] = {"fastest": NINE_STEPS.recipe_at("batch_size")}
    if importlib.util.find_spec(PRESETS_MODULE) is not None:
        presets |= importlib.import_module(PRESETS_MODULE).PRESETS
    return presets
