"""One exercise for each chapter that needs no GPU, its answer folded: worked out here from sizes, never typed.

It knows formulas and the model's shape. It reads no record: an answer must be the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from speedlab.cards import CARDS
from speedlab.ladder import NINE_STEPS
from speedlab.number_formats import FORMATS, round_to
from speedlab.records.published import published_row
from speedlab.work import attention_flops_per_token, matmul_parameters

MIB, GIB = 2**20, 2**30
RECIPE = NINE_STEPS.start
TOKENS = RECIPE.micro_batch * RECIPE.context_length
# Tokens per second that others published for chapter 10's question.
ONE_GPU, FOUR_GPUS = (published_row("nine-steps", rung).tokens_per_s for rung in ("batch_size", "data_parallel"))


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A question to a chapter, and a function that works its answer out, as Markdown."""

    chapter: str
    title: str
    question: str
    answer: Callable[[], str]


def mask_against_weights() -> str:
    """Context at which one layer's stored mask has as many numbers as its matmuls have weights."""
    weights = 12 * RECIPE.embedding_width**2
    context = math.isqrt(weights)
    return (
        f"A mask of float32 numbers has `context * context` of them, the layer `12 * 768 * 768 = {weights:,}` weights. "
        f"They are equal at its root: the mask is larger from a context of **{context + 1:,}** tokens on."
    )


def tf32_rounding() -> str:
    """What TF32 makes of 1 + 2**-11 and of 1 + 3 * 2**-11, and the largest relative error."""
    fraction = FORMATS["TF32"].fraction_bits
    first, second = (round_to(1 + k * 2.0 ** -(fraction + 1), FORMATS["TF32"]) for k in (1, 3))
    return (
        f"TF32 keeps {fraction} fraction bits, so between 1 and 2 its numbers are 1/{2**fraction:,} apart. Both "
        f"numbers lie half way between two of them, and ties go to the neighbour whose last bit is 0: the first "
        f"becomes **{first:g}**, the second **1 + {round((second - 1) * 2**fraction)}/{2**fraction:,}**. A half step "
        f"is the worst that can happen, at most one part in **{2 ** (fraction + 1):,}**."
    )


def optimizer_share() -> str:
    """Tokens at which matmuls and a fused float32 update take the same time on an A100 40 GB in TF32."""
    card = next(card for card in CARDS if card.slug == "nvidia-a100-40gb")
    tokens = 7 * 4 / card.bytes_per_s * card.flops_per_s["tf32"] / 6
    return (
        "The matmuls take `6 * weights * tokens / rate` seconds, the update `7 * 4 * weights / bandwidth`. The weights "
        "stand on both sides and drop out: `tokens = 28 * rate / (6 * bandwidth)`. With the data sheet's "
        f"{card.flops_per_s['tf32'] / 1e12:g} TFLOP/s and {card.bytes_per_s / 1e9:,.0f} GB/s that is **{tokens:,.0f} "
        f"tokens**. A step of this book has {TOKENS:,}; by the same rates the update is "
        f"{tokens / (tokens + TOKENS):.1%} of both together."
    )


def one_per_cent_of_a_step() -> str:
    """Bytes that PCIe 4.0 x16 carries in one millisecond, as token ids and as images."""
    link, share_s = 31.5e9, 1e-3
    size = link * share_s
    image = 3 * 224 * 224 * 4
    return (
        f"One per cent is 1 ms, in which {link / 1e9:g} GB/s carry {size / 1e6:.1f} MB. That is **{size / 8 / 1e6:.1f} "
        f"million ids** of 8 bytes, or **{size / image:.0f} float32 images** of 3 x 224 x 224. A batch of this book, "
        f"inputs and targets, has {2 * TOKENS:,} ids."
    )


def smallest_update() -> str:
    """The smallest changes of a bfloat16 weight of 1 that move it, down and up."""
    bits = FORMATS["bfloat16"].fraction_bits
    down, up = 2.0 ** -(bits + 2), 2.0 ** -(bits + 1)
    return (
        f"Below 1 the neighbours are 1/{2 ** (bits + 1)} apart, above 1 they are 1/{2**bits} apart. An update must "
        f"pass half of that: more than **1/{round(1 / down)}** to move the weight down, more than "
        f"**1/{round(1 / up)}** to move it up. At exactly half the tie goes to 1, whose last bit is 0. A learning "
        f"rate of 0.0005 moves it in neither direction."
    )


def gelu_tensors() -> str:
    """Bytes that a written-out GELU keeps for the backward pass more than the single kernel, by number format."""
    saved = [3 * RECIPE.num_layers * TOKENS * 4 * RECIPE.embedding_width * size / GIB for size in (4, 2)]
    return (
        "Four full-width tensors are kept instead of one, three too many in each of the twelve blocks: `3 * 12 * "
        f"{TOKENS:,} * 3,072` numbers. In float32 that is **{saved[0]:.2f} GiB**, in bfloat16 **{saved[1]:.2f} GiB**."
    )


def skipped_tiles() -> str:
    """Share of attention's tiles that a causal kernel visits, for two numbers of tiles a side."""
    shares = [(n + 1) / (2 * n) for n in (8, 64)]
    return (
        f"A context of 1,024 has 8 tiles of 128 a side, so `(8 + 1) / 16 = ` **{shares[0]:.2%}** of the tiles are "
        f"left; a context of 8,192 has 64, and **{shares[1]:.2%}** are left. The tiles on the diagonal are computed "
        f"whole and masked inside, which is why it is never quite one half."
    )


def fused_passes() -> str:
    """Traffic between two matmuls of a block, separate and fused, in passes and in bytes."""
    separate, fused = 2.5 + 3 + 2, 4 + 0.5
    size = TOKENS * RECIPE.embedding_width * 2
    return (
        f"Separate kernels make `2.5 + 3 + 2 = {separate:g}` passes, a fused one 4, and half a pass for the dropout "
        f"mask: {fused:g}. A pass is {size / MIB:g} MiB, so **{(separate - fused) * size / MIB:g} MiB** are saved "
        f"each time, or {1 - fused / separate:.0%} of the traffic. Two such places in each of twelve blocks save "
        f"{(separate - fused) * size * 24 / MIB:,.0f} MiB in a forward pass."
    )


def smallest_vocabulary() -> str:
    """The smallest aligned vocabulary, its columns against a multiple of 64, and the loss that is added at the "
    "start."""
    vocabulary = RECIPE.vocab_size
    aligned, padded = (-(-vocabulary // multiple) * multiple for multiple in (8, 64))
    return (
        f"16 bytes are 8 numbers of 2 bytes, so the vocabulary must be a multiple of 8: **{aligned:,}**, which is "
        f"{aligned - vocabulary} columns more than {vocabulary:,} and {padded - aligned} fewer than {padded:,}. The "
        f"loss of an untrained model over all ids would start higher by `ln({aligned:,} / {vocabulary:,})`, "
        f"**{math.log(aligned / vocabulary):.6f}**."
    )


def evaluation_inside() -> str:
    """The evaluation that would explain the published figures of chapter 10 if scaling were perfect, in seconds."""
    tokens = 32 * RECIPE.context_length
    interval_one, interval_four = tokens / ONE_GPU, 4 * tokens / FOUR_GPUS
    evaluation = (interval_four - interval_one) / (1 / 5 - 1 / 10)
    step = interval_one - evaluation / 10
    return (
        f"One card takes `32 * 1,024 / {ONE_GPU:,.0f} = {interval_one:.4f}` s for `step + evaluation / 10`, four take "
        f"`4 * 32 * 1,024 / {FOUR_GPUS:,.0f} = {interval_four:.4f}` s for `step + evaluation / 5`. The difference is "
        f"`evaluation / 10`, so an evaluation takes **{evaluation:.2f} s** and a step **{step:.3f} s**: an evaluation "
        f"as long as {evaluation / step:.1f} steps. Whether that is plausible depends on how many batches it reads; "
        f"the published account does not decide it. Both figures are published, not measured by us."
    )


def attention_share() -> str:
    """Share of attention in the FLOPs of a token at two contexts."""
    dense = 6 * matmul_parameters(RECIPE)
    shares = []
    for context in (RECIPE.context_length, 8 * RECIPE.context_length):
        attention = attention_flops_per_token(RECIPE.but(context_length=context), causal=False)
        shares.append(attention / (dense + attention))
    return (
        f"The dense part is `6 * N`, the attention part `12 * layers * width * context`. At 1,024 tokens attention is "
        f"**{shares[0]:.1%}** of the sum, at 8,192 it is **{shares[1]:.1%}**. The batch is in neither term."
    )


EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        chapter="01_causal_mask", title="When the mask outgrows the layer", answer=mask_against_weights,
        question="A layer has `12 * width * width` weights in its matmuls, and the width is 768. From which context on "
        "does its stored mask hold more numbers than that?",
    ),
    Exercise(
        chapter="02_tensor_cores", title="What TF32 makes of a number", answer=tf32_rounding,
        question="Suppose that a number is rounded to the nearest one of TF32, ties to the even one. What becomes of "
        "`1 + 1/2048` and of `1 + 3/2048`? How large can the relative error of a single number be?",
    ),
    Exercise(
        chapter="03_fused_adamw", title="When the optimizer takes half the step", answer=optimizer_share,
        question="Matmuls take `6 * weights * tokens` FLOPs, a fused float32 update moves `7 * 4 * weights` bytes. "
        "Take the TF32 rate and the bandwidth of an A100 with 40 GB from its data sheet. At how many tokens for each "
        "update do both take the same time?",
    ),
    Exercise(
        chapter="04_pinned_memory", title="A batch that is worth a thought", answer=one_per_cent_of_a_step,
        question="A step takes 100 ms. How large must a batch be until its transfer over PCIe 4.0 x16 (31.5 GB/s) "
        "takes one per cent of that? How many token ids are that, how many images?",
    ),
    Exercise(
        chapter="05_bfloat16", title="The smallest update that counts", answer=smallest_update,
        question="A bfloat16 weight is 1.0. How large must an update be to move it down, and how large to move it up? "
        "Why are the two not the same?",
    ),
    Exercise(
        chapter="06_native_layers", title="What autograd keeps of a GELU", answer=gelu_tensors,
        question="A written-out GELU keeps four tensors of four times the width for the backward pass, the single "
        "kernel one. How much memory is that in all, for 8 x 1,024 tokens, in float32 and in bfloat16?",
    ),
    Exercise(
        chapter="07_flash_attention", title="How many tiles are skipped", answer=skipped_tiles,
        question="Tiles are 128 x 128. Which share of them does a causal kernel visit for a context of 1,024, and "
        "which for 8,192?",
    ),
    Exercise(
        chapter="08_torch_compile", title="Passes saved by one fused kernel", answer=fused_passes,
        question="Dropout, addition and LayerNorm stand between two matmuls. Count the passes of the separate kernels "
        "and of one fused kernel that keeps its mask. How many bytes are saved, for 8 x 1,024 tokens of 768 bfloat16 "
        "numbers?",
    ),
    Exercise(
        chapter="09_aligned_shapes", title="The smallest padding", answer=smallest_vocabulary,
        question="Which is the smallest vocabulary from 50,257 on whose bfloat16 rows are multiples of 16 bytes? By "
        "how much would the loss of an untrained model be higher, if all its ids were counted?",
    ),
    Exercise(
        chapter="10_data_parallel", title="What an evaluation can hide", answer=evaluation_inside,
        question=f"Published are {ONE_GPU:,.0f} tokens a second for one A100 and {FOUR_GPUS:,.0f} for four, 32 x 1,024 "
        "tokens on each GPU. The clock includes an evaluation every 10 steps on one GPU and every 5 on four. Suppose "
        "that scaling was perfect. How long is a step then, and how long an evaluation?",
    ),
    Exercise(
        chapter="method", title="Where attention begins to count", answer=attention_share,
        question="By the formula for FLOPs on this page: which share of a token's arithmetic is attention at a "
        "context of 1,024, and which at 8,192? Does the batch change it?",
    ),
)  # fmt: skip


def exercises_section() -> str:
    """All exercises as Markdown, each with its answer folded."""
    parts = []
    for exercise in EXERCISES:
        page = exercise.chapter if exercise.chapter == "method" else f"chapters/{exercise.chapter}"
        where = "How we measure" if exercise.chapter == "method" else f"Chapter {int(exercise.chapter[:2])}"
        link = f"[{where}]({page}.md)" if exercise.chapter == "method" else f"{{doc}}`{where} <{page}>`"
        parts.append(
            f"## {exercise.title}\n\n{link}. {exercise.question}\n\n"
            f":::{{dropdown}} Answer to: {exercise.title}\n{exercise.answer()}\n:::\n"
        )
    return "\n".join(parts)
