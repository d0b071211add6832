"""What a compiled graph keeps, against PyTorch's own partitioner, the pass that decides it.

Nothing is compiled: the joint graph is traced, cut in two, and the outputs of its first half are counted.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import aot_function
from memory_helper import flash_attention
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V

from speedlab.memory_plan import plan_memory
from speedlab.model import GPT
from speedlab.recipe import Recipe

# Dropout off: Inductor puts random numbers of its own into the graph, in a pass of the compiler proper.
SMALL = Recipe(
    num_layers=1, embedding_width=64, num_heads=4, context_length=256, vocab_size=1000, micro_batch=4, dropout=0.0,
    causal_mask="on_the_fly", compile="default",
)  # fmt: skip


class Cut(Exception):
    """The forward half is known; nothing is to be run."""


def kept_bytes(recipe: Recipe) -> int:
    """Bytes that the forward half hands to the backward half, weights and logits left out."""
    model = GPT(recipe).to(dtype=torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32)
    weights = dict(model.named_parameters())
    found: list[int] = []

    def forward(tokens: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(zip(weights, values, strict=True)), (tokens,))

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> None:
        fake = next(value.fake_mode for value in inputs if hasattr(value, "fake_mode"))
        with fake:  # shapes again: the simplified nodes have lost theirs
            kept = graph(*inputs)[1:]  # the first output is the logits
        storages = [value.untyped_storage() for value in kept if isinstance(value, torch.Tensor)]
        given = {value.untyped_storage()._cdata for value in inputs}
        found.append(sum({s._cdata: s.nbytes() for s in storages if s._cdata not in given}.values()))
        raise Cut

    def halves(graph: torch.fx.GraphModule, inputs: list[Any], **options: Any):
        fake = next(value.fake_mode for value in _values(graph) if hasattr(value, "fake_mode"))
        with V.set_fake_mode(fake):
            joint_graph_passes(graph)  # Inductor simplifies first
        return min_cut_rematerialization_partition(graph, inputs, compiler="inductor", **options)

    compiled = aot_function(
        forward, fw_compiler=count, bw_compiler=count, partition_fn=halves, decompositions=select_decomp_table()
    )
    tokens = torch.zeros(recipe.micro_batch, recipe.context_length, dtype=torch.long)
    with pytest.raises(Cut):
        compiled(tokens, *weights.values())
    return found[0]


def _values(graph: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in graph.graph.nodes if "val" in node.meta]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bfloat16", "layers": "native", "attention": "sdpa", "qkv_projection": "merged"},
        {"precision": "float32"},
    ],
    ids=str,
)
def test_a_compiled_graph_keeps_what_the_formula_says(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", flash_attention)
    recipe = SMALL.but(**changes)
    plan = plan_memory(recipe)
    assert sum(plan.activations.values()) == pytest.approx(kept_bytes(recipe), rel=0.02)
