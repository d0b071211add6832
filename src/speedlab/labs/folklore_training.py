"""Short trainings that claims of the folklore are about: padded logits, and whether fused attention regularises.

It trains and measures; `speedlab.folklore` judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from speedlab.labs.loss_against_time import split, validation_loss
from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS

if TYPE_CHECKING:
    from speedlab.measuring.workbench import Workbench
    from speedlab.recipe import Recipe

# What becomes of padded logits: they take part in the loss, they are left out, or they do and start like the others.
PADDED = ("counted", "left out", "counted, rows drawn")
STEPS, TOY_STEPS = 150, 4
LOOKED_AT = (1, 10, 50, 150)  # after so many steps: how likely is an id that does not exist?
SEEDS, SMALL_STEPS = (1, 2, 3, 4), 300
SMALL = {"num_layers": 4, "embedding_width": 256, "num_heads": 4, "context_length": 256, "micro_batch": 32}


def folklore_training(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Rows by `what`: padding (true_losses, and padded_probability after some steps), attention (losses by seed)."""
    real = bench.profile.publishable
    recipe = bench.recipe(NINE_STEPS, "padded_vocab")[0].but(compile="off", dropout=0.0)
    for padded in PADDED:
        say(f"padded logits {padded}")
        yield attempt(
            partial(_padded, bench, recipe, padded, STEPS if real else TOY_STEPS), what="padding", padded=padded
        )
    small = bench.scaled(NINE_STEPS.recipe_at("merged_qkv")).but(precision="bfloat16_autocast", dropout=0.0)
    if real:
        small = small.but(**SMALL)
    for seed in SEEDS if real else SEEDS[:1]:
        for attention in ("plain", "sdpa_flash"):
            say(f"a small model, {attention}, seed {seed}")
            chosen = small.but(attention=attention, seed=seed)
            yield attempt(
                partial(_trained, bench, chosen, SMALL_STEPS if real else TOY_STEPS),
                what="attention", kind=attention, seed=seed,
            )  # fmt: skip


def _padded(bench: Workbench, recipe: Recipe, padded: str, steps: int) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F

    from speedlab.measuring.variant import start_fresh, start_variant
    from speedlab.training.precision import autocast, matmul_precision
    from speedlab.training.step import loss_over_true_ids

    start_fresh(bench.device)
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    if padded == "counted, rows drawn":
        generator = torch.Generator(bench.device).manual_seed(recipe.seed)
        with torch.no_grad():
            step.model.head.weight[recipe.vocab_size :].normal_(0.0, 0.02, generator=generator)
    last = recipe.vocab_size if padded == "left out" else recipe.padded_vocab_size
    losses, probability = [], {}
    with matmul_precision(recipe):
        for number, (tokens, targets) in enumerate(islice(batches, steps), start=1):
            with autocast(step.precision, bench.device):
                logits = step.model(tokens)
                loss = F.cross_entropy(logits[..., :last].flatten(0, 1), targets.flatten())
            losses.append(loss_over_true_ids(logits, targets, recipe.vocab_size))
            if number in LOOKED_AT or number == steps:
                chances = torch.softmax(logits[:1].detach().float(), dim=-1)
                probability[str(number)] = chances[..., recipe.vocab_size :].sum(dim=-1).mean().item()
                del chances
            del logits
            step.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            step.optimizer.step()
    return {
        "true_losses": torch.stack(losses).tolist(),
        "padded_probability": probability,
        "padded_ids": recipe.padded_vocab_size - recipe.vocab_size,
    }


def _trained(bench: Workbench, recipe: Recipe, steps: int) -> dict[str, Any]:
    import torch

    from speedlab.measuring.variant import start_fresh, start_variant

    start_fresh(bench.device)
    training, validation = split(bench.tokens.tokens, recipe.context_length)
    step, batches = start_variant(recipe, bench.weights_for(recipe), training, bench.place)
    losses = torch.stack([step(batches) for _ in range(steps)]).float()
    return {
        "steps": steps,
        "layers": recipe.num_layers,
        "train_loss": losses[-max(1, steps // 10) :].mean().item(),
        "validation_loss": validation_loss(step, validation),
    }
