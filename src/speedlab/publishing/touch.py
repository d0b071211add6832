"""Pieces of the book that can be touched: their data as JSON, the section around it, and a table that says the same.

The scripts are `book/_static/*.js`; this module knows their names and what they read, not how they draw. Everything is
computed or read from records when the book is built, and nothing is fetched by a page. A notebook says where a piece
stands by a comment, `<!-- touch: attention-stepper -->`, which other readers of the notebook do not see.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from speedlab import memory_fit, memory_plan
from speedlab.cards import CARDS
from speedlab.errors import check_choice
from speedlab.ladder import NINE_STEPS
from speedlab.number_formats import FORMATS, round_to
from speedlab.publishing.diagrams_attention import (
    EXAMPLE_SCORES,
    EXAMPLE_TILE,
    EXAMPLE_VALUES,
    online_softmax_steps,
)
from speedlab.recipe import CHOICES, VOCABULARY_MULTIPLE, Recipe

MARK = re.compile(r"^<!-- touch: ([a-z-]+) -->$", flags=re.MULTILINE)

# Numbers to try, and why.
NUMBERS = (
    ("0.1", "no format holds it"), ("1.001", "lost in bfloat16"), ("2049", "a whole number that float16 rounds"),
    ("65520", "too large for float16"), ("449", "rounded down in float8_e4m3"), ("1e-8", "too small for float16"),
    ("3e-5", "below float16's normal range"),
)  # fmt: skip

# Fields of a recipe that the calculator lets a reader choose; the values are those that the formulas know.
CALCULATOR_FIELDS = {
    "precision": "Number format", "attention": "Attention", "layers": "LayerNorm and GELU", "compile": "torch.compile",
    "causal_mask": "Causal mask", "qkv_projection": "Query, key, value", "optimizer": "AdamW",
    "vocabulary": "Rows of the tables", "output_head": "Output head", "checkpointing": "Checkpointing",
}  # fmt: skip
CALCULATOR_START = "merged_qkv"


def piece(name: str) -> str:
    """The MyST text of one piece that depends on no record: its section and the same as a table.

    `BadInput` for a name that is none.
    """
    check_choice("piece to touch", name, PIECES)
    return PIECES[name]()


def insert_pieces(notebook: Any) -> None:
    """Put pieces where the markdown cells of a notebook ask for them."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = MARK.sub(lambda found: piece(found.group(1)), cell.source)


def section(name: str, title: str, data: dict[str, Any], *, otherwise: str) -> str:
    """The section that a script of this name takes over. otherwise: where the same numbers stand without scripts."""
    # Inside <script> nothing may look like a tag, and an EPUB is XML: all three signs become JSON's own escapes.
    words = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        words = words.replace(sign, f"\\u{ord(sign):04x}")
    return (
        "```{raw} html\n"
        f'<section class="touch" data-touch="{name}" aria-label="{title}">\n'
        f'<p class="touch-title">{title}</p>\n'
        f'<p class="touch-without-script">This piece needs scripts. {otherwise}</p>\n'
        f'<script type="application/json">{words}</script>\n'
        "</section>\n"
        "```\n"
    )


def attention_data() -> dict[str, Any]:
    """The example of the diagram, walked by the package's tiled attention with several sizes of tiles."""

    def walk(tile: int) -> list[dict[str, Any]]:
        steps = [step.__dict__ for step in online_softmax_steps(EXAMPLE_SCORES, EXAMPLE_VALUES, tile)]
        return [
            {name: None if value == -math.inf else value for name, value in step.items()} for step in steps
        ]  # JSON has no infinity: the maximum of nothing is null

    tiles = [tile for tile in range(1, len(EXAMPLE_SCORES) + 1) if len(EXAMPLE_SCORES) % tile == 0]
    return {
        "scores": EXAMPLE_SCORES, "values": EXAMPLE_VALUES, "tile": EXAMPLE_TILE,
        "steps": {str(tile): walk(tile) for tile in tiles},
    }  # fmt: skip


def number_format_data() -> dict[str, Any]:
    return {
        "value": NUMBERS[0][0],
        "examples": NUMBERS,
        "formats": [
            {name: getattr(form, name) for name in ("name", "exponent_bits", "fraction_bits", "infinity")}
            for form in FORMATS.values()
        ],
    }


def memory_data() -> dict[str, Any]:
    """What the calculator's formulas read besides a recipe, recipes to start from, and the package's plan of each."""
    presets = []
    for rung in NINE_STEPS.rungs:
        recipe = NINE_STEPS.recipe_at(rung.key)
        plan = memory_plan.plan_memory(recipe, capability=CARDS[0].capability)
        presets.append(
            {"name": rung.title, "recipe": _modelled(recipe), "peak_bytes": plan.peak_allocated_bytes,
             "peak_at": plan.peak_at}
        )  # fmt: skip
    return {
        "components": memory_plan.COMPONENTS, "presets": presets, "preset": NINE_STEPS.keys.index(CALCULATOR_START),
        "known": memory_constants(),
        "choices": [
            {"field": field, "label": label, "values": _known_values(field)}
            for field, label in CALCULATOR_FIELDS.items()
        ],
        "cards": [
            {"title": card.title, "capability": card.capability, "memory_gib": card.memory_gib,
             "bfloat16": "bfloat16" in card.flops_per_s}
            for card in CARDS
        ],
    }  # fmt: skip


def memory_constants() -> dict[str, Any]:
    """Sizes that `memory_plan.js` takes from the package instead of writing them again."""
    return {
        "vocabulary_multiple": VOCABULARY_MULTIPLE,
        "workspace_threads": memory_plan.WORKSPACE_THREADS,
        "large_workspace": memory_plan.LARGE_WORKSPACE,
        "small_workspace": memory_plan.SMALL_WORKSPACE,
        "smallest_block": memory_plan.SMALLEST_BLOCK,
        "context_bytes": memory_fit.CONTEXT_BYTES,
        "allocator_share": memory_fit.ALLOCATOR_SHARE,
        "autocast_share": memory_fit.AUTOCAST_SHARE,
        "graphs_share": memory_fit.GRAPHS_SHARE,
        "cuda_graphs": memory_plan.CUDA_GRAPHS,
        "largest_micro_batch": memory_fit.LARGEST_MICRO_BATCH,
    }


def _modelled(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.as_dict().items() if name in memory_plan.MODELLED}


def _known_values(field: str) -> list[Any]:
    known = {"optimizer": memory_plan.KNOWN_OPTIMIZERS, "checkpointing": memory_plan.KNOWN_CHECKPOINTING}
    return [value for value in CHOICES[field] if value in known.get(field, CHOICES[field])]


@lru_cache(maxsize=1)
def _attention() -> str:
    data = attention_data()
    rows = [
        (
            str(number), ", ".join(f"{score:g}" for score in step["scores"]), f"{step['new_max']:g}",
            "" if step["old_max"] is None else f"{step['rescale']:.4f}", f"{step['new_sum']:.4f}",
            f"{step['new_output']:.4f}", f"{step['new_output'] / step['new_sum']:.4f}",
        )
        for number, step in enumerate(data["steps"][str(EXAMPLE_TILE)], start=1)
    ]  # fmt: skip
    columns = ("tile", "scores", "maximum m", "old sums times", "sum l", "output o", "o / l")
    return section(
        "attention-stepper", "FlashAttention, one tile at a time", data,
        otherwise="The table below it has the numbers for tiles of two keys.",
    ) + _twin(f"The walk with tiles of {EXAMPLE_TILE} keys as a table", columns, rows)  # fmt: skip


@lru_cache(maxsize=1)
def _number_formats() -> str:
    rows = [
        (value, *(f"{round_to(float(value), form):.9g}" for form in FORMATS.values()), why) for value, why in NUMBERS
    ]
    return section(
        "number-formats", "What does a format make of a number?", number_format_data(),
        otherwise="The table below it shows what each format makes of a few numbers.",
    ) + _twin("A few numbers in every format, as a table", ("number", *FORMATS, "why"), rows)  # fmt: skip


@lru_cache(maxsize=1)
def _memory() -> str:
    data = memory_data()
    rows = [(item["name"], f"{item['peak_bytes'] / 2**30:.2f}", item["peak_at"]) for item in data["presets"]]
    return section(
        "memory-calculator", "How much memory does a step need?", data,
        otherwise="The table below it has the plans of ladder nine-steps; the command speedlab memory makes any other.",
    ) + _twin(
        f"The plans of ladder nine-steps on an {CARDS[0].title}, as a table",
        ("recipe of", "GiB at the peak", "the peak is at"), rows,
    )  # fmt: skip


def _twin(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """The same as a table, folded."""
    lines = [columns, ("---",) * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"\n::::{{dropdown}} {title}\n\n{table}\n\n::::\n"


PIECES: dict[str, Callable[[], str]] = {
    "attention-stepper": _attention,
    "number-formats": _number_formats,
    "memory-calculator": _memory,
}
