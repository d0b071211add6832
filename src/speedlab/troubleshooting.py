"""What people see when training is slow or broken, why, what to do, and the check that tells. Data; it runs nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """checks: command lines, and calls of `speedlab.checks` or `speedlab.measure`, that confirm the cause or not."""

    title: str
    seen: str
    cause: str
    fix: str
    checks: tuple[str, ...]


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        title="CUDA versions disagree",
        seen="An extension does not build, or it builds and does not load; `nvcc --version` says another CUDA than "
        "`torch.version.cuda`.",
        cause="PyTorch brings its own CUDA libraries. `nvcc` belongs to a toolkit that was installed apart, and only "
        "building an extension uses it.",
        fix="Install the toolkit of the major version that PyTorch was built with, or a PyTorch built with the "
        "toolkit's. To run this book no toolkit is needed.",
        checks=("speedlab doctor",),
    ),
    Symptom(
        title="flash-attn builds for hours, or its build is killed",
        seen="`pip install flash-attn` takes hours on one core, or ends without a word, or takes the machine down.",
        cause="Without `ninja` one file is compiled after the other. With it, every core compiles at once, and each "
        "compiler takes gigabytes.",
        fix="Install `ninja`, set `MAX_JOBS` to what the memory allows, and use `--no-build-isolation`. PyTorch's own "
        "`scaled_dot_product_attention` has the same kernel and builds nothing.",
        checks=("speedlab doctor",),
    ),
    Symptom(
        title="NaN after the attention kernel was changed",
        seen="The loss is NaN from some step on, since a fused attention kernel is in use.",
        cause="A mask that hides every key of a query makes the softmax divide zero by zero. With float16, sums that "
        "fitted in float32 overflow.",
        fix="Leave every query one key, use `is_causal=True` instead of a mask, use bfloat16 where there are units for "
        "it, a gradient scaler with float16.",
        checks=("speedlab.checks.first_nonfinite(model, forward_backward)",),
    ),
    Symptom(
        title="Slower after checkpointing was switched on",
        seen="A step takes noticeably longer, memory has fallen.",
        cause="That is the price: the forward pass of each checkpointed part runs a second time in the backward pass.",
        fix="Use the memory for a larger batch, or checkpoint fewer blocks, or keep the results of the matmuls "
        "(a selective policy). Checkpointing without need for memory only costs.",
        checks=("speedlab.measure(step, tokens_per_step=...)", "speedlab experiment checkpointing"),
    ),
    Symptom(
        title="The GPU idles, and more workers do not help",
        seen="Utilization is low or goes up and down; another `num_workers` changes nothing, or makes it worse.",
        cause="Either the step waits for something else than data: launches of many small kernels, or a `.item()` in "
        "each step. Or there are more workers than cores, or the data comes from a slow disk.",
        fix="Look first whether it waits for the loader at all. If so: tokenize once into a file, pin the memory, copy "
        "without blocking. If not: fuse, compile, take out what waits for the GPU.",
        checks=("speedlab kernels baseline", "speedlab experiment data_pipeline"),
    ),
    Symptom(
        title="Workers take more and more memory",
        seen="Host memory grows through an epoch until a worker is killed.",
        cause="Workers share the data set's memory until somebody writes to it, and a look at an item of a Python list "
        "writes its reference count. Page after page is copied. `persistent_workers` does not cure it.",
        fix="Keep the data in NumPy arrays, tensors or a mapped file instead of lists of Python objects.",
        checks=("speedlab.checks.worker_growth_bytes(loader)",),
    ),
    Symptom(
        title="Out of memory",
        seen="`torch.OutOfMemoryError`, at once or after some steps; or the notebook's kernel is gone.",
        cause="Activations and logits grow with the batch; the optimizer's moments appear only in the first update. "
        "A kernel that is gone was killed by the system, because the host's memory ran out.",
        fix="Smaller micro-batches with accumulation, 16-bit precision, fused attention, checkpointing, in this order. "
        "`speedlab memory` predicts what a step holds on a card, before it runs and with another batch, format or "
        "kernel; `speedlab probe-batch` finds the largest batch that a whole step can take here. Ladder rows that do "
        "not fit say so and the ladder goes on.",
        checks=(
            "speedlab memory --card tesla-t4 --micro-batch 8",
            "speedlab probe-batch --recipe nine-steps/flash_attention",
        ),
    ),
    Symptom(
        title="Expected to have finished reduction in the prior iteration",
        seen="DistributedDataParallel stops in the second step with these words.",
        cause="A parameter got no gradient in the first step, so its bucket was never sent. The model does not use it, "
        "or uses it only sometimes.",
        fix="Use every parameter in every step, or do not register those that are not used. "
        "`find_unused_parameters=True` searches for them in every step, which costs time.",
        checks=("speedlab.checks.unused_parameters(model, forward_backward)",),
    ),
    Symptom(
        title="Expected to mark a variable ready only once",
        seen="DistributedDataParallel stops with these words, often after checkpointing was switched on.",
        cause="The gradient of a parameter is finished twice in one step: reentrant checkpointing of a part used "
        "twice, or two backward passes.",
        fix="`use_reentrant=False` for checkpointing, one backward pass for each step, `no_sync()` around all "
        "micro-batches but the last.",
        checks=("speedlab.checks.parameters_ready_twice(model, forward_backward)",),
    ),
    Symptom(
        title="torch.compile compiles again and again",
        seen="Steps stand still now and then; the log speaks of recompilations; compiled code is slower than eager.",
        cause="A new shape is a new graph: the last batch of an epoch, sequences of many lengths, an evaluation with "
        "another batch. After some graphs PyTorch gives up and runs eagerly.",
        fix="Keep shapes the same: drop the last batch, pad to a few lengths, compile training and evaluation apart.",
        checks=("speedlab.checks.graphs_for_shapes(function, inputs)",),
    ),
    Symptom(
        title="torch.compile and a custom autograd function",
        seen="No gain, or many small graphs, since a hand-written `autograd.Function` or a print is in the model.",
        cause="What the compiler cannot follow ends the graph; the rest is compiled in pieces with Python in between.",
        fix="Register it as a custom operator with `torch.library`, or keep it outside of the compiled part.",
        checks=("speedlab.checks.graph_breaks(model, *inputs)",),
    ),
    Symptom(
        title="Workers and processes that stay",
        seen="After a crash memory stays taken, on the host or on the GPU, and nothing seems to run.",
        cause="Workers or ranks whose program was killed go on; a zombie is one that ended and that its parent has "
        "not noticed.",
        fix="End them by their numbers. Start ranks by `torchrun`, which ends all when one dies, and close loaders.",
        checks=("speedlab doctor",),
    ),
)


def troubleshooting_section() -> str:
    """All symptoms as Markdown, a section for each."""
    parts = []
    for symptom in SYMPTOMS:
        parts.append(
            f"## {symptom.title}\n\n**What you see.** {symptom.seen}\n\n**Why.** {symptom.cause}\n\n"
            f"**What helps.** {symptom.fix}\n\n**The check.** {', and '.join(f'`{c}`' for c in symptom.checks)}\n"
        )
    return "\n".join(parts)
