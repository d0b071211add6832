"""Claims that sum up a whole ladder."""

from __future__ import annotations

import math
from collections.abc import Sequence

from speedlab.folklore import lab_steps
from speedlab.folklore.claim import Claim, Verdict
from speedlab.folklore.evidence import Found, find, from_records
from speedlab.ladder import NINE_STEPS
from speedlab.publishing import formatting as form
from speedlab.records import stats
from speedlab.records.attribution import LAYERS, attribute
from speedlab.records.published import load, published_row
from speedlab.records.record import Record
from speedlab.records.rows import report_rows

THREE = (("causal_mask", "tensor_cores"), ("pinned_memory", "bfloat16"), ("native_layers", "flash_attention"))
TOP = "batch_size"
LAYER = next(layer for layer, keys in LAYERS.items() if "flash_attention" in keys)
CLAIMED_SHARE, WITHIN = 0.80, 0.05
COMPILE, FLASH, NEAR = 1.2, 1.7, 0.1
HALF, ABOUT_HALF = -0.49, 0.05


def three_of_all(records: Sequence[Record]) -> Verdict:
    """Count the part of TF32, bfloat16 and FlashAttention by added tokens/s, by logarithms, and in other orders."""
    found = find(records, "baseline", *(rung for pair in THREE for rung in pair), TOP)
    if found is None:
        return Verdict(verdict="not_decided", needs="all of ladder nine-steps on one GPU")
    ours = _shares({rung: stats.tokens_per_s(record).median for rung, record in found.records.items()})
    rows = {rung: published_row("nine-steps", rung) for rung in found.records}
    theirs = {rung: row.tokens_per_s for rung, row in rows.items() if row is not None}
    theirs["flash_attention"] = published_row("nine-steps", "merged_qkv").tokens_per_s
    published = _shares(theirs)
    others = _shares_in_other_orders(records, found[TOP].device)
    listed = "".join(f" By logarithms along {ladder}: {form.percent(share)}." for ladder, share in others.items())
    text = (
        f"{found.where} {form.percent(ours[0])} by added tokens/s, {form.percent(ours[1])} by logarithms.{listed} "
        f"Published, A100: {form.percent(published[0])} and {form.percent(published[1])}."
    )
    needs = "each change alone from the baseline, each removed from the top, and the order of ladder six-steps"
    held = [abs(share - CLAIMED_SHARE) <= WITHIN for share in (*ours, *others.values())]
    if all(held) or not any(held):
        return Verdict(verdict="confirmed" if all(held) else "refuted", evidence=text, needs=needs)
    return Verdict(verdict="depends", on_what="the order, and how shares are counted", evidence=text, needs=needs)


def compile_accounts(records: Sequence[Record]) -> Verdict:
    """Set our gains by torch.compile beside those of the published accounts."""
    rows = [published_row("nine-steps", rung).tokens_per_s for rung in ("merged_qkv", "torch_compile")]
    published = {
        "A100, nine steps": rows[1] / rows[0],
        "A100, six steps, max-autotune": _step_ratio("bfloat16_autocast", "torch_compile_max_autotune"),
        "T4": 1 + load()["ladder_b_extra"]["t4_compile_gain"],
    }
    pairs = {"nine-steps": ("merged_qkv", "torch_compile"), "six-steps": ("bfloat16_autocast", "torch_compile")}
    return _accounts(records, pairs, published, COMPILE, "where one starts: how much is left to fuse, and the mode")


def flash_accounts(records: Sequence[Record]) -> Verdict:
    """Set our gains by fused attention beside those of the published accounts."""
    rows = [published_row("nine-steps", rung).tokens_per_s for rung in ("native_layers", "merged_qkv")]
    published = {
        "A100, nine steps, q/k/v joined too": rows[1] / rows[0],
        "A100, six steps": _step_ratio("torch_compile_max_autotune", "flash_attention"),
    }
    pairs = {"nine-steps": ("native_layers", "flash_attention"), "six-steps": ("torch_compile", "flash_attention")}
    return _accounts(records, pairs, published, FLASH, "where one starts: torch.compile has fused some of it before")


@from_records(
    "native_layers", "flash_attention", memory=True,
    needs="rungs native_layers and flash_attention of ladder nine-steps",
)  # fmt: skip
def flash_memory(found: Found) -> Verdict:
    """Divide reserved memory after fused attention by that before it, here and in the published accounts."""
    before, after = (found[rung].peak_reserved_bytes for rung in ("native_layers", "flash_attention"))
    rows = [published_row("nine-steps", rung).reserved_gib for rung in ("native_layers", "merged_qkv")]
    changes = [after / before - 1, rows[1] / rows[0] - 1, load()["ladder_b_extra"]["a100_flash_memory_change"]]
    text = (
        f"{found.where} {form.percent(changes[0])}. Published, A100: {form.percent(changes[1])} (nine steps), "
        f"{form.percent(changes[2])} (six steps)."
    )
    held = [abs(change - HALF) <= ABOUT_HALF for change in changes]
    if all(held) or not any(held):
        return Verdict(verdict="confirmed" if all(held) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="the share that scores have in the memory before", evidence=text)


def _shares(rates: dict[str, float]) -> tuple[float, float]:
    """The part of three changes in the way from baseline to top: (by added tokens/s, by logarithms)."""
    added = sum(rates[after] - rates[before] for before, after in THREE)
    logs = sum(math.log(rates[after] / rates[before]) for before, after in THREE)
    return added / (rates[TOP] - rates["baseline"]), logs / math.log(rates[TOP] / rates["baseline"])


def _step_ratio(before: str, after: str) -> float:
    one, two = (published_row("six-steps", rung).step_ms for rung in (before, after))
    return one / two


def _shares_in_other_orders(records: Sequence[Record], device: str) -> dict[str, float]:
    """The part of the three changes by logarithms along the other ladders that this device has climbed."""
    shares = {}
    for one in attribute(report_rows(records)):
        layer = next(row for row in one.layers if row["layer"] == LAYER)
        if one.device == device:
            shares = {name: share for name, share in layer["orders"].items() if name != NINE_STEPS.name}
    return shares


def _accounts(
    records: Sequence[Record],
    pairs: dict[str, tuple[str, str]],
    published: dict[str, float],
    claimed: float,
    on_what: str,
) -> Verdict:
    """The verdict on one ratio of which there are several accounts; pairs: ladder -> rungs before and after."""
    founds = {ladder: find(records, *rungs, ladder=ladder) for ladder, rungs in pairs.items()}
    missing = [f"rungs {' and '.join(pairs[ladder])} of ladder {ladder}" for ladder in pairs if founds[ladder] is None]
    ours = {found.where: found.speedup(*pairs[ladder]).value for ladder, found in founds.items() if found is not None}
    needs = "; ".join(missing) or None
    if not ours:
        return Verdict(verdict="not_decided", needs=needs)
    measured = " ".join(f"{where} {form.three_digits(gain)}x." for where, gain in ours.items())
    listed = ", ".join(f"{form.three_digits(gain)}x ({where})" for where, gain in published.items())
    text = f"{measured} Published: {listed}."
    held = [abs(gain / claimed - 1) <= NEAR for gain in (*ours.values(), *published.values())]
    if all(held) or not any(held):
        return Verdict(verdict="confirmed" if all(held) else "refuted", evidence=text, needs=needs)
    return Verdict(verdict="depends", on_what=on_what, evidence=text, needs=needs)


CLAIMS = (
    Claim(
        key="three_gave_80_percent", group=30, evidence_kind="records", experiment=three_of_all, figures=("raschka",),
        claim="TF32, bfloat16 and FlashAttention gave 80 % of the gain, fusion 15, alignment 5.",
        expectation="It depends on how shares are counted, and on the order.",
    ),
    Claim(
        key="compile_gives_1_2x", group=31, evidence_kind="records", experiment=compile_accounts,
        figures=("raschka", "six_steps"), claim="torch.compile gives 1.2x.",
        expectation="The accounts disagree, because they start from different programs.",
    ),
    Claim(
        key="flash_gives_1_7x", group=31, evidence_kind="records", experiment=flash_accounts,
        figures=("raschka", "six_steps"), claim="FlashAttention gives 1.7x.",
        expectation="Less where torch.compile came first.",
    ),
    Claim(
        key="flash_halves_memory", group=31, evidence_kind="records", experiment=flash_memory,
        figures=("raschka", "six_steps"), claim="FlashAttention halves the memory.",
        expectation="The accounts disagree: what else is in memory decides.",
    ),
    Claim(
        key="tokens_per_s_matter", group=32, evidence_kind="experiments", experiment=lab_steps.tokens_or_loss,
        claim="Tokens per second is what matters.",
        expectation="Hours to a loss matter, and batch and GPUs change the number of updates.",
    ),
)  # fmt: skip
