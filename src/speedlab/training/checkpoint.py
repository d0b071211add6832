"""A training run on disk, complete enough to go on as if it had never stopped. It knows tensors and plain values only.

Written whole or not at all; read with `weights_only=True`, so that a file from elsewhere can hold numbers and no code.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
from pathlib import Path
from typing import Any

import torch

from speedlab.errors import BadInput
from speedlab.recipe import Recipe, one_line_diff
from speedlab.training.step import TrainingStep

FORMAT = 1
# What PyTorch raises for values that are no state of a model, an optimizer or a generator.
_ODD = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
FIELDS = (
    "format", "recipe", "corpus", "done", "losses", "validation", "weights", "optimizer", "scaler", "random_state",
)  # fmt: skip


def checkpoint_of(step: TrainingStep, **progress: Any) -> dict[str, Any]:
    """Everything that the next steps depend on. progress: corpus, done, losses, validation (plain values)."""
    cuda = torch.cuda.get_rng_state_all() if step.device.type == "cuda" else []
    return {
        "format": FORMAT,
        "recipe": step.recipe.as_dict(),
        "weights": step.model.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "scaler": None if step.scaler is None else step.scaler.state_dict(),
        "random_state": {"cpu": torch.get_rng_state(), "cuda": cuda},
        **progress,
    }


def progress_of(checkpoint: dict[str, Any]) -> tuple[int, list[float], list[tuple[int, float]]]:
    """Steps done, a loss for each of them, and (steps done, validation loss); `BadInput` where they do not agree."""
    try:
        done, losses = checkpoint["done"], [float(loss) for loss in checkpoint["losses"]]
        validation = [(int(steps), float(loss)) for steps, loss in checkpoint["validation"]]
    except _ODD as error:
        raise BadInput(f"the checkpoint is damaged ({_first_line(error)}): train anew in another folder") from error
    if type(done) is not int or not 1 <= done == len(losses) or not isinstance(checkpoint["corpus"], dict):
        raise BadInput(
            f"the checkpoint is damaged ({done!r} steps, {len(losses)} losses): train anew in another folder"
        )
    return done, losses, validation


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


def write_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write it beside `path` first, so that an earlier checkpoint is there until this one is complete."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError of its own
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise BadInput(f"cannot write {path}: {reason}; choose another folder or make room") from error
    finally:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            temporary.unlink()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint in this file, on the CPU. `BadInput` for a file that is none, is damaged, or holds code."""
    try:
        checkpoint = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError as error:
        raise BadInput(f"there is no checkpoint at {path}: leave --resume away to begin") from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise BadInput(
            f"{path} is no checkpoint, is damaged, or holds more than tensors and plain values "
            f"({type(error).__name__}): train anew in another folder"
        ) from error
    if not isinstance(checkpoint, dict) or set(checkpoint) != set(FIELDS) or checkpoint["format"] != FORMAT:
        raise BadInput(f"{path} is no checkpoint of this version: it must hold {', '.join(FIELDS)}")
    return checkpoint


def restore(checkpoint: dict[str, Any], step: TrainingStep) -> None:
    """Put weights, moments, scaler and random states of a checkpoint into a step of the same recipe."""
    try:
        theirs = Recipe.from_dict(checkpoint["recipe"])
        if theirs == step.recipe:
            _put(checkpoint, step)
    except BadInput:
        raise
    except _ODD as error:
        raise BadInput(f"the checkpoint is damaged ({_first_line(error)}): train anew in another folder") from error
    if theirs != step.recipe:
        raise BadInput(
            f"the checkpoint was trained with another recipe ({one_line_diff(theirs, step.recipe)}): "
            "resume with the same --recipe and --profile on a like machine"
        )


def _put(checkpoint: dict[str, Any], step: TrainingStep) -> None:
    step.calls = checkpoint["done"]  # beside which the updates are counted
    step.model.load_state_dict(checkpoint["weights"])
    step.optimizer.load_state_dict(checkpoint["optimizer"])
    if step.scaler is not None:
        step.scaler.load_state_dict(checkpoint["scaler"])
    torch.set_rng_state(checkpoint["random_state"]["cpu"])
    if step.device.type == "cuda":
        torch.cuda.set_rng_state_all(checkpoint["random_state"]["cuda"])
