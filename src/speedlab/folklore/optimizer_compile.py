"""Claims about the optimizer, torch.compile and fusion."""

from __future__ import annotations

from collections.abc import Sequence

from speedlab.folklore import lab_compile, lab_optimizer
from speedlab.folklore.claim import Claim, Verdict
from speedlab.folklore.evidence import Found, calls, from_records, kind_calls, kind_ms, with_sentences
from speedlab.folklore.formulas import parameter_tensors
from speedlab.folklore.source import package_source, tensor_operations
from speedlab.publishing import formatting as form
from speedlab.recipe import Recipe
from speedlab.records.published import load, published_row
from speedlab.records.record import Record

# A mean that is lower by more than this share is not the speed of training.
NOTICEABLE = 0.02
SAID_OF_GELU = 5
# One kernel per LayerNorm and GELU in the forward pass, by the names of PyTorch's kernels.
LAYER_NORM, GELU = r"vectorized_layer_norm_kernel|LayerNormForward", r"GeluCUDAKernel"


@from_records("tensor_cores", needs="rung tensor_cores of ladder nine-steps, with its kernels", kernels=True)
def default_adamw(found: Found) -> Verdict:
    """Count the launches of the default optimizer against the tensors that a loop would go through."""
    record = found["tensor_cores"]
    recipe = Recipe.from_dict(record.recipe)
    launches, grouped = kind_calls(record, "optimizer"), calls(record, "multi_tensor_apply")
    tensors = parameter_tensors(recipe)
    return Verdict(
        verdict="refuted" if grouped and launches < tensors else "confirmed",
        evidence=f"{found.where} {form.count(launches)} launches, {form.count(grouped)} of them over lists of tensors "
        f"(foreach), for {tensors} tensors; a loop needs several for each.",
        needs="rungs with a for-loop and with foreach asked for by name",
    )


@from_records("fused_adamw", needs="rung fused_adamw of ladder nine-steps, with its kernels", kernels=True)
def fused_adamw(found: Found) -> Verdict:
    """Count the launches of the fused optimizer in one step."""
    launches = calls(found["fused_adamw"], r"FusedOptim|FusedAdam")
    if not launches:
        return Verdict(verdict="not_decided", needs="a kernel table that names the fused optimizer")
    return Verdict(
        verdict="confirmed" if launches == 1 else "refuted",
        evidence=f"{found.where} {form.count(launches)} launches per step: a launch takes a list of tensors of limited "
        "length.",
    )


@from_records(
    "padded_vocab", "batch_size", needs="rungs padded_vocab and batch_size of ladder nine-steps", kernels=True
)  # fmt: skip
def optimizer_share(found: Found) -> Verdict:
    """Compare the optimizer's share of the kernel time of one model at two batch sizes."""
    shares, batches = {}, {}
    for rung in ("padded_vocab", "batch_size"):
        shares[rung] = kind_ms(found[rung], "optimizer") / kind_ms(found[rung])
        batches[rung] = found[rung].tokens_per_step
    needs = "rungs fused_adamw and its neighbour at several model sizes with the same tokens per update"
    text = (
        f"{found.where} the optimizer's share of one and the same model falls from "
        f"{form.percent(shares['padded_vocab'])} at {batches['padded_vocab']:,} tokens per update to "
        f"{form.percent(shares['batch_size'])} at {batches['batch_size']:,}."
    )
    if shares["batch_size"] > shares["padded_vocab"] / 2:
        return Verdict(verdict="not_decided", evidence=text.replace("falls", "goes"), needs=needs)
    return Verdict(verdict="depends", on_what="tokens per update, beside size", evidence=text, needs=needs)


@from_records("native_layers", needs="rung native_layers of ladder nine-steps, with its kernels", kernels=True)
def layer_calls(found: Found) -> Verdict:
    """Count the forward kernels of LayerNorm and of GELU in one step."""
    record = found["native_layers"]
    norms, gelus = calls(record, LAYER_NORM), calls(record, GELU)
    if not norms or not gelus:
        return Verdict(verdict="not_decided", needs="a kernel table that names LayerNorm and GELU")
    layers = record.recipe["num_layers"]
    return Verdict(
        verdict="confirmed" if norms == gelus == 2 * layers else "refuted",
        evidence=f"{found.where} {form.count(norms)} LayerNorm and {form.count(gelus)} GELU kernels in the forward "
        f"pass of {layers} layers, {form.count(norms + gelus)} together.",
    )


def gelu_operations(records: Sequence[Record]) -> Verdict:
    """Count the tensor operations of the hand-written GELU in its source; without a compiler each is a launch."""
    operations = tensor_operations(package_source("model/layers.py"), "HandwrittenGELU")
    return Verdict(
        verdict="confirmed" if operations == SAID_OF_GELU else "refuted",
        evidence=f"Counted in this package: the hand-written form takes {operations} operations in the forward pass.",
    )


@with_sentences(("compile_modes", lab_compile.warm_start), ("compile_modes", lab_compile.other_shapes), answered=True)
@from_records("merged_qkv", "torch_compile", needs="rungs merged_qkv and torch_compile of ladder nine-steps")
def break_even(found: Found) -> Verdict:
    """Divide the time to compile by the time that each step saves."""
    compile_s = found["torch_compile"].compile_s
    saved_ms = found.step_ms("merged_qkv") - found.step_ms("torch_compile")
    needs = "the same with a warm compile cache, and after a change of shape"
    if compile_s is None:
        return Verdict(verdict="not_decided", needs="a record with its compile time")
    text = f"{found.where} {form.three_digits(compile_s)} s of compiling ({found['torch_compile'].compile_cache} cache)"
    if saved_ms <= 0:
        return Verdict(verdict="refuted", evidence=f"{text}, and no step is faster for it.", needs=needs)
    steps = compile_s * 1e3 / saved_ms
    return Verdict(
        verdict="depends", needs=needs, on_what="how many steps follow",
        evidence=f"{text} against {form.three_digits(saved_ms)} ms saved per step: even after {form.count(steps)} "
        "steps.",
    )  # fmt: skip


@with_sentences(("compile_modes", lab_compile.warm_start), answered=True)
@from_records("merged_qkv", "torch_compile", needs="rungs merged_qkv and torch_compile of ladder nine-steps")
def first_step(found: Found) -> Verdict:
    """Divide the time to compile by a step without compiling."""
    compile_s = found["torch_compile"].compile_s
    if compile_s is None:
        return Verdict(verdict="not_decided", needs="a record with its compile time")
    factor = compile_s * 1e3 / found.step_ms("merged_qkv")
    published_s = load()["ladder_b_extra"]["a100_compile_first_s"]
    published_step = published_row("six-steps", "bfloat16_autocast").step_ms
    return Verdict(
        verdict="confirmed" if 2 <= factor <= 10 else "refuted",
        evidence=f"{found.where} {form.three_digits(compile_s)} s against "
        f"{form.three_digits(found.step_ms('merged_qkv'))} ms, {form.count(factor)} times as long. Published, A100: "
        f"{published_s:g} s against {published_step:g} ms, {form.count(published_s * 1e3 / published_step)} times.",
        needs="the same with a warm compile cache",
    )


@from_records(
    "merged_qkv", "torch_compile", needs="rungs merged_qkv and torch_compile of ladder nine-steps", memory=True
)  # fmt: skip
def compile_memory(found: Found) -> Verdict:
    """Compare reserved memory before and after compiling with the memory of the card."""
    before, after = (found[rung].peak_reserved_bytes for rung in ("merged_qkv", "torch_compile"))
    card = found["torch_compile"].machine.get("gpu_memory_bytes")
    if card is None:
        return Verdict(verdict="not_decided", needs="a record that knows the memory of its card")
    published = [published_row("nine-steps", rung).reserved_gib for rung in ("merged_qkv", "torch_compile")]
    return Verdict(
        verdict="confirmed" if after > 0.9 * card else "refuted",
        evidence=f"{found.where} reserved memory went from {form.gib(before)} to {form.gib(after)} GiB of the card's "
        f"{form.gib(card)}. Published, A100: from {form.three_digits(published[0])} to "
        f"{form.three_digits(published[1])} GiB.",
    )


@from_records(
    "training_only", "evaluation_inside", ladder="published-stopwatch",
    needs="ladder published-stopwatch: the baseline timed with and without evaluations",
)  # fmt: skip
def later_step(found: Found) -> Verdict:
    """Time the baseline as the published program does, evaluations inside the interval, and as we do."""
    rates = {}
    for rung in ("training_only", "evaluation_inside"):
        record = found[rung]
        rates[rung] = record.tokens_per_step * 1e3 * len(record.step_ms) / sum(record.step_ms)
    lost = 1 - rates["evaluation_inside"] / rates["training_only"]
    return Verdict(
        verdict="refuted" if lost > NOTICEABLE else "confirmed",
        evidence=f"{found.where} over whole windows, long after warm-up, {form.count(rates['training_only'])} "
        f"tokens/s, and {form.count(rates['evaluation_inside'])} with the evaluations inside the interval: "
        f"{form.percent(lost)} lower, with no compiler in play.",
        needs="the same trial at rung torch_compile, where the first evaluation compiles once more",
    )


CLAIMS = (
    Claim(
        key="adamw_default_loops", group=13, evidence_kind="experiments",
        experiment=lab_optimizer.default_form(default_adamw),
        claim="The default AdamW loops over the parameters.",
        expectation="On CUDA the default is foreach, a launch for many tensors at once.",
    ),
    Claim(
        key="adamw_fused_one_kernel", group=13, evidence_kind="records", experiment=fused_adamw,
        claim="The fused AdamW is one kernel.", expectation="A few launches: the list of tensors is cut into pieces.",
    ),
    Claim(
        key="fused_gains_with_size", group=13, evidence_kind="experiments",
        experiment=lab_optimizer.gain_with_size(optimizer_share),
        claim="A fused optimizer gains more on larger models.",
        expectation="Its share falls with the tokens per update, not with size alone.",
    ),
    Claim(
        key="norm_gelu_48_calls", group=14, evidence_kind="records", experiment=layer_calls,
        claim="LayerNorm and GELU are each called twice per block, 48 calls in all.",
        expectation="LayerNorm twice per block and once at the end, GELU once per block.",
    ),
    Claim(
        key="gelu_5_to_1", group=14, evidence_kind="source code", experiment=gelu_operations,
        claim="PyTorch's GELU replaces 5 launches by 1.", expectation="More than 5: each operation is a launch.",
    ),
    Claim(
        key="compile_free_lunch", group=15, evidence_kind="experiments", experiment=break_even,
        claim="torch.compile is a free lunch.", expectation="It is paid for in advance; a short run never earns it.",
    ),
    Claim(
        key="first_run_2_to_10x", group=15, evidence_kind="experiments", experiment=first_step,
        figures=("six_steps",),
        claim="The first run of a compiled model is 2-10x slower.", expectation="A hundred times and more.",
    ),
    Claim(
        key="compile_preallocates", group=15, evidence_kind="records", experiment=compile_memory, figures=("raschka",),
        claim="torch.compile preallocates all memory.", expectation="It does not; the published figure rose a little.",
    ),
    Claim(
        key="later_step_is_clean", group=16, evidence_kind="records", experiment=later_step, figures=("raschka",),
        claim="Tokens/s read at a later step are free of warm-up, and so are the speed of training.",
        expectation="Evaluations inside the interval enter the published mean.",
    ),
)  # fmt: skip
