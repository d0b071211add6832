"""Fields that a recipe holds but does not read, as rules. It knows recipes; what a machine cannot do is in `device`.

A change of such a field changes nothing, so its row is `not_applicable` and says why instead of showing noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from speedlab.recipe import VOCABULARY_MULTIPLE, Recipe, changes


@dataclass(frozen=True, kw_only=True)
class Inert:
    """Where `holds`, the value of `field` makes no difference. reason: one line, with recipe fields in braces."""

    field: str
    holds: Callable[[Recipe], bool]
    reason: str


RULES: tuple[Inert, ...] = (
    Inert(
        field="causal_mask",
        holds=lambda recipe: recipe.attention != "plain",
        reason="attention {attention} hides the future by itself and reads no mask",
    ),
    Inert(
        field="matmul_precision",
        holds=lambda recipe: recipe.precision != "float32",
        reason="with precision {precision} no matmul runs in float32, so there is nothing that TF32 could round",
    ),
    Inert(
        field="vocabulary",
        holds=lambda recipe: recipe.vocab_size % VOCABULARY_MULTIPLE == 0,
        reason="a vocabulary of {vocab_size} ids needs no padding",
    ),
    Inert(
        field="qkv_backward",
        holds=lambda recipe: not (recipe.qkv_bias and recipe.qkv_projection == "merged"),
        reason="projection {qkv_projection} with bias {qkv_bias} has no joined gradient with a bias to sum for",
    ),
    Inert(
        field="compile_options",
        holds=lambda recipe: recipe.compile == "off",
        reason="nothing is compiled, so the compiler's options are not read",
    ),
    Inert(
        field="data_parallel",
        holds=lambda recipe: recipe.data_parallel == 1,
        reason="one process trains alone here, with or without this change",
    ),
)


def inert_reason(field: str, before: Recipe, after: Recipe) -> str | None:
    """Why changing `field` from `before` to `after` makes no difference; None where it may make one.

    A rule must hold on both sides: a value that only one of them reads is at work. Other fields in which the two
    differ are at work unless a rule holds for them as well.
    """
    differing = {field, *changes(before, after)}
    reasons = {name: _reason(name, before, after) for name in differing}
    return reasons[field] if all(reasons.values()) else None


def _reason(field: str, before: Recipe, after: Recipe) -> str | None:
    for rule in RULES:
        if rule.field == field and rule.holds(before) and rule.holds(after):
            return rule.reason.format(**after.as_dict())
    return None
