"""Claims about loading data and about what the utilization counter shows."""

from __future__ import annotations

from speedlab.folklore import lab_host
from speedlab.folklore.claim import Claim, Verdict
from speedlab.folklore.evidence import Found, from_records, kind_ms, with_sentences
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe
from speedlab.records import stats
from speedlab.work import model_flops_utilization

# A change that gains less than this is no duty.
WORTH_A_RULE = 0.05
# A card counts as busy from here on, and as far from saturated below the other.
BUSY, SATURATED = 0.95, 0.30


@with_sentences(("data_pipeline", lab_host.carried))
@from_records("fused_adamw", "pinned_memory", needs="rungs fused_adamw and pinned_memory of ladder nine-steps")
def pinned_is_a_duty(found: Found) -> Verdict:
    """Measure a step with pageable and with pinned memory; a gain of 5 % would make it a rule."""
    gain = found.speedup("fused_adamw", "pinned_memory").value - 1
    return Verdict(verdict="confirmed" if gain >= WORTH_A_RULE else "refuted", evidence=_pinned_text(found))


@with_sentences(("data_pipeline", lab_host.carried))
@from_records("fused_adamw", "pinned_memory", needs="rungs fused_adamw and pinned_memory of ladder nine-steps")
def pinned_is_invisible(found: Found) -> Verdict:
    """Ask whether the difference between pageable and pinned memory exceeds the spread of the samples."""
    clear = found.speedup("fused_adamw", "pinned_memory").clear
    return Verdict(verdict="refuted" if clear else "confirmed", evidence=_pinned_text(found))


def _pinned_text(found: Found) -> str:
    ratio = found.speedup("fused_adamw", "pinned_memory")
    batch = found["pinned_memory"].recipe
    copied = 2 * 8 * batch["micro_batch"] * batch["context_length"]  # inputs and targets, eight bytes an id
    return (
        f"{found.where} {form.ratio(ratio.value, clear=ratio.clear)} by pinned memory; a batch is "
        f"{form.three_digits(copied / 2**10)} KiB of ids."
    )


@from_records("baseline", needs="ladder nine-steps with its kernels", kernels=True)
def busy_but_slow(found: Found) -> Verdict:
    """Find a rung in which some kernel runs nearly all the time, which is what the counter counts, at a low MFU."""
    shown = []
    for rung, record in found.records.items():
        recipe = Recipe.from_dict(record.recipe)
        tokens_per_s = stats.tokens_per_s(record).median
        mfu = model_flops_utilization(recipe, tokens_per_s=tokens_per_s, gpu=record.machine["gpu"])
        busy = min(1.0, kind_ms(record) / found.step_ms(rung))
        if mfu is not None and record.kernels:
            shown.append((busy >= BUSY, -mfu, busy, rung))
    if not shown:
        return Verdict(verdict="not_decided", needs="ladder nine-steps on a card with a data sheet")
    is_busy, minus_mfu, busy, rung = max(shown)
    return Verdict(
        verdict="refuted" if is_busy and -minus_mfu < SATURATED else "confirmed",
        evidence=f"{found.where} at rung {rung} some kernel runs in {form.percent(busy)} of the step, and MFU is "
        f"{form.percent(-minus_mfu)}.",
        needs="the counter itself, read by NVML while rungs run",
    )


CLAIMS = (
    Claim(
        key="pinned_is_mandatory", group=26, evidence_kind="experiments", experiment=pinned_is_a_duty,
        claim="Pinned memory is mandatory.", expectation="A batch of token ids is small; little to gain.",
    ),
    Claim(
        key="pinned_is_invisible", group=26, evidence_kind="experiments", experiment=pinned_is_invisible,
        claim="Pinned memory is invisible.", expectation="It shows as soon as the host would wait for the copy.",
    ),
    Claim(
        key="worker_rules", group=26, evidence_kind="experiments",
        experiment=lab_host.worker_rules,
        claim="Use as many loader workers as cores less one, or two for each GPU.",
        expectation="With ids in memory none is needed; a rule needs the cost of a sample.",
    ),
    Claim(
        key="persistent_workers_cure_leaks", group=26, evidence_kind="experiments",
        experiment=lab_host.worker_memory,
        claim="`persistent_workers` cures memory leaks.",
        expectation="Growth comes from copying on write when reference counts of Python lists change.",
    ),
    Claim(
        key="gpu_util_shows_saturation", group=27, evidence_kind="records", experiment=busy_but_slow,
        claim="GPU-Util near 100 % shows that the card is saturated.",
        expectation="It counts the time in which any kernel runs, whatever that kernel makes of the card.",
    ),
    Claim(
        key="gpu_util_is_share_of_card", group=27, evidence_kind="experiments", experiment=lab_host.busy_counter,
        claim="GPU-Util says how much of the card is in use.",
        expectation="One thread that adds one to one number keeps it near 100 %.",
    ),
)  # fmt: skip
