"""The published scaling on trial: the same steps under the published stopwatch and under ours, on any number of GPUs.

What a stopwatch holds besides training does not become faster with more GPUs, so it lowers the scaling that is read
off. Each row says what is inside the window: evaluations, loaders that start, both, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from speedlab.data.stream import BatchStream
from speedlab.device import available_cores
from speedlab.measuring.published_stopwatch import (
    EVALUATION_LOADERS,
    WORKERS,
    evaluate_as_published,
    evaluation_windows,
)
from speedlab.measuring.stopwatch import Stopwatch, synchronize
from speedlab.measuring.variant import start_fresh, start_variant
from speedlab.recipe import Recipe
from speedlab.training.distributed import Place
from speedlab.training.step import TrainingStep, token_loss

WARMUP_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Trial:
    """evaluate_every: steps between evaluations, 0 for none. timed: whether the window holds them. workers: "new" for
    each evaluation or epoch, or "persistent". epoch_steps: steps after which the training loader begins anew, 0: never.
    """

    key: str
    title: str
    evaluate_every: int = 0
    timed: bool = True
    workers: str = "persistent"
    epoch_steps: int = 0


# The published program evaluates every 10 steps on one GPU and every 5 on four, and starts its workers anew each time.
TRIALS = (
    Trial(key="training_only", title="training only"),
    Trial(key="evaluation_every_10", title="evaluation every 10 steps in the window", evaluate_every=10, workers="new"),
    Trial(key="evaluation_every_5", title="evaluation every 5 steps in the window", evaluate_every=5, workers="new"),
    Trial(key="persistent_workers", title="the same, workers kept", evaluate_every=5),
    Trial(key="restarted_after", title="evaluation every 5 steps, timer restarted after it", evaluate_every=5,
          timed=False, workers="new"),
    Trial(key="short_epochs", title="a new epoch every 10 steps, new workers", epoch_steps=10, workers="new"),
    Trial(key="short_epochs_kept", title="a new epoch every 10 steps, workers kept", epoch_steps=10),
)  # fmt: skip


def trial_rows(
    recipe: Recipe, weights: dict[str, Tensor], tokens: np.ndarray, place: Place, *, steps: int
) -> Iterator[dict[str, Any]]:
    """One row for each of `TRIALS`, of one model that goes on training: {key, title, ..., window_ms, steps}.

    window_ms: what the stopwatch of that row shows for all `steps` together. Every process evaluates, as in the
    published program.
    """
    start_fresh(place.device)
    step, _ = start_variant(recipe, weights, tokens, place)
    workers = min(WORKERS, available_cores())
    loaders = _Loaders(tokens, recipe, place, workers)
    windows = evaluation_windows(tokens, recipe)
    kept = _kept_evaluation(step, windows, workers)
    batches = loaders.stream()
    for _ in range(WARMUP_STEPS):
        step(batches)
    evaluate_as_published(step, windows, workers=workers)  # its first call compiles and allocates
    for trial in TRIALS:
        evaluate = partial(evaluate_as_published, step, windows, workers=workers) if trial.workers == "new" else kept
        window_ms = _window_ms(trial, step, loaders, evaluate, steps)
        yield asdict(trial) | {"window_ms": window_ms, "steps": steps, "tokens_per_step": recipe.tokens_per_step}


def _window_ms(trial: Trial, step: TrainingStep, loaders: _Loaders, evaluate: Callable[[], None], steps: int) -> float:
    batches = loaders.stream()
    total_ms = 0.0
    synchronize(step.device)
    watch = Stopwatch(step.device)
    watch.mark()
    for count in range(1, steps + 1):
        step(batches)
        if trial.epoch_steps and count % trial.epoch_steps == 0:
            batches = loaders.stream(anew=trial.workers == "new")
        if trial.evaluate_every and count % trial.evaluate_every == 0:
            synchronize(step.device)  # the published program reads its timer here
            if not trial.timed:
                watch.mark()
                total_ms += sum(watch.step_ms())
            evaluate()
            if not trial.timed:
                synchronize(step.device)
                watch = Stopwatch(step.device)
                watch.mark()
    watch.mark()
    return total_ms + sum(watch.step_ms())


class _Loaders:
    """The training loader with worker processes, started once or again and again."""

    def __init__(self, tokens: np.ndarray, recipe: Recipe, place: Place, workers: int) -> None:
        self._stream = BatchStream(
            tokens, micro_batch=recipe.micro_batch, context_length=recipe.context_length,
            host_memory=recipe.host_memory, device=place.device, seed=recipe.seed, rank=place.rank,
            world_size=place.world_size, num_workers=workers,
        )  # fmt: skip

    def stream(self, *, anew: bool = False) -> BatchStream:
        if anew:
            self._stream.close()
        self._stream.start()
        return self._stream


def _kept_evaluation(step: TrainingStep, windows: TensorDataset, workers: int) -> Callable[[], None]:
    """The published evaluation with loaders whose workers stay."""
    loaders = [
        DataLoader(
            windows, batch_size=step.recipe.micro_batch, shuffle=True, num_workers=workers,
            persistent_workers=workers > 0,
        )
        for _ in range(EVALUATION_LOADERS)
    ]  # fmt: skip

    @torch.no_grad()
    def evaluate() -> None:
        step.model.eval()
        for loader in loaders:
            tokens_BT, targets_BT = next(iter(loader))
            token_loss(step.model(tokens_BT.to(step.device)), targets_BT.to(step.device)).item()
        step.model.train()

    evaluate()  # the workers start here
    return evaluate
