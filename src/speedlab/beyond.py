"""Ladder "beyond": from the plain compiled recipe to the fastest one, and what was tried on top of it.

A rung is data. Nothing here measures or imports torch. Bytes and rates of the expectations are counted in
`labs.beyond_predictions`.
"""

from __future__ import annotations

from speedlab.recipe import Recipe
from speedlab.rung import BFLOAT16_TOLERANCE, Ladder, Rung

# GPT-2 124M as llm.c and nanoGPT run it: tied head, no dropout, 65,536 tokens in one update. All biases are there, as
# in GPT-2 and llm.c; nanoGPT's benchmark leaves them out, which is less work.
PLAIN_COMPILED = Recipe(
    dropout=0.0, qkv_bias=True, output_head="tied", causal_mask="on_the_fly", matmul_precision="high",
    optimizer="fused", host_memory="pinned_non_blocking", precision="bfloat16_autocast", layers="native",
    attention="sdpa", qkv_projection="merged", compile="default", vocabulary="padded", micro_batch=64, loss="compiled",
)  # fmt: skip


def _rounding(key: str, title: str, change: dict, expectation: str, *, stacked: bool = True) -> Rung:
    return Rung(
        key=key, title=title, change=change, contract="rounding", tolerance=BFLOAT16_TOLERANCE,
        expectation=expectation, stacked=stacked,
    )  # fmt: skip


BEYOND = Ladder(
    name="beyond",
    title="Past the ladder: from plain compiled training to the fastest recipe",
    start=PLAIN_COMPILED,
    rungs=(
        Rung(
            key="plain_compiled", title="Plain compiled autocast", contract="reference",
            expectation="what a careful user has after the ten chapters, with the peers' configuration",
        ),
        _rounding(
            "bfloat16_master", "bfloat16 weights, float32 masters", {"precision": "bfloat16_master"},
            "weights are cast once a step, and the residual stream takes half the bytes",
        ),
        _rounding(
            "liger_loss", "Liger's cross-entropy", {"loss": "liger"},
            "reads the logits twice and writes the gradient over them, but waits for the GPU to check the targets",
            stacked=False,
        ),
        _rounding(
            "in_place_loss", "Cross-entropy in place", {"loss": "in_place"},
            "the same traffic without the waiting: two readings, one of them from the cache, and one writing",
        ),
        _rounding(
            "sigmoid_gelu", "GELU written by a sigmoid", {"feed_forward": "sigmoid"},
            "tanh is a long routine in generated kernels, a sigmoid two fast instructions", stacked=False,
        ),
        _rounding(
            "fused_gelu", "Bias, GELU and bias gradient", {"feed_forward": "fused"},
            "the bias gradient falls out of the pass that makes the gradient, and nothing is computed twice",
        ),
        _rounding(
            "fused_residual", "Residual, bias and LayerNorm", {"residual": "fused"},
            "one pass each way, with four sums over all tokens on the way",
        ),
        _rounding(
            "fused_qkv", "Joined q/k/v gradients", {"qkv_backward": "fused"},
            "the copy that joins three gradients also sums them for the bias",
        ),
        _rounding(
            "one_pass_adamw", "AdamW in one pass", {"optimizer": "one_pass"},
            "28 bytes per weight instead of 40, and one launch instead of hundreds",
        ),
        _rounding(
            "no_compiler", "The same without the compiler", {"compile": "off"},
            "what is left to compile is little; the host is fast enough to stay ahead", stacked=False,
        ),
        _rounding(
            "flash_attention", "FlashAttention-2 insisted on", {"attention": "sdpa_flash"},
            "slower than cuDNN's kernel on Hopper, which is PyTorch's own choice there", stacked=False,
        ),
        _rounding(
            "coordinate_descent", "Tuned generated kernels", {"compile_options": "coordinate_descent"},
            "tries other tile sizes for generated kernels, of which few are left", stacked=False,
        ),
        _rounding(
            "no_mix_order_reduction", "Norm gradients in two kernels", {"compile_options": "no_mix_order_reduction"},
            "nothing: no generated kernel reduces along rows and columns any more", stacked=False,
        ),
        _rounding(
            "cuda_graphs", "CUDA graphs", {"compile": "reduce-overhead"},
            "saves launches that are hidden behind long kernels already", stacked=False,
        ),
        _rounding(
            "max_autotune", "Autotuned matmuls", {"compile": "max-autotune-no-cudagraphs"},
            "tries generated matmuls against the library's, minutes of compilation", stacked=False,
        ),
        Rung(
            key="double_batch", title="Twice the batch", change={"micro_batch": 128}, contract="training",
            stacked=False, expectation="the optimizer is paid once for twice the tokens: less than half a per cent",
        ),
        _rounding(
            "fp8_head", "The head's forward matmul in 8 bits", {"head_matmul": "fp8_forward"},
            "one of 39 matmul groups at up to twice the rate; other mathematics, so no part of the headline",
            stacked=False,
        ),
    ),
)  # fmt: skip

# The recipe whose speed is the headline: all that is stacked.
FASTEST = BEYOND.recipe_at("one_pass_adamw")
