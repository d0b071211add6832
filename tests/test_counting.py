"""Counts of kernels and traffic, against the operations that PyTorch dispatches for the same module."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from speedlab.measuring import counting, traffic
from speedlab.model.gpt import GPT, Block
from speedlab.recipe import Recipe

SMALL = Recipe(num_layers=1, embedding_width=32, num_heads=2, context_length=16, micro_batch=2, dropout=0.0)
MATMULS = ("mm", "addmm", "bmm")


class Dispatched(TorchDispatchMode):
    """Every operation that would be a kernel: (name, elements it reads, elements it writes, whether it combines a
    tensor with a smaller one)."""

    def __init__(self):
        super().__init__()
        self.kernels = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not function.is_view and name not in ("detach", "_unsafe_view"):
            inputs = [x for x in tree_flatten((args, kwargs or {}))[0] if isinstance(x, torch.Tensor)]
            outputs = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]
            touched = [stored(x) for x in inputs]
            combines = len(outputs) == 1 and any(1 < t < outputs[0].numel() for t in touched)
            self.kernels.append((name, sum(touched), sum(map(stored, outputs)), combines))
        return out


def stored(x):
    """Elements in memory: an expanded dimension is read once."""
    return int(torch.tensor([size for size, stride in zip(x.shape, x.stride(), strict=True) if stride]).prod())


def dispatched(module, x):
    """Kernels of one forward and backward pass, without the gradient that starts it."""
    with Dispatched() as mode:
        out = module(x)
        gradient = torch.ones_like(out)
        out.backward(gradient)
    return [kernel for kernel in mode.kernels if kernel[0] not in ("ones_like", "fill_")]


def block_kernels(**changes):
    recipe = SMALL.but(**changes)
    torch.manual_seed(0)
    x = torch.randn(2, 16, 32, requires_grad=True)
    return recipe, dispatched(Block(recipe), x)


def counted(recipe, **wanted):
    block = [p for p in traffic.eager_block(recipe) if all(getattr(p, name) == v for name, v in wanted.items())]
    return sum(p.bytes / p.item for p in block), sum(p.launches for p in block)


@pytest.mark.parametrize("projection", ["separate", "merged"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", ["stored", "on_the_fly"])
def test_kernels_of_a_layer_are_those_that_pytorch_dispatches(projection, bias, mask):
    recipe, kernels = block_kernels(qkv_projection=projection, qkv_bias=bias, causal_mask=mask)
    names = [name for name, *_ in kernels]
    matmuls = sum(name in MATMULS for name in names)
    dense = sum(3 * m.calls for m in counting.matmuls(recipe) if m.part == "matmuls of the blocks")
    assert matmuls == dense + 6
    small = len(names) - matmuls
    # CUDA fills a masked gradient in a copy of its own (+1); a stored mask is converted once instead of made in two.
    expected = counted(recipe)[1] - 1 - (mask == "stored")
    assert small == pytest.approx(expected, abs=1)
    assert counting.launches(recipe) > len(names)


@pytest.mark.parametrize("layers", ["handwritten", "native"])
def test_traffic_of_a_layer_is_what_its_operations_read_and_write(layers):
    recipe, kernels = block_kernels(layers=layers)
    moved = sum(read + written for name, read, written, _ in kernels if name not in MATMULS)
    scores = 2 * 2 * 16**2
    # The copy that CUDA makes before it fills a masked gradient moves the scores twice.
    expected = counted(recipe)[0] - 2 * scores
    assert moved == pytest.approx(expected, rel=0.03)


def test_operations_with_a_row_or_a_column_are_counted_apart():
    recipe, kernels = block_kernels()
    combined = sum(read + written for name, read, written, combines in kernels
                   if combines and name not in (*MATMULS, "masked_fill_", "masked_fill"))  # fmt: skip
    clones = sum(read + written for name, read, written, _ in kernels if name == "clone")
    assert counted(recipe, kind="indexed")[0] == pytest.approx(combined + clones, rel=0.03)


def test_the_norms_and_gelu_alone():
    """Without the rest of the layer the counts are exact up to the numbers per token."""
    width, tokens = 64, 48
    x = torch.randn(tokens, width, requires_grad=True)
    for layers in ("handwritten", "native"):
        from speedlab.model.layers import LAYERS

        for cls, table in ((LAYERS[layers].layer_norm, traffic.NORM), (LAYERS[layers].gelu, traffic.GELU)):
            x.grad = None
            module = cls(width) if table is traffic.NORM else cls()
            kernels = dispatched(module, x)
            passes = sum(count for count, _ in table[layers].values())
            moved = sum(read + written for _, read, written, _ in kernels)
            if layers == "native" and table is traffic.NORM:
                passes -= 2  # one operation, but on CUDA two kernels read both tensors
            assert moved == pytest.approx(passes * tokens * width, rel=0.1)
            if layers == "handwritten":
                assert len(kernels) == sum(launches for _, launches in table[layers].values())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("projection", ["separate", "merged"])
def test_tensors_are_the_parameters_of_the_model(bias, head, projection):
    recipe = SMALL.but(qkv_bias=bias, output_head=head, qkv_projection=projection, num_layers=3, vocab_size=50)
    assert counting.tensors_of(recipe) == len(list(GPT(recipe).parameters()))


def test_cuda_graphs_and_fused_kernels_leave_fewer_launches():
    compiled, graphs = SMALL.but(compile="default"), SMALL.but(compile="reduce-overhead")
    assert counting.launches(graphs) < counting.launches(compiled) < counting.launches(SMALL)
    assert counting.launches(SMALL.but(optimizer="fused")) < counting.launches(SMALL.but(optimizer="foreach"))
    assert counting.launches(SMALL.but(optimizer="foreach")) < counting.launches(SMALL.but(optimizer="for_loop"))
    once, twice = counting.launches(SMALL), counting.launches(SMALL.but(accumulation=2))
    assert once < twice < 3 * once


def test_a_compiled_head_may_be_padded_to_sixteen_bytes():
    exact = Recipe(compile="default", precision="bfloat16")
    assert counting.aligned_head(exact).outputs == 50_264 and counting.aligned_head(exact).outputs % 8 == 0
    assert counting.aligned_head(Recipe(compile="default")).outputs == 50_260
    assert counting.aligned_head(exact.but(compile="off")) is None
    assert counting.aligned_head(exact.but(vocabulary="padded")) is None


@pytest.mark.parametrize(
    ("changes", "units", "sums"),
    [
        ({}, 1 + 4 + 1 + 3, 4), ({"qkv_projection": "separate"}, 1 + 4 + 1 + 3, 6), ({"qkv_bias": False}, 1 + 4 + 1, 3),
        ({"feed_forward": "sigmoid"}, 1 + 4 + 1 + 3, 4), ({"feed_forward": "fused"}, 1 + 1 + 3, 3),
        ({"residual": "fused"}, 4 + 3, 2), ({"qkv_backward": "fused"}, 1 + 4 + 1, 3),
        ({"qkv_backward": "fused", "qkv_projection": "separate"}, 1 + 4 + 1 + 3, 6),
        ({"feed_forward": "fused", "residual": "fused", "qkv_backward": "fused"}, 0, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compile", ["off", "default"])
def test_a_kernel_that_sums_what_it_writes_saves_the_pass_of_the_bias_gradient(changes, units, sums, compile):
    plain = SMALL.but(qkv_bias=True, qkv_projection="merged", compile=compile, precision="bfloat16")
    recipe = plain.but(**changes)
    assert traffic.bias_gradients(recipe) == (units, sums)
    if recipe.qkv_projection == "merged" and recipe.qkv_bias:
        moved = [sum(part.bytes for part in traffic.element_wise(one)) for one in (plain, recipe)]
        unit = 2 * SMALL.micro_batch * SMALL.context_length * SMALL.embedding_width
        assert moved[0] - moved[1] == pytest.approx((9 - units) * unit)


def test_logits_are_passed_over_as_often_as_the_loss_needs():
    def passes(**changes):
        recipe = SMALL.but(precision="bfloat16", **changes)
        logits = 2.0 * SMALL.micro_batch * SMALL.context_length * recipe.padded_vocab_size
        return sum(part.bytes for part in traffic.element_wise(recipe) if part.part == traffic.LOSS) / logits

    assert passes() == passes(loss="compiled") == passes(compile="default") == 9
    assert passes(loss="compiled", compile="default") == 4
    assert passes(loss="in_place") == passes(loss="liger", compile="default") == 3


def test_one_pass_over_masters_moves_28_bytes_for_each_weight_in_one_launch():
    recipe = SMALL.but(precision="bfloat16_master", optimizer="one_pass")
    weights = counting.weights_of(recipe)
    moved = counting.optimizer(recipe)
    assert (moved.bytes / weights, moved.launches) == (28.0, 1.0)
    assert counting.optimizer(recipe.but(precision="float32")).bytes / weights == 28.0
    assert counting.optimizer(recipe.but(optimizer="fused")).bytes / weights > 28.0
