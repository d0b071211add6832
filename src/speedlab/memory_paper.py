"""Memory of models that this package does not train, on paper: LLaMA-like shapes, and another estimator beside ours.

A LLaMA block (Touvron et al. 2023) differs from GPT-2's in what counts here: SwiGLU has three matmuls, nothing has a
bias, RMSNorm has a weight alone, positions cost no weights, nothing is dropped out. Attention is a fused kernel.
Torch-free. GB is 10^9 bytes, as the claims that it corrects have it.
"""

from __future__ import annotations

from dataclasses import dataclass

from speedlab.errors import BadInput, check_choice

GB = 1e9
SIXTEEN_BITS, FLOAT32, INT64 = 2, 4, 8

# Bytes for each weight by what holds them. Moments are two.
STATES: dict[str, dict[str, int]] = {
    "all 16-bit": {"weights": 2, "gradients": 2, "moments": 2 * 2},
    # Micikevicius et al. 2018: 16-bit weights and gradients; masters and both moments in float32.
    "mixed": {"weights": 2, "gradients": 2, "masters": 4, "moments": 2 * 4},
    "float32": {"weights": 4, "gradients": 4, "moments": 2 * 4},
}


@dataclass(frozen=True, kw_only=True)
class PaperShape:
    """A LLaMA-like model. `inner_width` is the width between the matmuls of SwiGLU."""

    name: str
    num_layers: int
    embedding_width: int
    inner_width: int
    num_heads: int
    vocab_size: int = 32_000

    @property
    def parameters(self) -> int:
        """Two tables (the head is not tied), and for each layer four square matmuls, three of SwiGLU, two norms."""
        width = self.embedding_width
        per_layer = 4 * width**2 + 3 * width * self.inner_width + 2 * width
        return 2 * self.vocab_size * width + self.num_layers * per_layer + width


# Touvron et al. 2023, table 2; the inner width is 2/3 of 4 x width, rounded up to a multiple of 256.
LLAMA_7B = PaperShape(name="LLaMA-7B", num_layers=32, embedding_width=4096, inner_width=11_008, num_heads=32)
LLAMA_13B = PaperShape(name="LLaMA-13B", num_layers=40, embedding_width=5120, inner_width=13_824, num_heads=40)
SHAPES = {shape.name: shape for shape in (LLAMA_7B, LLAMA_13B)}


def state_bytes(parameters: float, state: str) -> dict[str, float]:
    """Bytes of weights, gradients, masters and moments for so many parameters; activations are not in it.

    seven billion: 56 GB "all 16-bit", 112 GB "mixed" or "float32".
    """
    check_choice("state", state, STATES)
    return {what: parameters * each for what, each in STATES[state].items()}


def activation_bytes(
    shape: PaperShape, *, micro_batch: int, context_length: int, checkpointing: bool = False, compute: int = 2
) -> int:
    """What the blocks keep for the backward pass, in bytes. compute: bytes of one activation.

    checkpointing: each block keeps its input alone, and one block at a time is run again.
    """
    if micro_batch < 1 or context_length < 1:
        raise BadInput(f"micro_batch {micro_batch} and context_length {context_length} must be at least 1")
    rows = micro_batch * context_length
    block = block_bytes(shape, rows=rows, compute=compute)
    if not checkpointing:
        return shape.num_layers * block
    return shape.num_layers * rows * shape.embedding_width * compute + block


def block_bytes(shape: PaperShape, *, rows: int, compute: int = 2) -> int:
    """What one block keeps for `rows` tokens.

    Two RMSNorms keep their input and 1/rms (float32), the matmuls behind them what they read: four widths. Attention
    keeps rotated q and k, v, its output and one float32 for each head: four widths. SwiGLU keeps the gate before SiLU
    and after it, what it is multiplied with, and the product that the last matmul reads: four inner widths.
    """
    widths = 8 * shape.embedding_width + 4 * shape.inner_width
    return rows * (widths * compute + (2 + shape.num_heads) * FLOAT32)


def paper_plan(
    shape: PaperShape, *, state: str, micro_batch: int, context_length: int, checkpointing: bool = False
) -> dict[str, float]:
    """Bytes of state, activations and logits; the logits as the backward pass of the loss holds them, three tensors."""
    compute = FLOAT32 if state == "float32" else SIXTEEN_BITS
    rows = micro_batch * context_length
    return {
        **state_bytes(shape.parameters, state),
        "activations": activation_bytes(
            shape, micro_batch=micro_batch, context_length=context_length, checkpointing=checkpointing, compute=compute
        ),
        "logits": 3 * rows * shape.vocab_size * compute + rows * INT64,
    }


def accelerate_estimate(parameters: float, dtype: str) -> float:
    """What `accelerate estimate-memory` prints under "Training using Adam", in bytes, by its own source.

    huggingface/accelerate, src/accelerate/commands/estimate.py, `estimate_training_usage`, at commit 00e4d264: the
    largest of model, gradients, optimizer and step, for a batch of one; four times the float32 size for float32, twice
    that size for 16 bits. It knows weights alone: no activation, logits, batch or context enters.
    """
    check_choice("dtype", dtype, ("float32", "float16", "bfloat16"))
    size = FLOAT32 * parameters
    if dtype == "float32":
        return max(size, 2 * size, 4 * size)
    return max(size, size + size / 2, 2 * size)
