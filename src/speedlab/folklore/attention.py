"""Claims about attention: its mask, its kernels, its memory."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from speedlab.folklore import lab_attention
from speedlab.folklore.claim import Claim, Verdict
from speedlab.folklore.evidence import Found, find, from_records
from speedlab.folklore.formulas import SEVEN_B, attention_share, matrix_bytes
from speedlab.ladder import NINE_STEPS
from speedlab.memory_activations import scores
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe
from speedlab.records import stats
from speedlab.records.published import published_row
from speedlab.records.record import Record
from speedlab.records.rows import attention_backend

LONG = 131_072  # the context of the claims about 131k, 2^17
FAIRLY_LONG = 32_768
T4 = "tesla-t4"
SAME_POWER = 0.02  # a difference that is none
# Registers aside, what one multiprocessor has on chip, and how many there are: NVIDIA A100 architecture white paper.
A100_SHARED_BYTES, A100_MULTIPROCESSORS = 192 * 2**10, 108


def long_masks(records: Sequence[Record]) -> Verdict:
    """Count the bytes of a mask, of making it by ones and triu, and of the scores it is laid over, at 131k tokens."""
    recipe = Recipe()
    mask, booleans = matrix_bytes(LONG, "float32"), 2 * matrix_bytes(LONG, "bool")
    scores = recipe.num_heads * matrix_bytes(LONG, "bfloat16")
    return Verdict(
        verdict="refuted" if 2 * mask + scores > mask else "confirmed",
        evidence=f"By formula, at {LONG:,} tokens: a float32 mask has {form.gib(mask)} GiB; making one by ones and "
        f"triu holds two of them at a time, {form.gib(2 * mask)} GiB (as booleans {form.gib(booleans)} GiB); the "
        f"scores that it is laid over have {form.gib(scores)} GiB in bfloat16, for one layer and one sequence. Only a "
        "kernel that needs no mask (`is_causal=True`) and keeps no scores gets rid of them.",
        needs="plain attention against `is_causal` at rising contexts until memory ends",
    )


@from_records(
    "baseline", "causal_mask", needs="rungs baseline and causal_mask of ladder nine-steps", memory=True
)  # fmt: skip
def stored_masks(found: Found) -> Verdict:
    """Divide what allocated memory lost with the stored masks by the size of one mask."""
    before, after = (found[rung].peak_allocated_bytes for rung in ("baseline", "causal_mask"))
    recipe = Recipe.from_dict(found["baseline"].recipe)
    one = matrix_bytes(recipe.context_length, "float32")
    masks = (before - after) / one
    return Verdict(
        verdict="refuted" if masks > recipe.num_layers / 2 else "confirmed",
        evidence=f"{found.where} without stored masks the peak of allocated memory is lower by "
        f"{form.three_digits((before - after) / 2**20)} MiB, which is {form.three_digits(masks)} masks of "
        f"{form.three_digits(one / 2**20)} MiB; the model has {recipe.num_layers} layers.",
    )


def t4_backend(records: Sequence[Record]) -> Verdict:
    """Read from the kernel table which attention kernel ran on a T4."""
    found = find(records, "flash_attention", device=T4, kernels=True)
    if found is None:
        return Verdict(verdict="not_decided", needs="rung flash_attention of ladder nine-steps on a T4")
    backend = attention_backend(found["flash_attention"])
    return Verdict(
        verdict="refuted" if backend == "flash" else "confirmed", evidence=f"{found.where} attention ran as {backend}."
    )


@from_records("flash_attention", needs="rung flash_attention of ladder nine-steps, with its kernels", kernels=True)
def chosen_backend(found: Found) -> Verdict:
    """Read from the kernel table which attention kernel scaled_dot_product_attention chose."""
    record = found["flash_attention"]
    backend = attention_backend(record)
    text = f"{found.where} PyTorch {record.machine['torch']} chose {backend} on its own."
    if backend in (None, "plain"):
        return Verdict(verdict="not_decided", evidence=text, needs="a kernel table that names the attention kernel")
    if backend == "flash":
        return Verdict(verdict="confirmed", evidence=text)
    return Verdict(verdict="depends", on_what="the card and the version of PyTorch and cuDNN", evidence=text)


@from_records(
    "pinned_memory", "bfloat16", "native_layers", "flash_attention", memory=True,
    needs="ladder nine-steps up to rung flash_attention",
)  # fmt: skip
def memory_savers(found: Found) -> Verdict:
    """Take from each rung the reserved memory that it saved, and rank them."""
    saved = {}
    for rung in NINE_STEPS:
        before = NINE_STEPS.before(rung.key)
        if rung.key in found and before in found and rung.contract != "training":
            pair = found[before].peak_reserved_bytes, found[rung.key].peak_reserved_bytes
            if None not in pair:
                saved[rung.title] = pair[0] - pair[1]
    ranked = sorted(saved, key=saved.__getitem__, reverse=True)
    listed = ", ".join(f"{title} {form.gib(saved[title])}" for title in ranked[:3])
    published = [
        published_row("nine-steps", rung).reserved_gib
        for rung in ("pinned_memory", "bfloat16", "native_layers", "merged_qkv")
    ]
    return Verdict(
        verdict="confirmed" if ranked[0] == NINE_STEPS.rung("flash_attention").title else "refuted",
        evidence=f"{found.where} GiB of reserved memory saved: {listed}. Published, A100: bfloat16 "
        f"{form.three_digits(published[0] - published[1])}, FlashAttention "
        f"{form.three_digits(published[2] - published[3])}.",
        needs="the parts of the peak (weights, activations, workspace) along the ladder say what each rung saved",
    )


@from_records(
    "native_layers", "flash_attention", needs="rungs native_layers and flash_attention of ladder nine-steps"
)  # fmt: skip
def training_gain(found: Found) -> Verdict:
    """Divide the speed of a whole training step with fused attention by the one without."""
    ratio = found.speedup("native_layers", "flash_attention")
    published = [published_row("nine-steps", rung).tokens_per_s for rung in ("native_layers", "merged_qkv")]
    text = (
        f"{found.where} {form.ratio(ratio.value, clear=ratio.clear)} at a context of "
        f"{found['flash_attention'].recipe['context_length']:,}. Published, A100: "
        f"{form.three_digits(published[1] / published[0])}x, the joined q/k/v included."
    )
    needs = "the same pair at longer contexts, where attention has a larger share"
    if ratio.low <= 2 <= ratio.high:
        return Verdict(verdict="depends", on_what="which run one looks at", evidence=text, needs=needs)
    return Verdict(verdict="confirmed" if ratio.low > 2 else "refuted", evidence=text, needs=needs)


@from_records(
    "native_layers", "flash_attention",
    needs="rungs native_layers and flash_attention of ladder nine-steps with the card's energy counter",
)  # fmt: skip
def power(found: Found) -> Verdict:
    """Divide the energy of a window by its time, without and with fused attention."""
    watts, joules = {}, {}
    for rung in ("native_layers", "flash_attention"):
        record = found[rung]
        if record.energy_j is None:
            return Verdict(
                verdict="not_decided", needs="the same two rungs on a machine whose energy counter can be read"
            )
        steps = stats.energy_steps(record)
        watts[rung] = 1e3 * record.energy_j / (steps * fmean(record.step_ms))
        joules[rung] = 1e6 * record.energy_j / (record.tokens_per_step * steps)
    return Verdict(
        verdict="confirmed" if watts["flash_attention"] < watts["native_layers"] * (1 - SAME_POWER) else "refuted",
        evidence=f"{found.where} power {form.count(watts['native_layers'])} W before and "
        f"{form.count(watts['flash_attention'])} W after; a million tokens take "
        f"{form.count(joules['native_layers'])} J before and {form.count(joules['flash_attention'])} J after.",
    )


def attention_at_7b(records: Sequence[Record]) -> Verdict:
    """Count the share of attention in the arithmetic of a 7B model at 4,096 tokens."""
    share = attention_share(SEVEN_B)
    return Verdict(
        verdict="confirmed" if share > 0.5 else "refuted",
        evidence=f"By formula: attention has {form.percent(share)} of the FLOPs ({SEVEN_B.num_layers} layers, width "
        f"{SEVEN_B.embedding_width:,}, context {SEVEN_B.context_length:,}). Were arithmetic all that counts, attention "
        f"for free would make a step {form.three_digits(1 / (1 - share))}x faster.",
    )


def long_matrix(records: Sequence[Record]) -> Verdict:
    """Count the bytes of the scores at 32k tokens: for one head and one layer, in two formats."""
    heads = Recipe().num_heads
    sizes = {dtype: matrix_bytes(FAIRLY_LONG, dtype) for dtype in ("bfloat16", "float32")}
    said = ", ".join(
        f"{dtype} {form.gib(size)} GiB for a head and {form.gib(heads * size)} GiB for a layer of {heads} heads"
        for dtype, size in sizes.items()
    )
    recipe = NINE_STEPS.recipe_at("native_layers").but(context_length=FAIRLY_LONG, micro_batch=1)
    kept = recipe.num_layers * scores(recipe)
    text = (
        f"By formula, at {FAIRLY_LONG:,} tokens and for one sequence: {said}. What training keeps of it, probabilities "
        f"before and after dropout and two masks, has {form.gib(kept)} GiB in {recipe.num_layers} layers of bfloat16."
    )
    tens = [number >= 10e9 for size in sizes.values() for number in (size, heads * size)]
    if all(tens) or not any(tens):
        return Verdict(verdict="confirmed" if all(tens) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="a head or a whole layer, and the number format", evidence=text)


def on_chip(records: Sequence[Record]) -> Verdict:
    """Divide the on-chip memory of the white paper by the multiprocessors among which it is split."""
    total = A100_SHARED_BYTES * A100_MULTIPROCESSORS
    return Verdict(
        verdict="refuted" if total > 2 * A100_SHARED_BYTES else "confirmed",
        evidence=f"White paper, A100: {form.three_digits(total / 2**20)} MiB is the sum over {A100_MULTIPROCESSORS} "
        f"multiprocessors of {A100_SHARED_BYTES // 2**10} KiB each, and a tile has to fit into one of them.",
    )


CLAIMS = (
    Claim(
        key="mask_on_the_fly_131k", group=7, evidence_kind="formula", experiment=long_masks,
        claim="A mask made on the fly makes contexts of 131k possible, because it saves the stored 64 GiB.",
        expectation="Making it takes twice that for a moment, and the scores are larger still.",
    ),
    Claim(
        key="stored_mask_is_one", group=7, evidence_kind="records", experiment=stored_masks,
        claim="The stored mask is one small buffer.", expectation="One in every layer.",
    ),
    Claim(
        key="is_causal_halves_work", group=8, evidence_kind="experiments",
        experiment=lab_attention.causal_halves,
        claim="`is_causal` halves the work.", expectation="Nearly, at long contexts; less where few tiles are skipped.",
    ),
    Claim(
        key="flash_unavailable_t4", group=8, evidence_kind="records", experiment=t4_backend,
        claim="FlashAttention is unavailable on a T4.",
        expectation="PyTorch's FlashAttention kernel is; another one that keeps no scores either may run.",
    ),
    Claim(
        key="sdpa_is_flash", group=8, evidence_kind="records", experiment=chosen_backend,
        claim="`scaled_dot_product_attention` runs PyTorch's FlashAttention kernel.",
        expectation="It chooses among several; the kernel table says which.",
    ),
    Claim(
        key="flash_saves_most", group=9, evidence_kind="records", experiment=memory_savers, figures=("raschka",),
        claim="FlashAttention is the largest memory saver: 26 to 6 GB.",
        expectation="bfloat16 saves more; 26 to 6 is the sum of all steps up to there.",
    ),
    Claim(
        key="flash_differs_1e_6", group=10, evidence_kind="experiments",
        experiment=lab_attention.difference,
        claim="FlashAttention's output differs from plain attention's by about 1e-6.",
        expectation="Its kernels take 16-bit numbers only, so both differ from float64 by 16-bit rounding.",
    ),
    Claim(
        key="flash_regularises", group=10, evidence_kind="experiments",
        experiment=lab_attention.regularises,
        claim="FlashAttention's rounding acts as regularisation.", expectation="No evidence that it does.",
    ),
    Claim(
        key="allow_tf32_consistent", group=10, evidence_kind="experiments",
        experiment=lab_attention.consistent_without_tf32,
        claim="`allow_tf32=False` makes FlashAttention's results consistent.",
        expectation="No effect on 16-bit kernels; deterministic mode is the lever, and it costs time.",
    ),
    Claim(
        key="flash_training_2_to_4x", group=11, evidence_kind="records", experiment=training_gain,
        figures=("raschka",), claim="FlashAttention makes training 2-4x faster.",
        expectation="Attention alone perhaps; the whole step less.",
    ),
    Claim(
        key="attention_dominates_7b", group=11, evidence_kind="formula", experiment=attention_at_7b,
        claim="In a 7B model at 4,096 tokens attention is most of the arithmetic.", expectation="A seventh.",
    ),
    Claim(
        key="flash_3x_7b", group=11, evidence_kind="experiments",
        experiment=lab_attention.layer_of_7b,
        claim="FlashAttention trains a 7B model at 4,096 tokens nearly 3x faster.",
        expectation="Far less: what it speeds up is a small part.",
    ),
    Claim(
        key="flash_lowers_power", group=11, evidence_kind="records", experiment=power,
        claim="FlashAttention lowers power.", expectation="Energy per token falls with time; power may well rise.",
    ),
    Claim(
        key="matrix_tens_of_gb_32k", group=12, evidence_kind="formula", experiment=long_matrix,
        claim="The attention matrix is tens of GB at 32k tokens.",
        expectation="It depends: per head or per layer, and on the number format.",
    ),
    Claim(
        key="sram_20_mb", group=12, evidence_kind="data sheets", experiment=on_chip,
        claim="FlashAttention's tiles have 20 MB of SRAM to live in.",
        expectation="That is the sum over all multiprocessors; a tile must fit into one.",
    ),
)  # fmt: skip
