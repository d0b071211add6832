"""The published program's stopwatch put on trial: its timer runs while the model is evaluated, ours does not.

It tells whether our baseline is the published one: the same arithmetic, timed the same way, must give the same speed.
`python -m speedlab.measuring.published_stopwatch DIR` measures both ways in one session and writes the two records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from speedlab.device import capabilities
from speedlab.ladder import Ladder, Rung
from speedlab.measuring.events import Event
from speedlab.measuring.session import Session
from speedlab.measuring.stopwatch import Stopwatch, synchronize
from speedlab.measuring.variant import start_variant
from speedlab.profile import get_profile
from speedlab.recipe import Recipe
from speedlab.records.record import Record
from speedlab.records.store import write_record
from speedlab.training.step import Batch, TrainingStep, token_loss

# As published: an evaluation after every 15 steps, on one batch of the training and one of the validation tokens,
# each from a loader whose four workers are started for it; the timer restarts before the evaluation.
EVALUATION_EVERY = 15
EVALUATION_LOADERS = 2
WORKERS = 4
INTERVALS = 4

TRIAL = Ladder(
    name="published-stopwatch",
    title="The published stopwatch against ours",
    start=Recipe(),
    rungs=(
        Rung(key="training_only", title="Timer holds training only", contract="reference"),
        Rung(key="evaluation_inside", title="Timer holds evaluations too", contract="identical"),
    ),
)


def measure_both(session: Session) -> list[Record]:
    """Two records of the same baseline: our window, and one with an evaluation in every 15th step's time.

    The second one's note gives tokens/s over its whole window, which is the published statistic.
    """
    ours = session.measure(TRIAL, TRIAL.rungs[:1])[0]
    recipe = Recipe.from_dict(ours.recipe)
    step, batches = start_variant(recipe, session.weights_for(recipe), session.tokens.tokens, session.place)
    for _ in range(session.plan.warmup_steps):
        step(batches)
    evaluate = partial(
        evaluate_as_published, step, evaluation_windows(session.tokens.tokens, recipe),
        workers=min(WORKERS, session.machine.cores),
    )  # fmt: skip
    step_ms = _time_with_evaluations(step, batches, evaluate)
    tokens_per_s = 1e3 * recipe.tokens_per_step * len(step_ms) / sum(step_ms)
    theirs = replace(
        ours,
        rung="evaluation_inside",
        contract="identical",
        contract_verdict=None,
        step_ms=step_ms,
        kernels=[],
        losses=[],
        energy_j=None,  # of the other window
        energy_steps=None,
        drift_step_ms=None,
        notes=[f"{tokens_per_s:,.0f} tokens/s over the whole window, evaluations included: the published statistic"],
    )
    if session.out is not None:
        write_record(session.out, theirs)
    return [ours, theirs]


def _time_with_evaluations(step: TrainingStep, batches: Iterator[Batch], evaluate: Callable[[], None]) -> list[float]:
    synchronize(step.device)
    watch = Stopwatch(step.device)
    watch.mark()
    for count in range(1, INTERVALS * EVALUATION_EVERY + 1):
        step(batches)
        watch.mark()
        if count % EVALUATION_EVERY == 0:
            synchronize(step.device)  # the published program reads its timer here
            evaluate()
    return watch.step_ms()


@torch.no_grad()
def evaluate_as_published(step: TrainingStep, windows: TensorDataset, *, workers: int) -> None:
    """Two losses in evaluation mode, each on one batch from a loader whose workers are started for it."""
    step.model.eval()
    for _ in range(EVALUATION_LOADERS):
        loader = DataLoader(windows, batch_size=step.recipe.micro_batch, shuffle=True, num_workers=workers)
        tokens_BT, targets_BT = next(iter(loader))
        token_loss(step.model(tokens_BT.to(step.device)), targets_BT.to(step.device)).item()
    step.model.train()


def evaluation_windows(tokens: np.ndarray, recipe: Recipe) -> TensorDataset:
    """A few batches worth of windows (inputs, targets), int64."""
    length, count = recipe.context_length, 4 * recipe.micro_batch
    ids = torch.from_numpy(tokens[: count * length + 1].astype("int64"))
    return TensorDataset(ids[:-1].view(count, length), ids[1:].view(count, length))


def main(arguments: Sequence[str]) -> None:
    def say(event: Event) -> None:
        print(event.kind, event.text, file=sys.stderr)

    machine = capabilities()
    profile = get_profile("auto", gpu_memory_bytes=machine.gpu_memory_bytes)
    session = Session(profile, machine, out=Path(arguments[0]) if arguments else None, report=say)
    for record in measure_both(session):
        print(record.rung, sorted(record.step_ms)[len(record.step_ms) // 2], *record.notes)


if __name__ == "__main__":
    main(sys.argv[1:])
