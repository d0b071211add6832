"""Claims about shapes: padded rows, batch sizes, context lengths, and what they change beside speed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from speedlab.folklore import lab_steps
from speedlab.folklore.claim import Claim, Verdict
from speedlab.folklore.evidence import Found, calls, from_records, kind_ms, name_ms, with_sentences
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe
from speedlab.records.published import load, published_row
from speedlab.records.record import KERNEL_KINDS, Record

# GEMM kernels whose operands are not aligned carry it in their names.
UNALIGNED = r"_align1\b"
TILE = re.compile(r"_(\d{2,3})x(\d{2,3})(?:_|x\d)")
CLAIMED_TILES = {(8, 8), (16, 16), (32, 32)}
ALIGNMENT_GAIN = (0.10, 0.30)


@from_records(
    "merged_qkv", "torch_compile", "padded_vocab", kernels=True,
    needs="rungs merged_qkv, torch_compile and padded_vocab of ladder nine-steps, with their kernels",
)  # fmt: skip
def what_padding_changes(found: Found) -> Verdict:
    """Look for unaligned matmul kernels before and after padding, and at the kinds of kernels whose time changed."""
    before = found["merged_qkv"]
    exact, padded = found["torch_compile"], found["padded_vocab"]
    unaligned = name_ms(before, UNALIGNED)
    changed = {kind: kind_ms(exact, kind) - kind_ms(padded, kind) for kind in KERNEL_KINDS}
    largest = sorted(changed, key=changed.__getitem__, reverse=True)[:2]
    listed = ", ".join(f"{kind} {form.three_digits(changed[kind])} ms" for kind in largest)
    text = (
        f"{found.where} with the exact vocabulary and no compiler, {form.three_digits(unaligned)} of "
        f"{form.three_digits(kind_ms(before, 'matmul, Tensor Cores'))} ms of matmuls ran in kernels for unaligned "
        f"operands; compiled, {form.count(calls(exact, UNALIGNED))} such launches are left before padding and "
        f"{form.count(calls(padded, UNALIGNED))} after it. What padding saved on top of torch.compile: {listed}."
    )
    needs = "padding without torch.compile, to see the change of kernel by itself"
    if not unaligned or before.ceilings is None:
        return Verdict(verdict="not_decided", evidence=text, needs=needs)
    recipe = Recipe.from_dict(before.recipe)
    rows = recipe.micro_batch * recipe.context_length
    width, ids = recipe.embedding_width, recipe.padded_vocab_size
    moved = calls(before, UNALIGNED) * 2 * (rows * ids + width * ids + rows * width)  # two bytes a number
    traffic = moved / (unaligned / 1e3) / before.ceilings["copy_bytes_per_s"]
    return Verdict(
        verdict="refuted" if traffic < 0.5 and not calls(padded, UNALIGNED) else "confirmed", needs=needs,
        evidence=f"{text} Those unaligned matmuls moved data at {form.percent(traffic)} of this card's copy bandwidth: "
        "bandwidth is not what held them back.",
    )  # fmt: skip


@from_records("padded_vocab", needs="rung padded_vocab of ladder nine-steps, with its kernels", kernels=True)
def tile_sizes(found: Found) -> Verdict:
    """Read the output tiles of the Tensor Core kernels from their names."""
    tiles: dict[tuple[int, int], float] = {}
    for kernel in found["padded_vocab"].kernels:
        match = TILE.search(kernel["name"]) if kernel["kind"] == "matmul, Tensor Cores" else None
        if match:
            tile = int(match[1]), int(match[2])
            tiles[tile] = tiles.get(tile, 0.0) + kernel["time_us"]
    if not tiles:
        return Verdict(verdict="not_decided", needs="a kernel table whose matmul kernels name their tiles")
    ranked = sorted(tiles, key=tiles.__getitem__, reverse=True)
    listed = ", ".join(f"{rows}x{columns}" for rows, columns in ranked[:4])
    return Verdict(
        verdict="refuted" if not CLAIMED_TILES & tiles.keys() else "confirmed",
        evidence=f"{found.where} {len(tiles)} tiles of a thread block in the names of matmul kernels, most time first: "
        f"{listed}.",
    )


@from_records("torch_compile", "padded_vocab", needs="rungs torch_compile and padded_vocab of ladder nine-steps")
def alignment_gain(found: Found) -> Verdict:
    """Set our gain from padding beside the published ones."""
    ratio = found.speedup("torch_compile", "padded_vocab")
    rows = [published_row("nine-steps", rung).tokens_per_s for rung in ("torch_compile", "padded_vocab")]
    steps = [published_row("six-steps", rung).step_ms for rung in ("flash_attention", "padded_vocab")]
    published = [rows[1] / rows[0] - 1, steps[0] / steps[1] - 1, load()["ladder_b_extra"]["t4_padding_gain"]]
    gains = [ratio.value - 1, *published]
    low, high = ALIGNMENT_GAIN
    inside = [low <= gain <= high for gain in gains]
    text = (
        f"{found.where} {form.percent(gains[0])} from padding, all else equal. Published: {form.percent(published[0])} "
        f"(A100, nine steps), {form.percent(published[1])} (A100, six steps), {form.percent(published[2])} (T4)."
    )
    if all(inside) or not any(inside):
        return Verdict(verdict="confirmed" if all(inside) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="card and starting point: the accounts disagree", evidence=text)


@with_sentences(("loss_against_time", lab_steps.batches_to_a_loss), answered=True)
@from_records("padded_vocab", "batch_size", needs="rungs padded_vocab and batch_size of ladder nine-steps")
def correctness(found: Found) -> Verdict:
    """Compare updates per token, and read the contract's verdict of the rung that changes the batch."""
    record = found["batch_size"]
    fewer = record.tokens_per_step / found["padded_vocab"].tokens_per_step
    return Verdict(
        verdict="refuted" if fewer != 1 or record.contract_verdict != "passed" else "confirmed",
        evidence=f"{found.where} the larger batch makes {form.three_digits(fewer)} times fewer updates for the same "
        f"tokens, and the verdict on its losses is: {record.contract_verdict}.",
        needs="loss against tokens and against hours for both batches",
    )


def padded_loss(records: Sequence[Record]) -> Verdict:
    """Compute the loss of uniform logits over the exact and over the padded vocabulary."""
    exact = Recipe()
    padded = exact.but(vocabulary="padded")
    shift = math.log(padded.padded_vocab_size / exact.padded_vocab_size)
    text = (
        f"By formula: ln({padded.padded_vocab_size:,} / {exact.padded_vocab_size:,}) = {shift:.2g} nats at uniform "
        "logits, as long as the loss counts the padded logits."
    )
    if shift == 0:
        return Verdict(verdict="confirmed", evidence=text)
    return Verdict(verdict="depends", on_what="whether the loss leaves the padded logits out", evidence=text)


CLAIMS = (
    Claim(
        key="padding_for_bandwidth", group=17, evidence_kind="records", experiment=what_padding_changes,
        claim="Padding aligns memory to 128 bytes, so that bandwidth reaches its peak.",
        expectation="What changes is which matmul kernel can run, and only the head computes with those rows.",
    ),
    Claim(
        key="tiles_8_16_32", group=17, evidence_kind="records", experiment=tile_sizes,
        claim="Matmuls work in tiles of 8x8, 16x16 or 32x32.",
        expectation="The tiles of a thread block are far larger and not square.",
    ),
    Claim(
        key="batch_power_of_two", group=18, evidence_kind="experiments",
        experiment=lab_steps.batch_power_of_two,
        claim="The batch must be a power of two.", expectation="No: the number of rows is aligned for every batch.",
    ),
    Claim(
        key="alignment_10_to_30_percent", group=18, evidence_kind="records", experiment=alignment_gain,
        figures=("raschka", "six_steps"), claim="Alignment gives 10-30 %.",
        expectation="The published accounts alone spread wider than that.",
    ),
    Claim(
        key="steps_cost_no_correctness", group=19, evidence_kind="experiments", experiment=correctness,
        claim="These steps cost nothing in correctness.",
        expectation="A larger batch makes fewer updates per token: another training.",
    ),
    Claim(
        key="padding_leaves_loss", group=19, evidence_kind="formula", experiment=padded_loss,
        claim="Padding the vocabulary leaves the loss as it is.", expectation="A small shift, unless they are masked.",
    ),
    Claim(
        key="padded_logits_need_masks", group=19, evidence_kind="experiments",
        experiment=lab_steps.padded_logits,
        claim="Padded logits have to be masked, in the loss and when sampling.",
        expectation="Sampling must; the loss soon learns to avoid them.",
    ),
    Claim(
        key="context_or_batch", group=20, evidence_kind="experiments", experiment=lab_steps.context_or_batch,
        claim="A longer context and a larger batch come to the same.",
        expectation="No: attention's share grows with the context.",
    ),
)  # fmt: skip
