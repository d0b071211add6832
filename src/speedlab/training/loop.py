"""Trains a GPT from tokens for a given number of steps: validation, checkpoints, going on. It measures no speed for
a record, draws nothing and prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speedlab.data.stream import BatchStream
from speedlab.errors import BadInput
from speedlab.model import draw_weights
from speedlab.recipe import Recipe
from speedlab.training.checkpoint import checkpoint_of, progress_of, read_checkpoint, restore, write_checkpoint
from speedlab.training.precision import autocast, matmul_precision
from speedlab.training.step import TrainingStep, loss_over_true_ids

CHECKPOINT = "checkpoint.pt"
VALIDATION_SHARE = 0.1  # of the tokens, at their end, never trained on


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """steps: of the whole training, those before a resume included. The others are in steps and sequences."""

    steps: int
    validate_every: int = 50
    checkpoint_every: int = 100
    validation_sequences: int = 32

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every", "checkpoint_every", "validation_sequences"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise BadInput(f"{name} is {value!r}: it must be a whole number of at least 1")


@dataclass(kw_only=True)
class Trained:
    """step: the model and its optimizer as they are now. losses: nats, one for each step. validation: (steps done,
    nats on the validation part). tokens_per_s: of this call, validation and checkpoints left out, None for no step."""

    step: TrainingStep
    losses: list[float]
    validation: list[tuple[int, float]]
    tokens_per_s: float | None


def train(
    recipe: Recipe,
    tokens: np.ndarray,
    *,
    plan: TrainingPlan,
    out: Path,
    device: torch.device,
    corpus: dict[str, Any],
    resume: bool = False,
    weights: dict[str, Tensor] | None = None,
    say: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> Trained:
    """Train `recipe` on (num_tokens,) token ids in this process and keep a checkpoint in `out`.

    corpus: name and sha256 of the text, so that a resume goes on with the same. weights: canonical weights to start
    from; drawn from the recipe's seed otherwise. With `resume` it goes on from the checkpoint in `out`, and ends with
    the same weights as a training that was never stopped: moments, random states, scaler and place in the data are
    in the checkpoint. say: (text, steps done, steps in all).

    Raises `BadInput` for tokens that are too few, a folder with a checkpoint that nobody asked to resume, and a
    checkpoint of another recipe or text.
    """
    training, validation_part = split_tokens(tokens, recipe)
    path = Path(out) / CHECKPOINT
    if not resume and path.exists():
        raise BadInput(f"{path} exists already: go on with --resume, or choose another folder")
    checkpoint = read_checkpoint(path) if resume else None
    done, losses, validation = _progress(checkpoint, corpus, plan, path)
    torch.manual_seed(recipe.seed)
    step = TrainingStep(recipe, weights or draw_weights(recipe), device)
    if checkpoint is not None:
        restore(checkpoint, step)
    batches = BatchStream(
        training, micro_batch=recipe.micro_batch, context_length=recipe.context_length,
        host_memory=recipe.host_memory, device=device, seed=recipe.seed,
    )  # fmt: skip
    for _ in range(done * recipe.accumulation):  # back to the place in the data
        next(batches)
    seconds, begun, waiting = 0.0, done, []
    started = time.perf_counter()
    while done < plan.steps:
        waiting.append(step(batches))
        done += 1
        last = done == plan.steps
        if not (last or done % plan.validate_every == 0 or done % plan.checkpoint_every == 0):
            continue
        losses += torch.stack(waiting).tolist()  # waits for the device, once for all of them
        waiting = []
        seconds += time.perf_counter() - started
        if last or done % plan.validate_every == 0:
            validation.append((done, validation_loss(step, validation_part, plan.validation_sequences)))
            speed = (done - begun) * recipe.tokens_per_step / seconds
            say(f"loss {losses[-1]:.3f}, validation {validation[-1][1]:.3f}, {speed:,.0f} tokens/s", done, plan.steps)
        if last or done % plan.checkpoint_every == 0:
            progress = {"corpus": corpus, "done": done, "losses": losses, "validation": validation}
            write_checkpoint(path, checkpoint_of(step, **progress))
        started = time.perf_counter()
    speed = (done - begun) * recipe.tokens_per_step / seconds if done > begun else None
    return Trained(step=step, losses=losses, validation=validation, tokens_per_s=speed)


def split_tokens(tokens: np.ndarray, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """(training part, validation part): the last tenth is for validation, but at least one sequence."""
    window = recipe.context_length + 1
    held_out = max(window, int(len(tokens) * VALIDATION_SHARE))
    needed = window * recipe.micro_batch
    if len(tokens) - held_out < needed:
        raise BadInput(
            f"the corpus has {len(tokens):,} tokens; training needs {needed:,} for one batch and {held_out:,} for "
            "validation: give a longer text or a smaller --profile"
        )
    return tokens[: len(tokens) - held_out], tokens[len(tokens) - held_out :]


@torch.no_grad()
def validation_loss(step: TrainingStep, tokens: np.ndarray, sequences: int) -> float:
    """Mean loss in nats over the first `sequences` pieces of (num_tokens,) ids, dropout off, over the ids that exist.

    The model is run as it is, not in its compiled form, which would be compiled again for it.
    """
    recipe = step.recipe
    window = recipe.context_length + 1
    count = min(sequences, len(tokens) // window)
    pieces = torch.from_numpy(np.asarray(tokens[: count * window]).reshape(count, window).astype(np.int64))
    step.model.eval()
    total = 0.0
    try:
        for piece_BT in pieces.split(recipe.micro_batch):
            piece_BT = piece_BT.to(step.device)
            with matmul_precision(recipe), autocast(step.precision, step.device):
                logits_BTV = step.model(piece_BT[:, :-1])
            total += loss_over_true_ids(logits_BTV, piece_BT[:, 1:], recipe.vocab_size).item() * len(piece_BT)
    finally:
        step.model.train()
    return total / count


def _progress(
    checkpoint: dict[str, Any] | None, corpus: dict[str, Any], plan: TrainingPlan, path: Path
) -> tuple[int, list[float], list[tuple[int, float]]]:
    """Steps done, losses and validation so far; a checkpoint of another text or beyond the plan is refused."""
    if checkpoint is None:
        return 0, [], []
    done, losses, validation = progress_of(checkpoint)
    if checkpoint["corpus"] != corpus:
        raise BadInput(
            f"{path} was trained on {checkpoint['corpus'].get('name')}, this is {corpus.get('name')} or its text has "
            "changed: resume with the same --corpus"
        )
    if done > plan.steps:
        raise BadInput(f"{path} has {done} steps already, steps is {plan.steps}: ask for more in all")
    return done, losses, validation
