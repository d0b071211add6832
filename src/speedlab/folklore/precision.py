"""Claims about number formats and Tensor Cores."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from speedlab.cards import CARDS, find_card
from speedlab.folklore import lab_host, lab_optimizer
from speedlab.folklore.claim import Claim, Verdict
from speedlab.folklore.evidence import Found, calls, find, from_records, kind_ms, with_sentences
from speedlab.folklore.formulas import lost_above, to_bfloat16, total_parameters
from speedlab.memory_plan import plan_memory
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe
from speedlab.records import stats
from speedlab.records.published import load, published_row
from speedlab.records.record import Record

# The ratio from which on two speeds count as nearly the same.
NEARLY = 0.9
T4 = "tesla-t4"
# Names of matmul kernels whose operands have 16 bits; nvjet writes t for bfloat16 and h for float16.
SIXTEEN_BIT = r"nvjet_\w*?_[th]s[a-z]_|bf16|f16|s16816|hmma"


def tf32_units(records: Sequence[Record]) -> Verdict:
    """Look in the data sheets for cards of capability 7.0 or higher without a rate for TF32."""
    without = [card for card in CARDS if card.capability >= (7, 0) and "tf32" not in card.flops_per_s]
    first = min(card.capability for card in CARDS if "tf32" in card.flops_per_s)
    names = ", ".join(f"{card.title} (capability {_dots(card.capability)})" for card in without)
    return Verdict(
        verdict="refuted" if without else "confirmed",
        evidence=f"Data sheets: TF32 units exist from {_dots(first)}; without them: {names or 'none of our cards'}.",
    )


@from_records("tensor_cores", needs="rung tensor_cores of ladder nine-steps with this machine's ceilings")
def tf32_rate(found: Found) -> Verdict:
    """Divide the matmul rate measured in TF32 by the one measured in float16, large square matrices."""
    record = found["tensor_cores"]
    rates = (record.ceilings or {}).get("matmul_flops_per_s", {})
    if not {"tf32", "float16"} <= rates.keys():
        return Verdict(verdict="not_decided", needs="the ceilings of a session on a card with TF32 and float16 units")
    card = find_card(record.machine["gpu"])
    sheet = f" Its data sheet: {form.percent(_tf32_share(card.flops_per_s))}." if card else ""
    share = _tf32_share(rates)
    return Verdict(
        verdict="confirmed" if share >= NEARLY else "refuted",
        evidence=f"{found.where} TF32 reaches {form.percent(share)} of float16's matmul rate.{sheet}",
    )


@from_records("bfloat16", needs="rung bfloat16 of ladder nine-steps, with its kernels", kernels=True)
def stored_format(found: Found) -> Verdict:
    """Read from the name of the optimizer's kernel which format weights and moments are stored in."""
    record = found["bfloat16"]
    pure, mixed = calls(record, r"FusedAdam\w*<c10::B"), calls(record, r"FusedAdam\w*<float")
    if not pure and not mixed:
        return Verdict(verdict="not_decided", needs="a kernel table that names the format of the fused optimizer")
    stored = "bfloat16" if pure else "float32"
    return Verdict(
        verdict="refuted" if pure else "confirmed",
        evidence=f"{found.where} the fused optimizer of rung bfloat16 updates {stored} tensors in "
        f"{form.count(pure or mixed)} launches: weights, gradients and moments, with no float32 copy beside them."
        if pure
        else f"{found.where} the fused optimizer of rung bfloat16 updates {stored} tensors.",
    )


@with_sentences(("precision_formats", lab_optimizer.lost_updates))
def small_updates(records: Sequence[Record]) -> Verdict:
    """Add the learning rate, the size of AdamW's first step, to a weight of one a thousand times in bfloat16."""
    rate, steps, weight = Recipe().learning_rate, 1000, 1.0
    for _ in range(steps):
        weight = to_bfloat16(weight + rate)
    moved = weight - 1.0
    return Verdict(
        verdict="refuted" if moved < steps * rate / 2 else "confirmed",
        evidence=f"By arithmetic: {steps:,} additions of {rate:g} move a bfloat16 weight of 1 by {moved:g}, exact "
        f"arithmetic by {steps * rate:g}. Such an update is lost on every weight from {lost_above(rate):g} upwards.",
        needs="loss curves over thousands of steps, several seeds each: bfloat16, autocast, and float32 master weights",
    )


@from_records(
    "pinned_memory", "bfloat16", needs="rungs pinned_memory and bfloat16 of ladder nine-steps", memory=True
)  # fmt: skip
def what_bfloat16_saves(found: Found) -> Verdict:
    """Compare the memory that bfloat16 saved with what halved weights, gradients and two moments explain."""
    before, after = (found[rung].peak_reserved_bytes for rung in ("pinned_memory", "bfloat16"))
    explained = 4 * 2 * total_parameters(Recipe.from_dict(found["bfloat16"].recipe))
    saved = before - after
    plans = [plan_memory(Recipe.from_dict(found[rung].recipe)).parts for rung in ("pinned_memory", "bfloat16")]
    activations, logits = (plans[0][part] - plans[1][part] for part in ("activations", "logits"))
    published = [published_row("nine-steps", rung).reserved_gib for rung in ("pinned_memory", "bfloat16")]
    text = (
        f"{found.where} reserved memory fell from {form.gib(before)} to {form.gib(after)} GiB. Two bytes less for each "
        f"weight, gradient and two moments explain {form.gib(explained)} of the {form.gib(saved)} GiB saved. By "
        f"formula activations give {form.gib(activations)} and logits {form.gib(logits)} GiB. Published, A100: "
        f"{form.three_digits(published[0] - published[1])} GiB saved."
    )
    if saved <= 0:
        return Verdict(verdict="refuted", evidence=text)
    return Verdict(verdict="refuted" if explained < saved / 2 else "confirmed", evidence=text)


@from_records("baseline", needs="the baseline of ladder nine-steps, with its kernels", kernels=True)
def float32_units(found: Found) -> Verdict:
    """Add up the time of float32 matmul kernels that run on Tensor Cores."""
    ordinary, tensor = (kind_ms(found["baseline"], f"matmul, {unit}") for unit in ("ordinary", "Tensor Cores"))
    return Verdict(
        verdict="confirmed" if tensor > 0 else "refuted",
        evidence=f"{found.where} of {form.three_digits(ordinary + tensor)} ms of matmuls in a float32 step, "
        f"{form.three_digits(tensor)} ms run on Tensor Cores.",
    )


@from_records(
    "bfloat16_autocast", ladder="six-steps", kernels=True,
    needs="rung bfloat16_autocast of ladder six-steps, with its kernels: formats of the matmuls, forward and backward",
)  # fmt: skip
def autocast_backward(found: Found) -> Verdict:
    """Count the 16-bit matmuls of a step under autocast; two of three matmuls belong to the backward pass."""
    record = found["bfloat16_autocast"]
    matmuls = [kernel for kernel in record.kernels if kernel["kind"].startswith("matmul")]
    launches = sum(kernel["calls"] for kernel in matmuls)
    half = sum(kernel["calls"] for kernel in matmuls if re.search(SIXTEEN_BIT, kernel["name"]))
    text = f"{found.where} {form.count(half)} of {form.count(launches)} matmul launches are of 16-bit kernels."
    if not launches or 0.4 < half / launches < NEARLY:
        return Verdict(verdict="not_decided", evidence=text, needs="a kernel table whose matmuls name their formats")
    return Verdict(
        verdict="refuted" if half / launches >= NEARLY else "confirmed", evidence=text,
        needs="which other operations CUDA's autocast keeps in float32",
    )  # fmt: skip


@from_records(
    "fused_adamw", ladder="six-steps", kernels=True,
    needs="rung fused_adamw of ladder six-steps, which trains under autocast, with its kernels",
)  # fmt: skip
def autocast_grad_format(found: Found) -> Verdict:
    """Read the format of the gradients from the fused optimizer's kernel, which takes weights and gradients alike."""
    wide, narrow = (calls(found["fused_adamw"], rf"FusedAdam\w*<{dtype}") for dtype in ("float", "c10::B"))
    if not wide and not narrow:
        return Verdict(verdict="not_decided", needs="a kernel table that names the format of the fused optimizer")
    return Verdict(
        verdict="refuted" if wide else "confirmed",
        evidence=f"{found.where} the fused optimizer takes {'float32' if wide else 'bfloat16'} gradients under "
        "autocast.",
    )


def t4_units(records: Sequence[Record]) -> Verdict:
    """Look in the data sheet for a rate that exceeds that of the ordinary units."""
    card = next(card for card in CARDS if card.slug == T4)
    fast = card.flops_per_s.get("float16", 0.0) / card.flops_per_s["float32"]
    return Verdict(
        verdict="refuted" if fast > 2 else "confirmed",
        evidence=f"Data sheet: {card.title} multiplies float16 matrices {form.three_digits(fast)} times as fast as "
        "float32 ones.",
    )


def t4_total(records: Sequence[Record]) -> Verdict:
    """Climb ladder six-steps on a T4, float16 with a gradient scaler in place of bfloat16, and take the whole gain."""
    found = find(records, "baseline", ladder="six-steps", device=T4)
    said = load()["ladder_b_extra"]["t4_total_speedup"]
    if found is None or len(found.records) < 2:
        return Verdict(
            verdict="not_decided", needs="ladder six-steps on a T4",
            evidence=f"Published: {said:g}x in all, without float16 and a gradient scaler.",
        )  # fmt: skip
    top = max(found.records, key=lambda rung: stats.tokens_per_s(found[rung]).median)
    ratio = found.speedup("baseline", top)
    return Verdict(
        verdict="refuted" if ratio.low > said else "confirmed",
        evidence=f"{found.where} {form.three_digits(ratio.value)}x at rung {top}. Published: {said:g}x.",
    )


def _tf32_share(rates: dict[str, float]) -> float:
    return rates.get("tf32", math.nan) / rates.get("float16", math.nan)


def _dots(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


CLAIMS = (
    Claim(
        key="tf32_from_capability_7", group=1, evidence_kind="data sheets", experiment=tf32_units,
        claim='Compute capability 7.0 is enough for `set_float32_matmul_precision("high")` to help.',
        expectation="No: Volta and Turing have Tensor Cores for float16 only.",
    ),
    Claim(
        key="tf32_nearly_float16", group=2, evidence_kind="records", experiment=tf32_rate,
        claim="TF32 runs at nearly the speed of float16.",
        expectation="Half of it, as the data sheets say.",
    ),
    Claim(
        key="to_bfloat16_is_mixed", group=3, evidence_kind="records", experiment=stored_format,
        claim="`model.to(torch.bfloat16)` is mixed precision.",
        expectation="No: weights, gradients and moments are bfloat16 too, and no float32 matmul is left for TF32.",
    ),
    Claim(
        key="bfloat16_needs_no_care", group=3, evidence_kind="experiments", experiment=small_updates,
        claim="bfloat16 has float32's range, so it needs no care.",
        expectation="With bfloat16 weights, AdamW's small updates are rounded away.",
    ),
    Claim(
        key="bfloat16_halves_parameters", group=4, evidence_kind="records", experiment=what_bfloat16_saves,
        claim="bfloat16 halves the memory because the parameters halve.", figures=("raschka",),
        expectation="Parameters and what belongs to them explain about a tenth; activations are the rest.",
    ),
    Claim(
        key="autocast_gradients_float32", group=5, evidence_kind="records", experiment=autocast_backward,
        claim="Autocast covers the forward pass; the gradients are computed in float32.",
        expectation="The matmuls of the backward pass run in the format of those in the forward pass.",
    ),
    Claim(
        key="amp_halves_gradients", group=5, evidence_kind="records", experiment=autocast_grad_format,
        claim="Mixed precision halves the gradients.",
        expectation="`.grad` has the format of its weight, and the weights stay float32.",
    ),
    Claim(
        key="autocast_all_in_16_bits", group=5, evidence_kind="experiments", experiment=lab_host.autocast_formats,
        claim="Under autocast the whole forward pass runs in 16 bits.",
        expectation="Matmuls do; norms, softmax and the loss answer in float32.",
    ),
    Claim(
        key="t4_no_tensor_cores", group=6, evidence_kind="data sheets", experiment=t4_units,
        claim="A T4 has no Tensor Cores.", expectation="It has them, for float16.",
    ),
    Claim(
        key="t4_gains_little", group=6, evidence_kind="records", experiment=t4_total, figures=("six_steps",),
        claim="A T4 gains 1.2x at most from the whole path.",
        expectation="More, once float16 with a gradient scaler takes the place of bfloat16.",
    ),
    Claim(
        key="float32_partly_tensor_cores", group=6, evidence_kind="records", experiment=float32_units,
        claim="Float32 matmuls use Tensor Cores in part.",
        expectation="Not one, as long as TF32 is not allowed.",
    ),
)  # fmt: skip
