"""A GPT-2 written here by Hugging Face's names, and the same weights in our model: equal logits and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from speedlab.errors import BadInput
from speedlab.model import GPT, load_weights
from speedlab.model.pretrained import gpt2_recipe, weights_from_huggingface

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 3, 32, 4, 16, 50
RECIPE = gpt2_recipe(
    num_layers=LAYERS, embedding_width=WIDTH, num_heads=HEADS, context_length=CONTEXT, vocab_size=VOCABULARY,
    dropout=0.0,
)  # fmt: skip


def their_state_dict(*, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under the names of `GPT2LMHeadModel`, all of them far from their usual zeros and ones."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.empty(shape).normal_(0.0, 0.2, generator=generator)

    weights = {"transformer.wte.weight": draw(VOCABULARY, WIDTH), "transformer.wpe.weight": draw(CONTEXT, WIDTH)}
    for block in range(LAYERS):
        for name, shape in (
            ("ln_1.weight", (WIDTH,)), ("ln_1.bias", (WIDTH,)), ("attn.c_attn.weight", (WIDTH, 3 * WIDTH)),
            ("attn.c_attn.bias", (3 * WIDTH,)), ("attn.c_proj.weight", (WIDTH, WIDTH)), ("attn.c_proj.bias", (WIDTH,)),
            ("ln_2.weight", (WIDTH,)), ("ln_2.bias", (WIDTH,)), ("mlp.c_fc.weight", (WIDTH, 4 * WIDTH)),
            ("mlp.c_fc.bias", (4 * WIDTH,)), ("mlp.c_proj.weight", (4 * WIDTH, WIDTH)), ("mlp.c_proj.bias", (WIDTH,)),
        ):  # fmt: skip
            weights[f"transformer.h.{block}.{name}"] = draw(*shape)
        weights[f"transformer.h.{block}.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT).tril()  # old files have it
        weights[f"transformer.h.{block}.attn.masked_bias"] = torch.tensor(-1e4)
    weights |= {"transformer.ln_f.weight": draw(WIDTH), "transformer.ln_f.bias": draw(WIDTH)}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    return weights


def their_logits(weights: dict[str, Tensor], tokens_BT: Tensor) -> Tensor:
    """GPT-2's forward pass in plain tensor operations (Radford et al. 2019), Conv1D as x @ weight + bias."""

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)
        return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def conv1d(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    count = tokens_BT.shape[1]
    x = weights["transformer.wte.weight"][tokens_BT] + weights["transformer.wpe.weight"][:count]
    future = torch.ones(count, count).triu(1).bool()
    for block in range(LAYERS):
        h = f"transformer.h.{block}"
        parts = conv1d(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").split(WIDTH, dim=-1)
        q, k, v = (p.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for p in parts)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).masked_fill(future, -math.inf)
        x = x + conv1d((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2), f"{h}.attn.c_proj")
        up = conv1d(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")
        gelu = 0.5 * up * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = x + conv1d(gelu, f"{h}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ weights["lm_head.weight"].T


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qkv_projection": "merged", "attention": "sdpa", "layers": "native"},
        {"vocabulary": "padded"},
        {"output_head": "untied"},
    ],
)
def test_the_same_weights_give_the_same_logits_and_gradients(changes: dict) -> None:
    theirs = {name: value.double() for name, value in their_state_dict().items()}
    tokens_BT = torch.randint(VOCABULARY, (2, CONTEXT), generator=torch.Generator().manual_seed(1))
    recipe = RECIPE.but(**changes)
    model = GPT(recipe)
    load_weights(model, weights_from_huggingface(their_state_dict(), recipe))
    model.double()
    table = theirs["transformer.wte.weight"].requires_grad_()
    theirs["lm_head.weight"] = table if recipe.output_head == "tied" else table.detach()
    expected = their_logits(theirs, tokens_BT)
    found = model(tokens_BT)[..., :VOCABULARY]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    expected.logsumexp(-1).sum().backward()
    found.logsumexp(-1).sum().backward()
    torch.testing.assert_close(model.token_table.weight.grad[:VOCABULARY], table.grad, rtol=1e-9, atol=1e-9)


def test_a_state_dict_without_head_and_prefix_loads_too() -> None:
    whole = their_state_dict()
    bare = {name.removeprefix("transformer."): value for name, value in whole.items() if name != "lm_head.weight"}
    one, two = weights_from_huggingface(whole, RECIPE), weights_from_huggingface(bare, RECIPE)
    assert list(one) == list(two) and all(torch.equal(one[name], two[name]) for name in one)


def without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in their_state_dict().items() if key != name}


@pytest.mark.parametrize(
    ("state_dict", "changes", "words"),
    [
        (without("transformer.h.1.mlp.c_fc.bias"), {}, r"lacks h\.1\.mlp\.c_fc\.bias"),
        (their_state_dict(), {"num_layers": 4}, r"lacks h\.3\.ln_1\.weight: it is not a GPT-2 of 4 layers"),
        (their_state_dict(), {"num_layers": 2}, r"holds h\.2\.attn\.c_attn\.bias, which a GPT-2 of 2 layers has not"),
        (their_state_dict(), {"context_length": 8}, r"position_table\.weight is \(16, 32\), the recipe says \(8, 32\)"),
        (their_state_dict(), {"vocab_size": 51}, r"token_table\.weight is \(50, 32\)"),
        (their_state_dict(), {"qkv_bias": False}, "GPT-2 needs qkv_bias=True"),
        (their_state_dict() | {"lm_head.weight": torch.zeros(VOCABULARY, WIDTH)}, {}, "differs from wte.weight"),
        (torch.nn.Linear(1, 1), {}, r"a Linear is no state dict: give what model\.state_dict\(\) returns"),
        ({1: torch.zeros(1)}, {}, "a dict is no state dict"),
        (their_state_dict() | {"extra": torch.zeros(1)}, {}, "holds extra"),
    ],
)
def test_what_does_not_fit_is_named(state_dict: dict, changes: dict, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        weights_from_huggingface(state_dict, RECIPE.but(**changes))
    assert "\n" not in str(caught.value)
