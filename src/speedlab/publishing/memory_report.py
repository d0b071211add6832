"""A memory plan as a person reads it, and as JSON: components, the peak, whether it fits a card, what to change."""

from __future__ import annotations

from typing import Any

from speedlab.cards import Card
from speedlab.memory_fit import (
    CONTEXT_BYTES,
    allocator_share,
    fits,
    largest_micro_batch,
    needed_bytes,
    switches,
)
from speedlab.memory_plan import not_modelled, plan_memory, total_parameters
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe

# What each component holds, in the order of a plan's parts.
HOLDS = {
    "weights": "as the matmuls or the optimizer read them",
    "gradients": "from the backward pass until the update",
    "optimizer": "two moments, masters where there are any",
    "buffers": "stored causal masks",
    "activations": "kept for the backward pass",
    "logits": "log-probabilities and two gradients",
    "workspace": "cuBLAS, and what comes and goes",
}


def memory_values(recipe: Recipe, card: Card, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Everything that the report says, as plain values in bytes."""
    plan = plan_memory(recipe, capability=card.capability)
    return {
        "recipe": recipe.as_dict(),
        "parameters": total_parameters(recipe),
        **plan.as_dict(),
        "card": {"slug": card.slug, "title": card.title, "memory_bytes": round(card.memory_gib * 2**30)},
        "reserve": {"context_bytes": CONTEXT_BYTES, "allocator_share": allocator_share(recipe)},
        "needed_bytes": needed_bytes(recipe, card),
        "fits": fits(recipe, card),
        "largest_micro_batch": largest_micro_batch(recipe, card),
        "switches": [
            {
                "change": step.change, "cost": step.cost, "saved_bytes": step.saved_bytes,
                "peak_allocated_bytes": step.peak_allocated_bytes, "fits": step.fits,
            }
            for step in (switches(recipe, card) if not fits(recipe, card) else [])
        ],
        "not_modelled": list(not_modelled(recipe)),
        "notes": list(notes),
    }  # fmt: skip


def memory_report(recipe: Recipe, card: Card, notes: tuple[str, ...] = ()) -> str:
    """The same as text."""
    values = memory_values(recipe, card, notes)
    lines = [
        f"{recipe.num_layers} layers, {recipe.embedding_width} wide, {recipe.num_heads} heads, context "
        f"{recipe.context_length:,}, {values['parameters'] / 1e6:,.0f} M parameters, micro-batch {recipe.micro_batch}: "
        "by formula, nothing is run",
        "",
        f"{'GiB':<14}{'largest':>9}{'at the peak':>13}  holds",
    ]
    for name, amount in values["parts"].items():
        lines.append(f"{name:<14}{_gib(values['whole'][name]):>9}{_gib(amount):>13}  {HOLDS[name]}")
    lines += [
        f"{'peak':<14}{'':>9}{_gib(values['peak_allocated_bytes']):>13}  allocated, at: {values['peak_at']}",
        "",
        "activations: "
        + ", ".join(f"{name} {_gib(amount)}" for name, amount in values["activations"].items() if amount >= 2**20),
        "",
        _verdict(values, card),
    ]
    if values["largest_micro_batch"]:
        lines.append(f"largest micro-batch that fits: {values['largest_micro_batch']:,}")
    else:
        lines.append("no micro-batch fits: a single sequence needs more than the card has")
    lines += [_switch_line(step) for step in values["switches"]]
    if values["not_modelled"]:
        lines.append(f"not in the formulas: {', '.join(values['not_modelled'])}")
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def _verdict(values: dict[str, Any], card: Card) -> str:
    need, has = _gib(values["needed_bytes"]), _gib(values["card"]["memory_bytes"])
    share = form.percent(values["reserve"]["allocator_share"])
    reserve = f"{share} for the allocator's unused blocks and {_gib(CONTEXT_BYTES)} for CUDA"
    return f"{card.title}, {has} GiB: {'fits' if values['fits'] else 'does not fit'}, with {need} GiB ({reserve})"


def _switch_line(step: dict[str, Any]) -> str:
    change = ", ".join(f"{name} {value}" for name, value in step["change"].items())
    then = f"then {_gib(step['peak_allocated_bytes'])}{', which fits' if step['fits'] else ''}"
    return f"  {change}: saves {_gib(step['saved_bytes'])}, {then} ({step['cost']})"


def _gib(amount: float) -> str:
    return form.gib(amount) if amount else "0"
