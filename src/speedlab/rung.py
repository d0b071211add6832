"""What a rung and a ladder are. It knows no ladder in particular, measures nothing and does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from speedlab.errors import BadInput, check_choice
from speedlab.recipe import Recipe

CONTRACTS = ("reference", "identical", "rounding", "training")

# Tolerances of the rounding contracts, in nats, on losses near ln(50,257) = 10.8 over the first steps from one set
# of weights. float32 against float32 differs by the order of additions (relative 2^-24 per operation); TF32 and
# bfloat16 keep 10 and 7 fraction bits, so a logit of order one moves by about 1e-3 and 1e-2, and the mean over
# thousands of tokens by much less. The values leave room for a few AdamW steps, which amplify the difference.
FLOAT32_TOLERANCE = 2e-3
TF32_TOLERANCE = 1e-2
BFLOAT16_TOLERANCE = 5e-2


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One optimization: the recipe fields it sets (exactly one, none for a baseline) and the contract it keeps.

    contract: `reference` (the first rung), `identical` (the same losses bit for bit), `rounding` (losses within
    `tolerance`, an absolute difference in nats), `training` (a different optimization; its loss curve is shown).
    """

    key: str
    title: str
    change: dict[str, Any] = field(default_factory=dict)
    contract: str
    tolerance: float | None = None
    expectation: str = ""  # why it should be faster, in one sentence
    chapter: str | None = None  # stem of the notebook that is about this rung
    stacked: bool = True  # False: a row of its own on top of the rung before, which later rungs do not keep

    def __post_init__(self) -> None:
        check_choice("contract", self.contract, CONTRACTS)
        if self.contract == "rounding" and self.tolerance is None:
            raise BadInput(f"rung {self.key}: a rounding contract needs a tolerance")


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Rungs in order, each stacked on the ones before it, from a start of its own."""

    name: str
    title: str
    start: Recipe
    rungs: tuple[Rung, ...]

    @property
    def reference(self) -> Rung:
        """The first rung, which changes nothing and which the others are compared with in the end."""
        return self.rungs[0]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(rung.key for rung in self.rungs)

    def rung(self, key: str) -> Rung:
        check_choice(f"rung of ladder {self.name}:", key, self.keys)
        return next(rung for rung in self.rungs if rung.key == key)

    def recipe_at(self, key: str) -> Recipe:
        """The recipe with this rung and all stacked ones below it applied."""
        self.rung(key)
        recipe = self.start
        for rung in self.rungs:
            if rung.stacked or rung.key == key:
                recipe = recipe.but(**rung.change)
            if rung.key == key:
                return recipe
        raise AssertionError("unreachable: the key was checked")

    def before(self, key: str) -> str | None:
        """Key of the rung that this one is stacked on; None for the first."""
        below = [rung for rung in self.rungs[: self.keys.index(self.rung(key).key)] if rung.stacked]
        return below[-1].key if below else None

    def __iter__(self) -> Iterator[Rung]:
        return iter(self.rungs)
