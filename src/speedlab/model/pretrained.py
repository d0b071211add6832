"""GPT-2 weights as Hugging Face stores them, in this package's canonical form. It reads tensors, never files.

Sizes: C embedding width. Hugging Face's GPT-2 keeps its four linear layers of a block as `Conv1D`: weights of shape
(inputs, outputs), the transpose of `nn.Linear`; q, k and v are one matrix of 3 C outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from speedlab.errors import BadInput
from speedlab.model.weights import draw_weights
from speedlab.recipe import Recipe

# Ours on the left; below h.<block>. of theirs on the right.
_NORMS = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
_LINEARS = {"attention.out": "attn.c_proj", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"}
# Causal masks that old files carry as if they were weights.
_MASKS = (".attn.bias", ".attn.masked_bias")


def gpt2_recipe(**changes: object) -> Recipe:
    """The shape of OpenAI's GPT-2 as this package says it: tied head, biases, and 12 layers unless `changes` say so."""
    return Recipe(output_head="tied", qkv_bias=True).but(**changes)


def weights_from_huggingface(state_dict: Mapping[str, Tensor], recipe: Recipe) -> dict[str, Tensor]:
    """Canonical float32 weights (see `draw_weights`) from a state dict of `GPT2LMHeadModel` or `GPT2Model`.

    recipe: must have the shape of that model; with `qkv_bias=True`, because GPT-2 has those biases. A tied head needs
    no weights of its own; an untied one takes `lm_head.weight`, or a copy of the token table.

    Raises `BadInput` naming the first weight that is missing, left over, or of another shape.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(name, str) for name in state_dict):
        raise BadInput(f"a {type(state_dict).__name__} is no state dict: give what model.state_dict() returns")
    theirs = {name.removeprefix("transformer."): value for name, value in state_dict.items()}
    theirs = {name: value for name, value in theirs.items() if not name.endswith(_MASKS)}
    head = theirs.pop("lm_head.weight", None)
    ours: dict[str, Tensor] = {}

    def take(name: str) -> Tensor:
        if name not in theirs:
            raise BadInput(f"the state dict lacks {name}: it is not a GPT-2 of {recipe.num_layers} layers")
        return theirs.pop(name).detach().float().cpu()

    ours["token_table.weight"] = take("wte.weight")
    ours["position_table.weight"] = take("wpe.weight")
    for block in range(recipe.num_layers):
        own, other = f"blocks.{block}", f"h.{block}"
        for mine, name in _NORMS.items():
            for part in ("weight", "bias"):
                ours[f"{own}.{mine}.{part}"] = take(f"{other}.{name}.{part}")
        for mine, name in _LINEARS.items():
            ours[f"{own}.{mine}.weight"] = take(f"{other}.{name}.weight").t().contiguous()
            ours[f"{own}.{mine}.bias"] = take(f"{other}.{name}.bias")
        _split(ours, f"{own}.attention.project", take(f"{other}.attn.c_attn.weight").t(), "weight")
        _split(ours, f"{own}.attention.project", take(f"{other}.attn.c_attn.bias"), "bias")
    for part in ("weight", "bias"):
        ours[f"final_norm.{part}"] = take(f"ln_f.{part}")
    if recipe.output_head == "untied":
        ours["head.weight"] = (ours["token_table.weight"] if head is None else head.detach().float().cpu()).clone()
    elif head is not None and not torch.equal(head.detach().float().cpu(), ours["token_table.weight"]):
        raise BadInput('lm_head.weight differs from wte.weight: use a recipe with output_head="untied"')
    if theirs:
        raise BadInput(f"the state dict holds {sorted(theirs)[0]}, which a GPT-2 of {recipe.num_layers} layers has not")
    return _checked(ours, recipe)


def _split(ours: dict[str, Tensor], prefix: str, joined: Tensor, part: str) -> None:
    """q, k and v from the rows of their joined matrix (3 C, C), or their joined bias (3 C,)."""
    for name, piece in zip(("query", "key", "value"), joined.chunk(3), strict=True):
        ours[f"{prefix}.{name}.{part}"] = piece.clone(memory_format=torch.contiguous_format)


def _checked(ours: dict[str, Tensor], recipe: Recipe) -> dict[str, Tensor]:
    """`ours` in the order of the canonical weights, each of the shape that the recipe says."""
    wanted = draw_weights(recipe)
    if unknown := sorted(set(ours) - set(wanted)):
        raise BadInput(f"the recipe has no {unknown[0]}: GPT-2 needs qkv_bias=True")
    for name, value in wanted.items():
        if ours[name].shape != value.shape:
            raise BadInput(
                f"{name} is {tuple(ours[name].shape)}, the recipe says {tuple(value.shape)}: change its sizes"
            )
    return {name: ours[name] for name in wanted}
