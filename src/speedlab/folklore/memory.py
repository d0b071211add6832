"""Claims about levers of memory: checkpointing, accumulation, the optimizer's state, the loss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from speedlab.folklore.claim import Claim, Verdict, pending
from speedlab.folklore.evidence import Found, from_records, kind_ms
from speedlab.folklore.experiments import measured_words
from speedlab.folklore.formulas import BYTES, GB, activation_bytes
from speedlab.folklore.memory_runs import (
    accumulation_measured,
    groups_measured,
    non_reentrant,
    per_layer,
    selective_measured,
    thirty_percent,
)
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe
from speedlab.records.record import Record

# What a block keeps for its backward pass, in full-width tensors, with native layers and fused attention: two
# normalized inputs, q, k, v, the attention output, the residual, and four widths before and after GELU.
KEPT_WIDTHS = 2 + 3 + 1 + 1 + 4 + 4
SEVEN_BILLION = 7e9


def group_sizes(records: Sequence[Record]) -> Verdict:
    """Count the full-width tensors kept when groups of 1 to 12 blocks are checkpointed together."""
    layers = Recipe().num_layers
    sizes = [size for size in range(1, layers + 1) if layers % size == 0]
    kept = [layers // size + size * KEPT_WIDTHS for size in sizes]
    listed = ", ".join(f"{tensors} at {size}" for size, tensors in zip(sizes, kept, strict=True))
    saves_more = all(after < before for before, after in pairwise(kept))
    return Verdict(
        verdict="confirmed" if saves_more else "refuted",
        evidence=f"By formula, full-width tensors kept for {layers} blocks by blocks per group: {listed}. Each block "
        "is run again once, whatever the group." + measured_words("checkpointing", groups_measured),
        needs="time and memory over these group sizes, compiled",
    )


def layer_norm_bytes(records: Sequence[Record]) -> Verdict:
    """Compare what a LayerNorm keeps, and what it takes to make it again, with a matmul."""
    recipe = Recipe()
    norm, attention = (activation_bytes(recipe, "bfloat16") for _ in ("LayerNorm", "attention output"))
    norms = 2 * recipe.num_layers + 1
    per_element, matmul = 8, 2 * recipe.embedding_width  # eight operations written out; a dot product of width C
    return Verdict(
        verdict="refuted" if norm >= attention else "confirmed",
        evidence=f"By formula, batch {recipe.micro_batch}, bfloat16: a LayerNorm keeps "
        f"{form.three_digits(norm / 2**20)} MiB, as much as any full-width tensor, and {norms} of them "
        f"{form.three_digits(norms * norm / 2**20)} MiB. Making one again takes some {per_element} operations per "
        f"element, a matmul at least {matmul:,}." + measured_words("checkpointing", selective_measured),
        needs="a selective policy that keeps matmul and attention outputs and recomputes the rest, timed",
    )


@from_records("padded_vocab", needs="rung padded_vocab of ladder nine-steps, with its kernels", kernels=True)
def levers_of_speed(found: Found) -> Verdict:
    """Bound what accumulation and loading can gain: a step without optimizer and without any pause between kernels."""
    record = found["padded_vocab"]
    step_ms, busy_ms = found.step_ms("padded_vocab"), kind_ms(record)
    best_ms = min(step_ms, busy_ms) - kind_ms(record, "optimizer")
    bound = step_ms / best_ms
    return Verdict(
        verdict="refuted" if bound < 2 else "not_decided",
        evidence=f"{found.where} if accumulation made the optimizer free, and loading left no pause between kernels, "
        f"a step would be {form.three_digits(bound)}x faster at most. Checkpointing adds arithmetic."
        + measured_words("accumulation", accumulation_measured),
        needs="accumulation, checkpointing and loading measured together on top of rung padded_vocab",
    )


def seven_billion(records: Sequence[Record]) -> Verdict:
    """Multiply the bytes of weights, gradients and moments by seven billion."""
    two, four = BYTES["bfloat16"], BYTES["float32"]
    moments, gradients = 2 * two * SEVEN_BILLION / GB, two * SEVEN_BILLION / GB
    mixed = (two + two + four + 2 * four) * SEVEN_BILLION / GB
    right = (moments, gradients) == (14, 7)
    return Verdict(
        verdict="confirmed" if right else "refuted",
        evidence=f"By formula, all in 16 bits: moments {moments:.0f} GB, gradients {gradients:.0f} GB, weights "
        f"{gradients:.0f} GB, together {moments + 2 * gradients:.0f} GB. With float32 master weights and moments: "
        f"{mixed:.0f} GB.",
    )


def optimizer_bytes(records: Sequence[Record]) -> Verdict:
    """Divide the bytes of two moments in bfloat16 by those in float32 and in float16."""
    over = {name: BYTES["bfloat16"] / BYTES[name] for name in ("float32", "float16")}
    text = ", ".join(f"{form.percent(share)} of those in {name}" for name, share in over.items())
    if len(set(over.values())) == 1:
        return Verdict(verdict="confirmed" if over["float32"] == 0.5 else "refuted", evidence=f"By formula: {text}.")
    return Verdict(
        verdict="depends", on_what="what it is compared with", evidence=f"By formula, moments in bfloat16 take {text}."
    )


def _logits() -> str:
    recipe = Recipe()
    logits = recipe.micro_batch * recipe.context_length * recipe.padded_vocab_size * BYTES["bfloat16"]
    return f"By formula: the logits that it need not keep have {form.gib(logits)} GiB in bfloat16 at the first batch."


CLAIMS = (
    Claim(
        key="checkpointing_costs_30_percent", group=21, evidence_kind="experiments", experiment=thirty_percent,
        claim="Checkpointing costs 30 %.", expectation="A third of arithmetic at most, less of the time.",
    ),
    Claim(
        key="per_layer_is_slow", group=21, evidence_kind="experiments", experiment=per_layer,
        claim="Checkpointing per layer is slow; larger blocks are faster.",
        expectation="Hardly: every block is run again once either way.",
    ),
    Claim(
        key="fewer_checkpoints_save_more", group=21, evidence_kind="formula", experiment=group_sizes,
        claim="Fewer checkpoints save more memory and cost more time.",
        expectation="Neither: a large group holds all its activations at once when it is run again.",
    ),
    Claim(
        key="skip_layer_norm", group=22, evidence_kind="formula", experiment=layer_norm_bytes,
        claim="LayerNorm can be left out of checkpointing, because it is small.",
        expectation="It keeps a full-width tensor and is the cheapest to make again.",
    ),
    Claim(
        key="non_reentrant_needs_more", group=23, evidence_kind="experiments", experiment=non_reentrant,
        claim="Non-reentrant checkpointing needs more memory.", expectation="No difference worth the name.",
    ),
    Claim(
        key="memory_levers_2_to_3x", group=23, evidence_kind="records", experiment=levers_of_speed,
        claim="Accumulation, checkpointing and better loading give another 2-3x in speed.",
        expectation="The first two are levers of memory; little is left to gain for the third.",
    ),
    Claim(
        key="seven_b_moments_14_gb", group=24, evidence_kind="formula", experiment=seven_billion,
        claim="A 7B model in 16 bits has 14 GB of moments and 7 GB of gradients.",
        expectation="Twice that: two moments, two bytes each.",
    ),
    Claim(
        key="bfloat16_halves_optimizer", group=24, evidence_kind="formula", experiment=optimizer_bytes,
        claim="bfloat16 halves the optimizer's state.", expectation="Against float32; against float16 nothing halves.",
    ),
    Claim(
        key="fused_cross_entropy_faster", group=25, evidence_kind="nothing yet",
        experiment=pending("head and loss fused and apart at this width, time and peak memory", _logits),
        claim="Fused linear cross-entropy is faster.", expectation="It saves memory; at this width hardly time.",
    ),
)  # fmt: skip
