"""Recipes with a name, for a user who wants the result and not the ladder. Nothing here measures or imports torch.

A preset is written for a large card; `preset_for` says what a given machine runs instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from speedlab.beyond import FASTEST, PLAIN_COMPILED
from speedlab.device import Capabilities, Substitution, adapt, capabilities
from speedlab.errors import check_choice
from speedlab.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A recipe and one sentence on when to take it. Called with a machine, it gives the recipe for that one."""

    recipe: Recipe
    about: str

    def __call__(self, machine: Capabilities) -> Recipe:
        return fitted(self.recipe, machine)[0]


PRESETS: dict[str, Preset] = {
    "fastest": Preset(recipe=FASTEST, about="most tokens per second once it is compiled"),
    "fastest_start": Preset(
        recipe=FASTEST.but(compile="off"), about="the same kernels without a compiler: the first step comes in seconds"
    ),
    "plain_compiled": Preset(
        recipe=PLAIN_COMPILED, about="PyTorch alone: bfloat16 autocast, torch.compile, fused AdamW"
    ),
}

SMALLEST_MICRO_BATCH = 1
# A CPU has no memory limit to ask for; a small batch keeps a step within seconds.
CPU_MICRO_BATCH = 4


def preset(name: str) -> Recipe:
    """The recipe of this name as written; `BadInput` lists the names."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name].recipe


def preset_for(name: str, machine: Capabilities | None = None) -> tuple[Recipe, tuple[Substitution, ...]]:
    """The preset as `machine` (None: this one) can run it, and why its fields differ from the preset's.

    A micro-batch that would not fit is halved and accumulated, so that an update sees as many tokens everywhere.
    """
    return fitted(preset(name), machine or capabilities())


def fitted(wanted: Recipe, machine: Capabilities) -> tuple[Recipe, tuple[Substitution, ...]]:
    """`wanted` as `machine` can run it, and why its fields differ."""
    recipe, substitutions = adapt(wanted, machine)
    asked = recipe.micro_batch
    while recipe.micro_batch > SMALLEST_MICRO_BATCH and not _fits(recipe, machine):
        recipe = recipe.but(micro_batch=recipe.micro_batch // 2, accumulation=recipe.accumulation * 2)
    if recipe.micro_batch != asked:
        gib = f"{(machine.gpu_memory_bytes or 0) / 2**30:.0f} GiB" if machine.device_type == "cuda" else "a CPU"
        reason = f"{gib} hold no micro-batch of {asked}; {recipe.accumulation} smaller ones make one update"
        substitutions = (
            *substitutions,
            Substitution(field="micro_batch", asked=asked, used=recipe.micro_batch, reason=reason),
            Substitution(field="accumulation", asked=1, used=recipe.accumulation, reason=reason),
        )
    return recipe, substitutions


def memory_bytes(recipe: Recipe) -> float:
    """A generous estimate of the memory that a step needs on a GPU, by counting; it decides nothing but the batch.

    `speedlab.memory_plan` is finer, but does not model the fused kernels of the presets (`not_modelled` names them).

    Per token and block, 18 values of the width are kept for the backward pass: stream and norm twice, q/k/v, what
    goes into and out of attention, and two of four times the width. Logits are there once where their gradient takes
    their place, else three times. A tenth more is for what lies between.
    """
    width, item = recipe.embedding_width, 4 if recipe.precision == "float32" else 2
    stream = 1.5 if recipe.precision.endswith("autocast") else 1.0  # float32 between the matmuls
    logits = 1.0 if recipe.loss in ("in_place", "liger") else 3.0
    tokens = recipe.micro_batch * recipe.context_length
    kept = recipe.num_layers * 18 * width * item * stream + recipe.padded_vocab_size * item * logits
    weights = 12 * recipe.num_layers * width**2 + (2 if recipe.output_head == "untied" else 1) * (
        recipe.padded_vocab_size * width
    )
    return 1.1 * (tokens * kept + 16 * weights)


def _fits(recipe: Recipe, machine: Capabilities) -> bool:
    if machine.device_type == "cpu":
        return recipe.micro_batch <= CPU_MICRO_BATCH
    return machine.gpu_memory_bytes is None or memory_bytes(recipe) <= 0.9 * machine.gpu_memory_bytes
