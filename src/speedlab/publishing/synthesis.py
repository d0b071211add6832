"""Tables of the page that puts all changes together: what runs on which card, and the cheat sheet.

The cheat sheet takes what was measured from report rows and computes none of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from speedlab.cards import CARDS
from speedlab.device import adapt
from speedlab.ladder import NINE_STEPS
from speedlab.publishing import formatting as form
from speedlab.publishing.chapter_words import COMMON_CARDS, machine_of
from speedlab.publishing.facts import device_title
from speedlab.publishing.tables import Row, Table

# Each change of ladder nine-steps: how it is written in plain PyTorch, and what to look out for.
SWITCHES: dict[str, tuple[str, str]] = {
    "causal_mask": ("`torch.triu(torch.ones(T, T), 1)` in `forward`", "saves much memory only for long contexts"),
    "tensor_cores": ('`torch.set_float32_matmul_precision("high")`', "float32 matmuls only, capability 8.0"),
    "fused_adamw": ("`AdamW(..., fused=True)`", "compare with the default, not with the loop"),
    "pinned_memory": ("`pin_memory=True`, `.to(device, non_blocking=True)`", "matters for large batches of data"),
    "bfloat16": ("`model.to(torch.bfloat16)`, or `torch.autocast`", "small updates are lost without float32 weights"),
    "native_layers": ('`nn.LayerNorm`, `nn.GELU(approximate="tanh")`', "keep the form of GELU that the model had"),
    "flash_attention": ("`F.scaled_dot_product_attention(q, k, v, is_causal=True)`", "see which kernel it chose"),
    "merged_qkv": ("one `nn.Linear(C, 3 * C)`, then `chunk(3)`", "weights of old checkpoints must be joined"),
    "torch_compile": ("`torch.compile(model, dynamic=False)`", "costs compile time; new shapes compile again"),
    "padded_vocab": ("vocabulary 50,304 instead of 50,257", "never sample an id without a text"),
    "batch_size": ("more sequences in a batch", "another optimization: look at the loss again"),
    "data_parallel": ("`DistributedDataParallel(model)`", "larger steps: look at the loss again"),
}


UNCLEAR = "unclear"  # shorter than the words of other tables: this one is wide


def which_card() -> str:
    """What becomes of each change on common cards, by the rules that the program itself follows."""
    cards = [card for card in CARDS if card.slug in COMMON_CARDS]
    lines = []
    for rung in NINE_STEPS.rungs[1:]:
        cells = []
        for card in cards:
            machine = machine_of(card.slug)
            recipe, substitutions = adapt(NINE_STEPS.recipe_at(rung.key), machine)
            below, _ = adapt(NINE_STEPS.recipe_at(NINE_STEPS.before(rung.key) or rung.key), machine)
            own = [entry for entry in substitutions if entry.field in rung.change]
            cells.append("yes" if not own else "no" if recipe == below else f"as {own[0].used}")
        lines.append((f"[{rung.title}](chapters/{rung.chapter}.ipynb)", *cells))
    return Table("", ("change", *(card.title for card in cards)), tuple(lines)).markdown()


def cheat_sheet(rows: Iterable[Row], device: str) -> str:
    """One row for each change: the line of code, what it gave on the reference device, what to look out for."""
    found = {row["rung"]: row for row in rows if (row["device"], row["ladder"]) == (device, NINE_STEPS.name)}
    lines = []
    for rung in NINE_STEPS.rungs[1:]:
        code, care = SWITCHES[rung.key]
        row = found.get(rung.key)
        lines.append((f"[{rung.title}](chapters/{rung.chapter}.ipynb)", code, _speed(row), _memory(row, found), care))
    columns = ("change", "in plain PyTorch", "tokens/s", "GiB", "look out for")
    notes = (
        f"measured on {device_title(device)}, each on top of those above it; GiB: reserved memory, before → after",
        f"{UNCLEAR}: the difference does not exceed the spread",
    )
    if not found:
        notes = ("not measured yet on the reference card",)
    return Table("", columns, tuple(lines), frozenset(("tokens/s", "GiB")), notes).markdown()


def _speed(row: Row | None) -> str:
    if row is None:
        return form.NOTHING
    if row["speedup_step"] is None:
        return form.NOTHING
    return form.ratio(row["speedup_step"], clear=True) if row["speedup_step_clear"] else UNCLEAR


def _memory(row: Row | None, found: dict[str, Row]) -> str:
    """Reserved memory before and after; nothing where one of them was not measured."""
    before = found.get(row["before"]) if row and row["before"] else None
    if row is None or before is None or not row["peak_reserved_bytes"] or not before["peak_reserved_bytes"]:
        return form.NOTHING
    return f"{form.gib(before['peak_reserved_bytes'])} → {form.gib(row['peak_reserved_bytes'])}"
