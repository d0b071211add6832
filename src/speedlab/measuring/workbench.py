"""What the rungs of one session share: machine, tokens, weights, the recipe each rung runs with here."""

from __future__ import annotations

import functools
import os
import secrets
import tempfile
from datetime import UTC, datetime
from typing import Any

from speedlab.cards import device_slug
from speedlab.data.corpus import load_corpus
from speedlab.data.tokenizer import get_tokenizer
from speedlab.data.tokens import TokenFile, tokenize
from speedlab.device import Capabilities, Substitution, adapt
from speedlab.errors import BadInput, NotAvailable
from speedlab.inert import inert_reason
from speedlab.ladder import Ladder, Rung
from speedlab.profile import Profile, check_steps
from speedlab.recipe import Recipe
from speedlab.records.store import current_commit, source_hash


class Workbench:
    """One machine, one profile, one corpus, one random session id; weights are drawn once for each model shape."""

    def __init__(
        self,
        profile: Profile,
        machine: Capabilities,
        *,
        corpus: str = "standard-library",
        steps: int = 0,
    ) -> None:
        import torch

        from speedlab.measuring.machine import describe_machine
        from speedlab.measuring.variant import Plan
        from speedlab.training.distributed import Place

        if machine.device_type == "cpu" and profile.publishable:
            raise NotAvailable(f"profile {profile.name} needs a GPU, and there is none here: choose smoke or auto")
        # The chapters of one batch run are processes of their own and share the runner's session.
        self.id = os.environ.get("SPEEDLAB_SESSION") or secrets.token_hex(6)
        self.profile, self.machine = profile, machine
        self.plan = Plan(
            contract_steps=profile.contract_steps,
            warmup_steps=profile.warmup_steps,
            steps=check_steps(steps) or profile.steps,
        )
        if machine.device_type == "cuda" and self.plan.steps < 30:
            raise BadInput(f"steps is {steps}: a row of a GPU needs at least 30 timed steps")
        self.device = torch.device(machine.device_type)
        self.device_slug = device_slug(machine.gpu_name)
        self.machine_record = describe_machine()
        self.place = Place(device=self.device)
        self.corpus = corpus
        self.tokens = load_tokens(corpus, profile)
        self.corpus_record = {
            "name": self.tokens.corpus_name,
            "sha256": self.tokens.corpus_sha256,
            "tokens": len(self.tokens.tokens),
        }
        self.ceilings: dict[str, Any] | None = None  # measured by whoever needs them first
        self.provenance = {"source_hash": source_hash(), "commit": current_commit()}
        use_cold_compile_cache()
        self._weights: dict[tuple, dict[str, Any]] = {}

    def recipe(self, ladder: Ladder, key: str) -> tuple[Recipe, tuple[Substitution, ...]]:
        """The recipe of a rung as this profile and machine run it."""
        return adapt(self.profile.recipe(ladder, key), self.machine)

    def scaled(self, recipe: Recipe) -> Recipe:
        """A recipe of no ladder at this profile's scale, as this machine can run it."""
        return adapt(self.profile.scaled(recipe), self.machine)[0]

    def before(self, ladder: Ladder, key: str) -> str | None:
        """The nearest rung below that changes anything on this machine; None for the first."""
        below = ladder.before(key)
        while below is not None and self.undone(ladder, ladder.rung(below)) is not None:
            below = ladder.before(below)
        return below

    def undone(self, ladder: Ladder, rung: Rung) -> Substitution | None:
        """Why this rung makes no difference here, if it makes none: by the machine, its recipe or the profile."""
        recipe, substitutions = self.recipe(ladder, rung.key)
        key = ladder.before(rung.key)
        if key is None:
            return None
        before, substitutions_before = self.recipe(ladder, key)
        field = next(iter(rung.change))
        own = next((s for s in substitutions if s.field == field), None)
        if recipe == before and own is not None:
            return own
        reason = inert_reason(field, before, recipe)
        if reason is None and recipe != before:
            return None
        # Taking away a change that the rung before was refused leaves nothing to measure either.
        refused = next((s.reason for s in substitutions_before if s.field == field), None)
        same = f"profile {self.profile.name} leaves no difference between it and {key}"
        return Substitution(
            field=field, asked=rung.key, used=key, reason=reason or refused or same, status="not_applicable"
        )

    def weights_for(self, recipe: Recipe) -> dict[str, Any]:
        from speedlab.model import draw_weights

        shape = (
            recipe.num_layers, recipe.embedding_width, recipe.context_length, recipe.vocab_size, recipe.output_head,
            recipe.qkv_bias, recipe.seed,
        )  # fmt: skip
        if shape not in self._weights:
            self._weights[shape] = draw_weights(recipe)
        return self._weights[shape]

    def base_record(self, ladder: Ladder, rung: Rung, recipe: Recipe, substitutions) -> dict[str, Any]:
        """The fields that a record has whatever becomes of the rung."""
        return {
            "session": self.id,
            "device": self.device_slug,
            "ladder": ladder.name,
            "rung": rung.key,
            "profile": self.profile.name,
            "recipe": recipe.as_dict(),
            "substitutions": [substitution.as_dict() for substitution in substitutions],
            "contract": rung.contract,
            "machine": self.machine_record,
            "corpus": self.corpus_record,
            "utc": datetime.now(UTC).isoformat(timespec="seconds"),
            **self.provenance,
        }


@functools.cache
def use_cold_compile_cache() -> tempfile.TemporaryDirectory | None:
    """Give this process an empty cache for compiled graphs, once, unless it was told where its cache is.

    Compile times can be compared only from a cold cache. The folder goes when the process ends.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return None
    folder = tempfile.TemporaryDirectory(prefix="speedlab-inductor-", ignore_cleanup_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    return folder


def load_tokens(corpus: str, profile: Profile) -> TokenFile:
    """The corpus as token ids of the profile's vocabulary."""
    return tokenize(load_corpus(corpus, max_bytes=profile.corpus_bytes), get_tokenizer(profile.tokenizer_ranks))
