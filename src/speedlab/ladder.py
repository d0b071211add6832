"""The ladders: which recipe field each rung changes, in which order, and what must stay true when it does.

A rung is data. Nothing here measures or imports torch.
"""

from __future__ import annotations

from speedlab.beyond import BEYOND
from speedlab.derived_ladders import alone, removed, reordered_parent
from speedlab.errors import check_choice
from speedlab.recipe import Recipe
from speedlab.rung import BFLOAT16_TOLERANCE, FLOAT32_TOLERANCE, TF32_TOLERANCE, Ladder, Rung

NINE_STEPS = Ladder(
    name="nine-steps",
    title="Nine steps and data parallel training",
    start=Recipe(),
    rungs=(
        Rung(
            key="baseline",
            title="Baseline",
            contract="reference",
            expectation="float32 matmuls without Tensor Cores, and every layer written out in small operations",
        ),
        Rung(
            key="causal_mask",
            title="Causal mask on the fly",
            chapter="01_causal_mask",
            change={"causal_mask": "on_the_fly"},
            contract="identical",
            expectation="saves one context x context buffer per layer; the arithmetic is the same, so no gain in speed",
        ),
        Rung(
            key="tensor_cores",
            title="Tensor Cores through TF32",
            chapter="02_tensor_cores",
            change={"matmul_precision": "high"},
            contract="rounding",
            tolerance=TF32_TOLERANCE,
            expectation="float32 matmuls move from the ordinary units to the Tensor Cores",
        ),
        Rung(
            key="fused_adamw",
            title="Fused AdamW",
            chapter="03_fused_adamw",
            change={"optimizer": "fused"},
            contract="rounding",
            tolerance=FLOAT32_TOLERANCE,
            expectation="reads and writes weights, gradients and moments once instead of once per arithmetic operation",
        ),
        Rung(
            key="pinned_memory",
            title="Pinned memory",
            chapter="04_pinned_memory",
            change={"host_memory": "pinned_non_blocking"},
            contract="identical",
            expectation="the host no longer waits for the copy of a batch; a batch of ids is small, so little to gain",
        ),
        Rung(
            key="bfloat16",
            title="bfloat16",
            chapter="05_bfloat16",
            change={"precision": "bfloat16"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="twice the Tensor Core rate of TF32 and half the bytes for everything that is stored",
        ),
        Rung(
            key="native_layers",
            title="PyTorch's LayerNorm and GELU",
            chapter="06_native_layers",
            change={"layers": "native"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="one kernel per layer reads its input once, where a chain of kernels makes a round trip each",
        ),
        Rung(
            key="flash_attention",
            title="FlashAttention",
            chapter="07_flash_attention",
            change={"attention": "sdpa"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="the context x context scores never leave the chip, so their memory traffic disappears",
        ),
        Rung(
            key="merged_qkv",
            title="Query, key and value in one matmul",
            chapter="07_flash_attention",
            change={"qkv_projection": "merged"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="one wide matmul fills the card better than three narrow ones and reads its input once",
        ),
        Rung(
            key="torch_compile",
            title="torch.compile",
            chapter="08_torch_compile",
            change={"compile": "default"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="generated kernels fuse what is left of element-wise work and remove launches",
        ),
        Rung(
            key="padded_vocab",
            title="Padded vocabulary",
            chapter="09_aligned_shapes",
            change={"vocabulary": "padded"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="an aligned number of output columns lets the head use a faster matmul kernel",
        ),
        Rung(
            key="batch_size",
            title="Larger batch",
            chapter="09_aligned_shapes",
            change={"micro_batch": 32},
            contract="training",
            expectation="the optimizer and the launches are paid once for four times the tokens",
        ),
        Rung(
            key="data_parallel",
            title="DistributedDataParallel",
            chapter="10_data_parallel",
            change={"data_parallel": 4},
            contract="training",
            expectation="each GPU works on its own batch; gradients are averaged while the backward pass still runs",
        ),
    ),
)

SIX_STEPS = Ladder(
    name="six-steps",
    title="Six steps from a nanoGPT-style start",
    start=Recipe(
        dropout=0.0, qkv_bias=True, output_head="tied", layers="native", qkv_projection="merged", micro_batch=16
    ),
    rungs=(
        Rung(
            key="baseline",
            title="Baseline",
            contract="reference",
            expectation="float32, native layers, joined q/k/v with biases, attention written out, tied head",
        ),
        Rung(
            key="tensor_cores",
            title="Tensor Cores through TF32",
            change={"matmul_precision": "high"},
            contract="rounding",
            tolerance=TF32_TOLERANCE,
            expectation="float32 matmuls move to the Tensor Cores",
        ),
        Rung(
            key="bfloat16_autocast",
            title="bfloat16 autocast",
            change={"precision": "bfloat16_autocast"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="matmuls in bfloat16, weights and optimizer in float32",
        ),
        Rung(
            key="torch_compile",
            title="torch.compile",
            change={"compile": "default"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="fuses the element-wise work, the casts of autocast included",
        ),
        Rung(
            key="torch_compile_max_autotune",
            title="torch.compile, max-autotune",
            change={"compile": "max-autotune"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            stacked=False,
            expectation="tries several matmul kernels per shape, and replays the step as CUDA graphs",
        ),
        Rung(
            key="flash_attention",
            title="FlashAttention",
            change={"attention": "sdpa"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="the scores never leave the chip",
        ),
        Rung(
            key="padded_vocab",
            title="Padded vocabulary",
            change={"vocabulary": "padded"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="an aligned number of output columns",
        ),
        Rung(
            key="fused_adamw",
            title="Fused AdamW",
            change={"optimizer": "fused"},
            contract="rounding",
            tolerance=BFLOAT16_TOLERANCE,
            expectation="one pass over weights, gradients and moments",
        ),
    ),
)

ALONE = alone(NINE_STEPS)
REMOVED = removed(NINE_STEPS, top="batch_size")

# The ways to train in 16 bits beside each other, not stacked: their speed, memory and loss curves over the same text.
PRECISIONS = Ladder(
    name="precisions",
    title="Number formats side by side",
    start=NINE_STEPS.recipe_at("merged_qkv").but(precision="float32"),
    rungs=(
        Rung(
            key="baseline", title="float32 weights, TF32 matmuls", contract="reference",
            expectation="the loss curve that the others are held against",
        ),
        *(
            Rung(key=precision, title=title, change={"precision": precision}, contract="training", stacked=False,
                 expectation=expectation)
            for precision, title, expectation in (
                ("bfloat16", "Pure bfloat16", "fewest bytes; small updates of the weights are rounded away"),
                ("bfloat16_master", "bfloat16 with float32 masters", "the same step, and updates that are kept"),
                ("bfloat16_autocast", "bfloat16 autocast", "float32 weights, cast anew for each matmul"),
                ("float16_autocast", "float16 autocast and scaler", "finer steps than bfloat16, and a smaller range"),
            )
        ),
    ),
)  # fmt: skip

LADDERS: dict[str, Ladder] = {
    ladder.name: ladder for ladder in (NINE_STEPS, SIX_STEPS, ALONE, REMOVED, PRECISIONS, BEYOND)
}


def get_ladder(name: str) -> Ladder:
    check_choice("ladder", name, LADDERS)
    return LADDERS[name]


def ladder_with_rungs_of(name: str) -> Ladder | None:
    """The ladder whose rungs stand under this name: itself, or for a reordered one the ladder that it reorders."""
    return LADDERS.get(reordered_parent(name) or name)


def chapters() -> dict[str, tuple[Rung, ...]]:
    """The ten chapters in order, as {notebook stem: the rungs it is about}."""
    grouped: dict[str, list[Rung]] = {}
    for rung in NINE_STEPS:
        if rung.chapter:
            grouped.setdefault(rung.chapter, []).append(rung)
    return {stem: tuple(rungs) for stem, rungs in grouped.items()}


def before_and_after(chapter: str) -> tuple[str, ...]:
    """Rung keys that a chapter measures: the rung before its first change, then each of its own."""
    own = chapters()
    check_choice("chapter", chapter, own)
    first = own[chapter][0]
    before = NINE_STEPS.before(first.key)
    assert before is not None, "a chapter never starts at the baseline"
    return (before, *(rung.key for rung in own[chapter]))
