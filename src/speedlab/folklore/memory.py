"""Claims about levers of memory: checkpointing, accumulation, the optimizer's state, the loss."""

from __future__ import annotations

from collections.abc import Sequence

from speedlab.folklore import lab_memory
from speedlab.folklore.claim import Claim, Verdict
from speedlab.folklore.evidence import Found, from_records, kind_ms, with_sentences
from speedlab.folklore.formulas import BYTES, GB
from speedlab.memory_paper import state_bytes
from speedlab.publishing import formatting as form
from speedlab.records.record import Record

SEVEN_BILLION = 7e9


@with_sentences(("accumulation", lab_memory.accumulated), ("together", lab_memory.levers_alone))
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
        f"a step would be {form.three_digits(bound)}x faster at most. Checkpointing adds arithmetic.",
        needs="accumulation, checkpointing and loading measured together on top of rung padded_vocab",
    )


def seven_billion(records: Sequence[Record]) -> Verdict:
    """Multiply the bytes of weights, gradients and moments by seven billion."""
    all_16_bit = {what: size / GB for what, size in state_bytes(SEVEN_BILLION, "all 16-bit").items()}
    moments, gradients = all_16_bit["moments"], all_16_bit["gradients"]
    mixed = sum(state_bytes(SEVEN_BILLION, "mixed").values()) / GB
    right = (moments, gradients) == (14, 7)
    return Verdict(
        verdict="confirmed" if right else "refuted",
        evidence=f"By formula, all in 16 bits: moments {moments:.0f} GB, gradients {gradients:.0f} GB, weights "
        f"{all_16_bit['weights']:.0f} GB, together {sum(all_16_bit.values()):.0f} GB. With float32 master weights and "
        f"moments: {mixed:.0f} GB. Activations and logits come on top.",
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


CLAIMS = (
    Claim(
        key="checkpointing_costs_30_percent", group=21, evidence_kind="experiments",
        experiment=lab_memory.checkpointing_cost,
        claim="Checkpointing costs 30 %.", expectation="A third of arithmetic at most, less of the time.",
    ),
    Claim(
        key="per_layer_is_slow", group=21, evidence_kind="experiments",
        experiment=lab_memory.larger_groups,
        claim="Checkpointing per layer is slow; larger blocks are faster.",
        expectation="Hardly: every block is run again once either way.",
    ),
    Claim(
        key="fewer_checkpoints_save_more", group=21, evidence_kind="experiments",
        experiment=lab_memory.fewer_checkpoints,
        claim="Fewer checkpoints save more memory and cost more time.",
        expectation="Neither: a large group holds all its activations at once when it is run again.",
    ),
    Claim(
        key="skip_layer_norm", group=22, evidence_kind="experiments", experiment=lab_memory.skipped_layer_norm,
        claim="LayerNorm can be left out of checkpointing, because it is small.",
        expectation="It keeps a full-width tensor and is the cheapest to make again.",
    ),
    Claim(
        key="non_reentrant_needs_more", group=23, evidence_kind="experiments",
        experiment=lab_memory.non_reentrant,
        claim="Non-reentrant checkpointing needs more memory.", expectation="No difference worth the name.",
    ),
    Claim(
        key="memory_levers_2_to_3x", group=23, evidence_kind="experiments", experiment=levers_of_speed,
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
        key="fused_cross_entropy_faster", group=25, evidence_kind="experiments",
        experiment=lab_memory.loss_in_chunks,
        claim="Fused linear cross-entropy is faster.", expectation="It saves memory; at this width hardly time.",
    ),
)  # fmt: skip
