"""Predicted bytes against what autograd really keeps, and against the peaks of the committed records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from memory_helper import Storages, count

from speedlab.ladder import LADDERS, NINE_STEPS
from speedlab.memory_activations import FLOAT32, kept_activations, sizes_of
from speedlab.memory_plan import (
    COMPONENTS,
    LARGE_WORKSPACE,
    WORKSPACE_THREADS,
    is_counted,
    not_modelled,
    parameter_tensors,
    plan_memory,
    total_parameters,
    update_bytes,
)
from speedlab.model import GPT
from speedlab.recipe import CHOICES, Recipe
from speedlab.records.record import Record
from speedlab.records.store import committed_root, read_records
from speedlab.training import checkpointing
from speedlab.training.optimizer import build_optimizer, clip_gradients

SMALL = Recipe(num_layers=2, embedding_width=64, num_heads=4, context_length=64, vocab_size=1001, micro_batch=3)
NATIVE = {"layers": "native", "attention": "sdpa", "qkv_projection": "merged"}
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"dropout": 0.0},
    {"causal_mask": "on_the_fly", "qkv_bias": True},
    {"layers": "native"},
    {"layers": "native", "attention": "sdpa"},
    {**NATIVE, "dropout": 0.0, "output_head": "tied"},
    {"precision": "bfloat16"},
    {"precision": "bfloat16", **NATIVE, "vocabulary": "padded"},
    {"precision": "bfloat16_autocast"},
    {"precision": "bfloat16_autocast", "dropout": 0.0, "output_head": "tied", "layers": "native"},
    {"precision": "float16_autocast", **NATIVE, "micro_batch": 1},
    # With dropout the meta device would keep its noise as numbers, which a GPU does not.
    {**NATIVE, "attention": "sdpa_math", "dropout": 0.0},
    {**NATIVE, "attention": "sdpa_math", "dropout": 0.0, "precision": "bfloat16"},
)
# nll_loss keeps one number, FlashAttention a seed and an offset for each layer.
SMALL_CHANGE = 4 + SMALL.num_layers * 24
MIB = 2**20


def kept_by_the_loss(recipe: Recipe) -> int:
    """Log-probabilities, under autocast their float32 copy as well, and the ids."""
    size = sizes_of(recipe)
    each = size.compute + FLOAT32 if size.autocast else size.stream
    return size.rows * (recipe.padded_vocab_size * each + 8)


def committed() -> list[Record]:
    return [record for record in read_records(committed_root()) if record.peak_allocated_bytes]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_what_autograd_keeps_is_what_the_formula_says_to_the_byte(changes: dict[str, Any]) -> None:
    recipe = SMALL.but(**changes)
    counted, plan = count(recipe), plan_memory(recipe)
    predicted = sum(plan.activations.values()) + kept_by_the_loss(recipe)
    assert 0 <= counted.saved - predicted <= SMALL_CHANGE
    assert counted.weights == plan.parts["weights"] + plan.parts["buffers"]


@pytest.mark.parametrize(
    ("changes", "moment", "tolerance"),
    [
        ({}, "loss", 0.002),
        ({"precision": "bfloat16_autocast", "layers": "native"}, "loss", 0.002),
        ({**NATIVE, "precision": "bfloat16"}, "loss", 0.002),
        # A few full-width tensors in a row come and go in a backward pass; the formula counts the largest of them.
        ({"vocab_size": 64, "context_length": 256}, "backward", 0.05),
        ({"vocab_size": 64, "context_length": 256, "dropout": 0.0}, "backward", 0.05),
        ({"vocab_size": 64, "context_length": 256, **NATIVE}, "backward", 0.05),
        ({"vocab_size": 64, "context_length": 256, "precision": "bfloat16_autocast"}, "backward", 0.05),
        ({"vocab_size": 64, "micro_batch": 1, "context_length": 16, "embedding_width": 256, "output_head": "tied"},
         "end of backward", 0.01),
    ],
    ids=str,
)  # fmt: skip
def test_the_peak_of_forward_and_backward_and_its_moment(
    changes: dict[str, Any], moment: str, tolerance: float
) -> None:
    recipe = SMALL.but(**changes)
    plan = plan_memory(recipe)
    outside = WORKSPACE_THREADS * LARGE_WORKSPACE  # cuBLAS's, of which the meta device knows nothing
    standing = sum(plan.parts[name] for name in ("weights", "optimizer", "buffers"))
    moments = {name: sum(held.values()) - outside - standing for name, held in plan.moments.items()}
    del moments["optimizer"]  # not run here
    assert max(moments, key=lambda name: moments[name]) == moment
    # Softmax backward makes a product inside CUDA's kernel, which no dispatcher sees; with a dropout mask to give back,
    # other moments of the same block are as large without it.
    product = FLOAT32 * sizes_of(recipe).square if moment == "backward" and is_product_at_the_peak(recipe) else 0
    assert moments[moment] == pytest.approx(count(recipe).peak + product, rel=tolerance)


def is_product_at_the_peak(recipe: Recipe) -> bool:
    return recipe.attention == "plain" and (recipe.dropout == 0.0 or recipe.precision.endswith("_autocast"))


@contextmanager
def to_nowhere(pin_memory: bool) -> Iterator[None]:
    """Offloading as the device sees it: what autograd keeps is gone from it, and comes back as a new tensor."""
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: (x.shape, x.dtype), lambda kept: torch.empty(kept[0], dtype=kept[1], device="meta")
    ):
        yield


@pytest.mark.parametrize("changes", [{}, {"attention": "sdpa"}, {"attention": "sdpa", "dropout": 0.0}], ids=str)
@pytest.mark.parametrize("kind", CHOICES["checkpointing"])
def test_what_checkpointing_leaves(kind: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "save_on_cpu", to_nowhere)
    recipe = SMALL.but(num_layers=3, layers="native", checkpointing=kind, **changes)
    plan = plan_memory(recipe)
    after = count(recipe, lambda model: checkpointing.apply_checkpointing(recipe, model)).after_forward
    # The loss and, in either form of counting, the batch itself.
    assert sum(plan.activations.values()) + kept_by_the_loss(recipe) == pytest.approx(after, rel=0.001)


@pytest.mark.parametrize("kind", ["every_block", "every_second_block", "feed_forward", "selective", "offload"])
def test_checkpointing_keeps_less_and_fills_up_in_the_backward_pass(kind: str) -> None:
    whole = NINE_STEPS.recipe_at("merged_qkv")
    plain, lean = plan_memory(whole), plan_memory(whole.but(checkpointing=kind))
    assert sum(lean.activations.values()) < sum(plain.activations.values())
    assert lean.parts["weights"] == plain.parts["weights"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "bfloat16_master"])
@pytest.mark.parametrize("optimizer", ["foreach", "for_loop"])
def test_optimizer_state_against_torch(optimizer: str, precision: str) -> None:
    recipe = SMALL.but(optimizer=optimizer, precision=precision)
    model = GPT(recipe)
    masters = [p.detach().clone() for p in model.parameters()] if precision == "bfloat16_master" else None
    model.to(dtype=torch.float32 if precision == "float32" else torch.bfloat16)
    built = build_optimizer(recipe, model.parameters(), masters)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    built.step()
    adam = built.optimizer if masters else built
    moments = sum(
        value.nbytes for state in adam.state.values() for name, value in state.items() if name.startswith("exp_avg")
    )
    held = moments + sum(master.nbytes for master in masters or [])
    assert plan_memory(recipe).parts["optimizer"] == held


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "bfloat16_master"])
@pytest.mark.parametrize("optimizer", ["foreach", "for_loop"])
def test_what_an_update_takes_besides(optimizer: str, precision: str) -> None:
    recipe = SMALL.but(optimizer=optimizer, precision=precision)
    model = GPT(recipe)
    masters = [p.detach().clone() for p in model.parameters()] if precision == "bfloat16_master" else None
    model.to(dtype=torch.float32 if precision == "float32" else torch.bfloat16)
    built = build_optimizer(recipe, model.parameters(), masters)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    built.step()
    adam = built.optimizer if masters else built
    storages = Storages()
    storages.leave_out([*model.parameters(), *(parameter.grad for parameter in model.parameters())])
    storages.leave_out([value for state in adam.state.values() for value in state.values()])
    storages.leave_out([parameter for group in adam.param_groups for parameter in group["params"]])
    with storages:
        built.step()
    assert storages.peak == pytest.approx(update_bytes(recipe), abs=1024)  # and a few single numbers


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_clipping_takes_no_memory_to_speak_of(precision: str) -> None:
    recipe = SMALL.but(precision=precision, gradient_clip=0.5)
    model = GPT(recipe).to(dtype=torch.float32 if precision == "float32" else torch.bfloat16)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    storages = Storages()
    storages.leave_out([*model.parameters(), *(parameter.grad for parameter in model.parameters())])
    with storages:
        clip_gradients(recipe, model.parameters())
    assert sum(float(p.grad.float().square().sum()) for p in model.parameters()) < 1, "the limit was applied"
    assert storages.peak < 2048, "a few single numbers"
    assert plan_memory(recipe) == plan_memory(recipe.but(gradient_clip=0.0)) and not_modelled(recipe) == ()


def test_every_form_of_checkpointing_has_a_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in CHOICES["checkpointing"]:
        assert not_modelled(SMALL.but(checkpointing=kind)) == ()
    monkeypatch.setitem(CHOICES, "checkpointing", (*CHOICES["checkpointing"], "by_magic"))
    assert not_modelled(SMALL.but(checkpointing="by_magic")) == ("checkpointing",)


@pytest.mark.parametrize(
    "changes", [{}, {"output_head": "tied", "qkv_bias": True, "qkv_projection": "merged"}, {"vocabulary": "padded"}]
)
def test_counts_of_weights_against_the_model(changes: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = GPT(Recipe(**changes))
    assert total_parameters(Recipe(**changes)) == model.num_parameters()
    assert parameter_tensors(Recipe(**changes)) == len(list(model.parameters()))


@pytest.mark.parametrize("record", committed(), ids=lambda record: f"{record.device}/{record.ladder}/{record.rung}")
def test_committed_peaks_are_predicted(record: Record) -> None:
    recipe = Recipe.from_dict(record.recipe)
    if unknown := not_modelled(recipe):
        pytest.skip(f"the formulas do not know {', '.join(unknown)}")
    capability = tuple(record.machine.get("capability") or (9, 0))
    predicted = plan_memory(recipe, capability=capability).peak_allocated_bytes
    if not is_counted(recipe):
        assert 0.9 * record.peak_allocated_bytes <= predicted <= 1.1 * record.peak_reserved_bytes
        return
    # Several GPUs hold buffers for what they exchange.
    assert predicted == pytest.approx(record.peak_allocated_bytes, rel=0.02 if recipe.data_parallel == 1 else 0.10)


def test_there_are_committed_peaks_to_be_predicted() -> None:
    assert len([record for record in committed() if record.ladder == "nine-steps"]) >= 12


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=lambda ladder: ladder.name)
def test_every_rung_has_a_plan_that_adds_up(ladder) -> None:
    for key in ladder.keys:
        plan = plan_memory(ladder.recipe_at(key))
        assert tuple(plan.parts) == COMPONENTS
        assert sum(plan.parts.values()) == plan.peak_allocated_bytes == max(
            sum(held.values()) for held in plan.moments.values()
        )  # fmt: skip
        assert min(plan.parts.values()) >= 0


def test_what_each_change_does_to_the_plan() -> None:
    def plan(**changes: Any):
        return plan_memory(Recipe(**changes))

    base = plan()
    assert base.parts["buffers"] == 12 * 4 * MIB and plan(causal_mask="on_the_fly").parts["buffers"] == 0
    assert base.parts["gradients"] == 0 and base.whole["gradients"] == base.parts["weights"]
    assert plan(accumulation=4).parts["gradients"] == base.parts["weights"]
    assert plan(precision="bfloat16").parts["logits"] < 0.51 * base.parts["logits"]
    one_in_16_bits = (2 + 4 + 4) / (4 + 4 + 4)
    assert plan(precision="bfloat16_autocast").parts["logits"] == pytest.approx(
        one_in_16_bits * base.parts["logits"], rel=1e-4
    )
    assert "cast weights" in plan(precision="bfloat16_autocast").activations
    masters, pure = plan(precision="bfloat16_master"), plan(precision="bfloat16")
    assert masters.parts["optimizer"] - pure.parts["optimizer"] == (12 - 4) * total_parameters(Recipe())
    saved = base.parts["activations"] - plan(attention="sdpa").parts["activations"]
    assert saved > 12 * 8 * 12 * 1024 * 1024 * (4 + 1 + 4)  # probabilities, mask, dropped out: in all layers
    small = Recipe(micro_batch=1, context_length=64)
    assert plan_memory(small).peak_at == "optimizer"
    fused = plan_memory(small.but(optimizer="fused"))
    assert plan_memory(small).moments["optimizer"]["workspace"] - fused.moments["optimizer"]["workspace"] == (
        4 * total_parameters(small)
    )
    older = plan_memory(Recipe(), capability=(7, 5))
    assert base.peak_allocated_bytes - older.peak_allocated_bytes == 2 * (32 * MIB - 8320 * 1024)


def test_a_field_that_the_formulas_do_not_know_is_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Newer(Recipe):
        colour: str = "blue"

    class Plain(Newer):
        def as_dict(self):
            return super().as_dict() | {"colour": self.colour}

    assert not_modelled(Recipe(micro_batch=3)) == ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("speedlab.memory_plan.Recipe", Newer)
        assert not_modelled(Plain(colour="red")) == ("colour",)
        assert not_modelled(Plain()) == ()


def test_nothing_is_kept_twice_in_the_parts() -> None:
    recipe = Recipe()
    one, two = kept_activations(recipe), kept_activations(recipe.but(num_layers=24))
    for name in ("layer norms", "q, k, v", "attention", "feed-forward", "dropout masks"):
        assert two[name] == 2 * one[name]
    assert two["embeddings"] == one["embeddings"] and two["last layer norm"] == one["last layer norm"]
