"""The command that says how much memory a training step needs, before it runs. It imports no torch."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from speedlab.commands.shared import AsJson
from speedlab.errors import BadInput, check_choice

# Far above any model; more is a slip of the finger, and the numbers would mean nothing.
LARGEST = {"num_layers": 10_000, "embedding_width": 1_000_000, "num_heads": 100_000, "context_length": 10_000_000,
           "vocab_size": 100_000_000, "micro_batch": 1_000_000, "accumulation": 1_000_000, "data_parallel": 100_000,
           "gradient_bucket_mb": 1_000_000}  # fmt: skip


def memory(
    layers: Annotated[int | None, typer.Option(help="Blocks of the model.")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the embedding.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads; the width must be a multiple.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Ids of the tokenizer.")] = None,
    micro_batch: Annotated[int | None, typer.Option("--micro-batch", help="Sequences per forward pass.")] = None,
    recipe: Annotated[
        str, typer.Option(help="LADDER/RUNG, such as nine-steps/batch_size; LADDER alone for its top on one GPU.")
    ] = "nine-steps/batch_size",
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Another field of the recipe, as FIELD=VALUE; repeatable.")
    ] = None,
    card: Annotated[str, typer.Option(help="Card that it should fit, such as nvidia-a100-40gb or tesla-t4.")] = (
        "nvidia-h200"
    ),
    as_json: AsJson = False,
) -> None:
    """Predict the memory of a training step: what holds it, whether it fits a card, what to change."""
    from speedlab.cards import CARDS
    from speedlab.memory_fit import on_card
    from speedlab.publishing.memory_report import memory_report, memory_values

    check_choice("card", card, [known.slug for known in CARDS])
    chosen = next(known for known in CARDS if known.slug == card)
    flags = {"layers": "num_layers", "width": "embedding_width", "heads": "num_heads", "context": "context_length",
             "vocab": "vocab_size", "micro-batch": "micro_batch"}  # fmt: skip
    sizes = zip(flags.items(), (layers, width, heads, context, vocab, micro_batch), strict=True)
    given = [(f"--{flag}", field, value) for (flag, field), value in sizes if value is not None]
    given += [(f"--set {field}", field, value) for field, value in _typed(changes or [])]
    wanted = _recipe_of(recipe).but(**_checked(given))
    planned, substitutions = on_card(wanted, chosen)
    notes = tuple(f"{s.field} {s.used} instead of {s.asked}: {s.reason}" for s in substitutions)
    if as_json:
        print(json.dumps(memory_values(planned, chosen, notes), indent=1))
    else:
        print(memory_report(planned, chosen, notes))


def _recipe_of(text: str) -> Any:
    """The recipe of LADDER/RUNG, or of the last stacked rung of LADDER on one GPU."""
    from speedlab.ladder import get_ladder

    name, slash, key = text.partition("/")
    ladder = get_ladder(name)
    if slash:
        return ladder.recipe_at(key)
    stacked = [rung.key for rung in ladder if rung.stacked and "data_parallel" not in rung.change]
    return ladder.recipe_at(stacked[-1])


def _checked(given: list[tuple[str, str, Any]]) -> dict[str, Any]:
    """(flag, field, value) as {field: value}; `BadInput` for a size that no model has, and a field given twice."""
    checked: dict[str, Any] = {}
    for flag, field, value in given:
        if field in LARGEST and not 1 <= value <= LARGEST[field]:
            raise BadInput(f"{flag} is {value}: it must be a whole number from 1 to {LARGEST[field]:,}")
        if field in checked:
            raise BadInput(f"{flag} is {value}, but {field} was given as {checked[field]} already: give it once")
        checked[field] = value
    return checked


def _typed(changes: list[str]) -> list[tuple[str, Any]]:
    """FIELD=VALUE with the type that the field's default has; `BadInput` names what cannot be read."""
    from speedlab.recipe import Recipe

    plain = Recipe().as_dict()
    typed = []
    for text in changes:
        field, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"--set {text!r} is no FIELD=VALUE, such as precision=bfloat16")
        check_choice("recipe field", field, plain)
        typed.append((field, _as_type(field, value, plain[field])))
    return typed


def _as_type(field: str, value: str, default: Any) -> Any:
    if isinstance(default, bool):
        check_choice(f"value for recipe field {field}:", value, ("true", "false"))
        return value == "true"
    try:
        return type(default)(value)
    except ValueError:
        kind = "whole number" if isinstance(default, int) else "number"
        raise BadInput(f"--set {field}={value}: {field} is a {kind}, such as {default}") from None
