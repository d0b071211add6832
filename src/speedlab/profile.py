"""Profiles scale the whole experiment to a machine: how large a model, how many steps. Ladders know nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from speedlab.errors import BadInput, check_choice
from speedlab.ladder import Ladder
from speedlab.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How a ladder is run: changes to every recipe, the divisor of its micro-batches, and the numbers of steps."""

    name: str
    about: str
    changes: dict[str, Any] = field(default_factory=dict)
    micro_batch_divisor: int = 1
    warmup_steps: int  # after the first step, which holds compilation and is reported apart
    steps: int  # timed
    contract_steps: int  # compared between a rung and the one before it, dropout off
    curve_tokens: int  # over which a rung that alters the training is compared by its loss curve
    corpus_bytes: int | None  # how much of the corpus is read, None for all
    tokenizer_ranks: int | None = None  # size of the vocabulary without end-of-text, None for all of GPT-2's
    publishable: bool = True

    def recipe(self, ladder: Ladder, key: str) -> Recipe:
        """The recipe of one rung, scaled."""
        return self.scaled(ladder.recipe_at(key))

    def scaled(self, recipe: Recipe) -> Recipe:
        """Any recipe, scaled. Micro-batches keep their ratio and never fall below one sequence."""
        micro_batch = max(1, recipe.micro_batch // self.micro_batch_divisor)
        return recipe.but(**(self.changes | {"micro_batch": micro_batch}))


FULL = Profile(
    name="full",
    about="GPT-2 124M, context 1024, the published batches; needs about 30 GiB of GPU memory, ladder six-steps 40",
    warmup_steps=5,
    steps=30,
    contract_steps=10,
    curve_tokens=300 * 8 * 1024,
    corpus_bytes=None,
)

# The published 16 GB account ran micro-batch 4 where the 40 GB one ran 16; the batch rung's 32 becomes 8.
T4 = Profile(
    name="t4",
    about="GPT-2 124M, context 1024, micro-batches a quarter of the published ones; fits 16 GB",
    micro_batch_divisor=4,
    warmup_steps=3,
    steps=30,
    contract_steps=5,
    curve_tokens=300 * 2 * 1024,
    corpus_bytes=None,
)

# Dropout is off here so that one compiled graph serves the contract check and the timing: a CPU compiles for half a
# minute per graph. The model is far too small to say anything about speed on a GPU; it proves that everything runs.
SMOKE = Profile(
    name="smoke",
    about="a toy of two layers that proves on any CPU that everything runs; its speeds mean nothing",
    changes={
        "num_layers": 2, "embedding_width": 64, "num_heads": 2, "context_length": 64, "vocab_size": 1_001,
        "dropout": 0.0,
    },
    micro_batch_divisor=2,
    warmup_steps=3,
    steps=9,
    contract_steps=3,
    curve_tokens=20 * 4 * 64,
    corpus_bytes=400_000,
    tokenizer_ranks=1_000,
    publishable=False,
)  # fmt: skip

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (FULL, T4, SMOKE)}


def get_profile(name: str, *, gpu_memory_bytes: int | None = None) -> Profile:
    """The profile of this name; "auto" chooses by the memory of the GPU (None: no GPU, so the smoke profile).

    The limit is what the largest rung of ladder "nine-steps" needs at full size, about 27 GiB.
    """
    check_choice("profile", name, (*PROFILES, "auto"))
    if name != "auto":
        return PROFILES[name]
    if gpu_memory_bytes is None:
        return SMOKE
    return FULL if gpu_memory_bytes >= 30 * 2**30 else T4


MOST_STEPS = 100_000  # more would be a slip of the finger: hours for each rung


def check_steps(steps: int) -> int:
    """`steps` as given (0: what the profile says), refused unless it is a whole number that can be meant."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= MOST_STEPS:
        raise BadInput(
            f"steps is {steps!r}: it must be a whole number up to {MOST_STEPS:,}, 0 for what the profile says"
        )
    return steps
