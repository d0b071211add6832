"""Ladders made from another one: each change alone, each change taken away from the top, all in another order.

They ask how much the place of a change decides what it gains. Keys and changes are those of the ladder they come
from. Nothing here measures, imports torch or knows a ladder in particular.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from speedlab.errors import BadInput
from speedlab.recipe import Recipe
from speedlab.rung import BFLOAT16_TOLERANCE, FLOAT32_TOLERANCE, TF32_TOLERANCE, Ladder, Rung
from speedlab.work import compute_dtype

ALONE, REMOVED, REORDERED = "alone", "removed", "-reordered"
# What two runs may differ by when their matmuls run in this format, in nats; the reasons stand beside the values.
TOLERANCES = {
    "float32": FLOAT32_TOLERANCE, "tf32": TF32_TOLERANCE, "bfloat16": BFLOAT16_TOLERANCE,
    "float16": BFLOAT16_TOLERANCE,
}  # fmt: skip

# What the ratios of a ladder are over, for the notes of its table.
NOTES: dict[str, tuple[str, ...]] = {
    ALONE: ("each row is one change on the baseline and nothing else; its ratios are over the baseline",),
    REMOVED: (
        "the first row holds all the changes; each other row lacks one of them, and its ratios are over the first row: "
        "below 1 is what the change gains there",
    ),
}


def alone(ladder: Ladder) -> Ladder:
    """Each change of `ladder` by itself on its start. Every row is compared with the first, the start."""
    rungs = [
        _derived(rung, rung.change, ladder.start, ladder.start.but(**rung.change), stacked=False)
        for rung in _changing(ladder)
    ]
    title = f"Each change of {ladder.name} alone on its baseline"
    return Ladder(name=ALONE, title=title, start=ladder.start, rungs=(ladder.reference, *rungs))


def removed(ladder: Ladder, *, top: str) -> Ladder:
    """Each change of `ladder` taken away from the recipe of rung `top`, which holds all the changes up to it.

    The first row, under the key of the ladder's own first rung, is that recipe with nothing taken away, and every row
    is compared with it: `speedup_step` is the speed *without* a change over the speed with all of them, so a change
    that helps shows a ratio below 1. A change that `top` does not hold stays a row, which makes no difference.
    """
    full = ladder.recipe_at(top)
    reference = replace(
        ladder.reference,
        title="Nothing removed",
        expectation=f"the recipe of rung {top} of ladder {ladder.name}, with all changes up to it",
    )
    rungs = []
    for rung in _changing(ladder):
        plain = {name: getattr(ladder.start, name) for name in rung.change}
        derived = _derived(rung, plain, full, full.but(**plain), stacked=False)
        words = f"what it gains at the top is lost: {rung.expectation}"
        rungs.append(replace(derived, title=f"Without: {rung.title}", expectation=words))
    title = f"Each change of {ladder.name} taken away from its top on one GPU"
    return Ladder(name=REMOVED, title=title, start=full, rungs=(reference, *rungs))


def reordered(ladder: Ladder, keys: Sequence[str]) -> Ladder:
    """The changes of `ladder` stacked in the order of `keys`, which name each of them exactly once.

    The start stays first and is not named. Rungs that no later rung keeps are left out. `BadInput` says which keys
    are unknown, missing or named twice.
    """
    known = {key: ladder.rung(key) for key in changing_keys(ladder)}
    if not known:
        raise BadInput(f"order {','.join(keys)!r}: the rungs of ladder {ladder.name} are not stacked; leave it as-is")
    problems = [
        f"{what}: {', '.join(dict.fromkeys(names))}"
        for what, names in (
            ("unknown", [key for key in keys if key not in known]),
            ("missing", [key for key in known if key not in keys]),
            ("named twice", [key for key in keys if key in known and list(keys).count(key) > 1]),
        )
        if names
    ]
    if problems:
        raise BadInput(
            f"order {','.join(keys)!r} of ladder {ladder.name} must name each change once, or be as-is; "
            f"{'; '.join(problems)}; the changes are {', '.join(known)}"
        )
    recipe, rungs = ladder.start, [ladder.reference]
    for key in keys:
        after = recipe.but(**known[key].change)
        rungs.append(_derived(known[key], known[key].change, recipe, after, stacked=True))
        recipe = after
    title = f"{ladder.title}, in another order"
    return Ladder(name=ladder.name + REORDERED, title=title, start=ladder.start, rungs=tuple(rungs))


def changing_keys(ladder: Ladder) -> tuple[str, ...]:
    """The rungs that can be put in another order: those that change something and that later rungs keep."""
    return tuple(rung.key for rung in _changing(ladder) if rung.stacked)


def reordered_parent(name: str) -> str | None:
    """Name of the ladder that the ladder of this name reorders; None for any other."""
    return name.removesuffix(REORDERED) if name.endswith(REORDERED) else None


def _changing(ladder: Ladder) -> list[Rung]:
    return [rung for rung in ladder if rung.change]


def _derived(rung: Rung, change: dict, before: Recipe, after: Recipe, *, stacked: bool) -> Rung:
    """The rung in another place: its own contract, as loose as the formats and kernels of that place make it.

    `identical` holds only while both sides add in a fixed order: fused attention and compiled kernels do not.
    """
    contract, tolerance = rung.contract, rung.tolerance
    fixed_order = all(recipe.attention == "plain" and recipe.compile == "off" for recipe in (before, after))
    if contract == "rounding" or (contract == "identical" and not fixed_order):
        contract = "rounding"
        tolerance = max(tolerance or 0.0, *(TOLERANCES[compute_dtype(recipe)] for recipe in (before, after)))
    return replace(
        rung, change=dict(change), contract=contract, tolerance=tolerance, stacked=stacked, chapter=None
    )  # fmt: skip
