"""Checkpointing changes memory and time, never a gradient: every way of it against the plain step, bit for bit."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from data_helper import one_line_error
from model_helper import CPU, TINY, lively_weights, random_batches
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint_sequential

from speedlab.errors import NotAvailable
from speedlab.model import GPT
from speedlab.model.gpt import Block
from speedlab.recipe import CHOICES
from speedlab.training import checkpointing as module
from speedlab.training.parallel import Replicated
from speedlab.training.step import TrainingStep

WAYS = CHOICES["checkpointing"]
SMALL = TINY.but(num_layers=4, layers="native", attention="sdpa", qkv_projection="merged")


def one_step(recipe, prepare=None, seed=0):
    """Gradients and the next random number after one optimizer step, and the step."""
    torch.manual_seed(seed)
    step = TrainingStep(recipe, lively_weights(recipe), CPU)
    if prepare is not None:
        prepare(step.model)
    loss = step(iter(random_batches(recipe, recipe.accumulation)))
    gradients = [parameter.grad.clone() for parameter in step.model.parameters()]
    return gradients, loss, torch.rand(3), step


def assert_same(one, two):
    assert torch.equal(one[1], two[1]), "loss"
    assert all(torch.equal(a, b) for a, b in zip(one[0], two[0], strict=True)), "gradients"
    assert torch.equal(one[2], two[2]), "the random state after the step"


def test_the_table_has_the_values_of_the_recipe():
    assert tuple(module.CHECKPOINTING) == WAYS


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dropout": 0.2},
        {"attention": "plain", "layers": "handwritten", "dropout": 0.2},
        {"precision": "bfloat16_autocast", "dropout": 0.2},
        {"precision": "float16_autocast"},
        {"precision": "bfloat16_master", "accumulation": 2, "gradient_clip": 0.5, "dropout": 0.1},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "plain",
)
def test_gradients_are_those_of_the_plain_step_bit_for_bit(way, changes):
    recipe = SMALL.but(**changes)
    assert_same(one_step(recipe.but(checkpointing=way)), one_step(recipe))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_groups_of_any_size_give_the_same_gradients_even_where_they_do_not_divide_the_blocks(size):
    recipe = SMALL.but(dropout=0.2)
    grouped = one_step(recipe, lambda model: module.checkpoint_groups(recipe, model, size=size))
    assert_same(grouped, one_step(recipe))


def test_the_masks_of_dropout_would_differ_if_the_random_state_were_not_put_back(monkeypatch):
    recipe = SMALL.but(dropout=0.2)
    whole = module.recomputed
    monkeypatch.setattr(module, "recomputed", lambda function, recipe, *rest: whole(function, SMALL, *rest))
    broken, plain = one_step(recipe.but(checkpointing="every_block")), one_step(recipe)
    assert not all(torch.equal(a, b) for a, b in zip(broken[0], plain[0], strict=True))


def test_a_compiled_step_with_checkpointing_gives_the_same_gradients():
    """One layer, so that the compiler is done soon; the partitioner decides here what is recomputed."""
    torch._dynamo.reset()
    recipe = SMALL.but(num_layers=1, compile="default")
    compiled = one_step(recipe.but(checkpointing="every_block"))
    plain = one_step(recipe.but(compile="off"))
    for found, expected in zip(compiled[0], plain[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


def forward_calls(recipe, prepare=None) -> Counter:
    """How often each part of the model runs forward in one step."""
    calls: Counter = Counter()

    def count(model: GPT) -> None:
        if prepare is not None:
            prepare(model)
        for name, part in model.named_modules():
            if isinstance(part, nn.Linear | nn.LayerNorm | nn.GELU):
                part.register_forward_hook(lambda *_, name=name: calls.update([name]))

    one_step(recipe, count)
    return calls


def repeated(recipe, prepare=None) -> set[str]:
    return {name for name, count in forward_calls(recipe, prepare).items() if count == 2}


def test_each_way_recomputes_what_it_says_and_nothing_twice():
    inside = {name for name in forward_calls(SMALL) if name.startswith("blocks.")}
    ups = {name for name in inside if "feed_forward." in name}
    every = repeated(SMALL.but(checkpointing="every_block"))
    # A recomputation stops once it has every tensor that is needed: what follows the last of them is not run.
    assert every == inside - {name for name in inside if name.endswith("feed_forward.down")}
    assert repeated(SMALL.but(checkpointing="every_second_block")) == {n for n in every if n[7] in "02"}
    assert repeated(SMALL.but(checkpointing="feed_forward")) <= ups
    assert {n for n in repeated(SMALL.but(checkpointing="feed_forward")) if n.endswith("gelu")} == {
        n for n in inside if n.endswith("gelu")
    }
    assert repeated(SMALL) == repeated(SMALL.but(checkpointing="offload")) == set()
    for size in (1, 2, 4):
        prepare = lambda model, size=size: module.checkpoint_groups(SMALL, model, size=size)  # noqa: E731
        assert {n for n in repeated(SMALL, prepare) if n.endswith("gelu")} == {n for n in inside if n.endswith("gelu")}
        assert max(forward_calls(SMALL, prepare).values()) == 2


def saved_bytes(recipe, prepare=None) -> int:
    """Bytes that autograd itself holds on to after a forward pass: distinct storages, weights left out."""
    step = TrainingStep(recipe, lively_weights(recipe), CPU)
    if prepare is not None:
        prepare(step.model)
    sizes: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in step.model.parameters()}

    def notice(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    [(tokens, _)] = random_batches(recipe, 1)
    with torch.autograd.graph.saved_tensors_hooks(notice, lambda tensor: tensor):
        logits = step.model(tokens)
    assert logits.requires_grad
    return sum(sizes.values())


def test_what_the_outer_graph_keeps_shrinks_with_what_is_recomputed():
    kept = {way: saved_bytes(SMALL.but(checkpointing=way)) for way in ("off", "every_second_block", "every_block")}
    assert kept["every_block"] < kept["every_second_block"] < kept["off"]
    assert saved_bytes(SMALL.but(checkpointing="feed_forward")) < kept["off"]


def test_the_selective_policy_runs_no_matmul_and_no_attention_a_second_time():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen: Counter = Counter()

        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            self.seen[operation] += 1
            return operation(*arguments, **(options or {}))

    def seen(recipe):
        step = TrainingStep(recipe, lively_weights(recipe), CPU)
        with Operations() as operations:
            step(iter(random_batches(recipe, 1)))
        return operations.seen

    dear = (*module.MATMULS, *module.FUSED_ATTENTION)
    plain, kept, every = (seen(SMALL.but(checkpointing=way)) for way in ("off", "selective", "every_block"))
    assert {op: kept[op] for op in dear} == {op: plain[op] for op in dear}
    assert kept[torch.ops.aten.gelu.default] == 2 * plain[torch.ops.aten.gelu.default]
    assert any(every[op] > plain[op] for op in dear)
    written_out = SMALL.but(attention="plain")
    assert (
        seen(written_out.but(checkpointing="selective"))[torch.ops.aten.bmm.default]
        > (seen(written_out)[torch.ops.aten.bmm.default])
    ), "the scores of attention written out are made again"


def test_offloading_moves_what_the_blocks_keep_to_the_host_and_back(monkeypatch):
    asked = []
    whole = module.save_on_cpu
    monkeypatch.setattr(module, "save_on_cpu", lambda **options: asked.append(options) or whole(**options))
    one_step(SMALL.but(checkpointing="offload"))
    assert asked == [{"pin_memory": False}], "a CPU has no memory to pin"


def test_the_forms_of_pytorch_give_the_same_gradients_and_check_what_the_lab_says():
    recipe = SMALL.but(dropout=0.2)
    plain = one_step(recipe)

    def by_segments(model):
        model.run_blocks = lambda x: checkpoint_sequential(list(model.blocks), 2, x, use_reentrant=False)

    def by_wrapper(model):
        apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda part: isinstance(part, Block)
        )

    assert_same(one_step(recipe, by_segments), plain)
    assert_same(one_step(recipe, by_wrapper), plain)
    assert {name[7] for name in repeated(SMALL, by_segments)} == {"0", "1"}, "its last segment is not checkpointed"
    renamed = one_step(recipe, by_wrapper)[3].model
    assert any("_checkpoint_wrapped_module" in name for name, _ in renamed.named_parameters())
    ours = one_step(recipe.but(checkpointing="every_block"))[3].model
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in plain[3].model.named_parameters()]


def replicated(recipe, model, compiled):
    return Replicated(recipe, model, compiled, CPU)


def test_several_processes_get_the_same_gradients_and_a_compiled_form_is_refused():
    """One process of a group of one: what DDP hooks into a backward pass must meet every gradient exactly once."""
    recipe = SMALL.but(dropout=0.2, accumulation=2)
    plain = one_step(recipe)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for way in WAYS[1:]:
            torch.manual_seed(0)
            wanted = recipe.but(checkpointing=way)
            step = TrainingStep(wanted, lively_weights(wanted), CPU, parallelize=replicated)
            step(iter(random_batches(wanted, 2)))
            found = [parameter.grad for parameter in step.model.parameters()]
            assert all(torch.equal(a, b) for a, b in zip(found, plain[0], strict=True)), way
    finally:
        dist.destroy_process_group()
    compiled = recipe.but(compile="default", checkpointing="every_block")
    one_line_error(
        NotAvailable,
        lambda: TrainingStep(compiled, lively_weights(compiled), CPU, parallelize=replicated),
        "every_block", "compile off",
    )  # fmt: skip


@pytest.mark.parametrize("way", [way for way in CHOICES["checkpointing"] if way != "off"])
def test_blocks_that_do_not_run_as_wholes_are_refused(way):
    recipe = TINY.but(checkpointing=way, residual="fused", dropout=0.0)
    one_line_error(NotAvailable, lambda: module.apply_checkpointing(recipe, GPT(recipe)), "residual separate")
