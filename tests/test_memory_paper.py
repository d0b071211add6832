"""Shapes on paper: parameters that were published, arithmetic done another way, and a block that autograd counts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from memory_helper import Storages, flash_attention

from speedlab.errors import BadInput
from speedlab.memory_paper import (
    LLAMA_7B,
    LLAMA_13B,
    STATES,
    PaperShape,
    accelerate_estimate,
    activation_bytes,
    block_bytes,
    paper_plan,
    state_bytes,
)

TINY = PaperShape(name="tiny", num_layers=3, embedding_width=64, inner_width=96, num_heads=4, vocab_size=100)


def test_parameters_are_those_of_the_released_models() -> None:
    assert LLAMA_7B.parameters == 6_738_415_616
    assert LLAMA_13B.parameters == 13_015_864_320


def test_seven_billion_by_hand() -> None:
    billion = 7
    all_16_bit = billion * (2 + 2 + 2 + 2)  # weights, gradients, and two moments, two bytes each
    mixed = billion * (2 + 2 + 4 + 4 + 4)  # the same two in 16 bits, then masters and two moments in float32
    assert sum(state_bytes(7e9, "all 16-bit").values()) / 1e9 == all_16_bit == 56
    assert sum(state_bytes(7e9, "mixed").values()) / 1e9 == mixed == 112
    assert sum(state_bytes(7e9, "float32").values()) / 1e9 == 112
    assert state_bytes(7e9, "all 16-bit")["moments"] / 1e9 == 28
    assert state_bytes(7e9, "all 16-bit")["gradients"] / 1e9 == 14


def test_a_block_keeps_what_autograd_keeps() -> None:
    """A LLaMA block built from PyTorch's own operators on the meta device, in bfloat16."""
    batch, tokens, width, inner, heads = 2, 32, TINY.embedding_width, TINY.inner_width, TINY.num_heads
    options = {"dtype": torch.bfloat16, "device": "meta"}
    with Storages():
        norms = [torch.ones(width, requires_grad=True, **options) for _ in range(2)]
        query, key, value, out = (torch.ones(width, width, requires_grad=True, **options) for _ in range(4))
        gate, up = (torch.ones(inner, width, requires_grad=True, **options) for _ in range(2))
        down = torch.ones(width, inner, requires_grad=True, **options)
        weights = [*norms, query, key, value, out, gate, up, down]
        cosine, sine = (torch.ones(tokens, width // heads, **options) for _ in range(2))
        x = torch.ones(batch, tokens, width, requires_grad=True, **options)
        saved: dict[int, int] = {}
        given = {t.untyped_storage()._cdata for t in (*weights, cosine, sine)}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in given:
                saved[storage._cdata] = storage.nbytes()
            return tensor

        def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            # On the meta device RMSNorm falls apart into small operations. LayerNorm does not; it keeps a mean as well.
            return F.layer_norm(x, (width,), weight)

        def split(x: torch.Tensor) -> torch.Tensor:
            return x.view(batch, tokens, heads, width // heads).transpose(1, 2)

        def rotated(x: torch.Tensor) -> torch.Tensor:
            one, two = x.chunk(2, dim=-1)
            return x * cosine + torch.cat((-two, one), dim=-1) * sine

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            y = normalized(x, norms[0])
            q, k, v = (split(F.linear(y, weight)) for weight in (query, key, value))
            mixed = flash_attention(rotated(q), rotated(k), v, 0.0, True)
            middle = x + F.linear(mixed.transpose(1, 2).flatten(2), out)
            y = normalized(middle, norms[1])
            middle + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
    means, seed_and_offset = 2 * batch * tokens * 4, 24
    assert sum(saved.values()) - means - seed_and_offset == block_bytes(TINY, rows=batch * tokens)


def test_activations_by_block_and_checkpointed() -> None:
    rows = 2 * 16
    block = block_bytes(TINY, rows=rows)
    assert activation_bytes(TINY, micro_batch=2, context_length=16) == 3 * block
    lean = activation_bytes(TINY, micro_batch=2, context_length=16, checkpointing=True)
    assert lean == 3 * rows * 64 * 2 + block
    with pytest.raises(BadInput, match="micro_batch 0"):
        activation_bytes(TINY, micro_batch=0, context_length=16)


@pytest.mark.parametrize("state", STATES)
def test_a_plan_holds_state_activations_and_logits(state: str) -> None:
    plan = paper_plan(LLAMA_7B, state=state, micro_batch=1, context_length=2048)
    compute = 4 if state == "float32" else 2
    assert plan["logits"] == 2048 * (3 * 32_000 * compute + 8)
    assert sum(plan.values()) > sum(state_bytes(LLAMA_7B.parameters, state).values())


def test_a_wrong_state_is_named() -> None:
    with pytest.raises(BadInput, match=r"'8-bit'.*mixed"):
        state_bytes(7e9, "8-bit")


def test_what_accelerate_prints_for_a_known_model() -> None:
    """Its page shows bert-base-cased: 413.18 MB of float32 weights, 1.61 GB for Adam, 826.36 MB in float16."""
    parameters = 413.18 * 2**20 / 4
    assert accelerate_estimate(parameters, "float32") / 2**30 == pytest.approx(1.61, abs=0.005)
    assert accelerate_estimate(parameters, "float16") / 2**20 == pytest.approx(826.36, abs=0.01)
    with pytest.raises(BadInput, match="int8"):
        accelerate_estimate(parameters, "int8")
