"""What torchrun starts on each rank: join the group once, do the jobs one after another; rank 0 alone writes answers.

One group for the whole life of a process: a second one could meet the addresses of the first.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from speedlab.errors import BadInput
from speedlab.labs.rows import attempt
from speedlab.measuring.communication import communication_record, link_rates, step_timeline
from speedlab.measuring.kernels import in_format
from speedlab.measuring.memory import free_everything
from speedlab.measuring.variant import Plan, measure_variant, start_fresh, start_variant
from speedlab.measuring.workbench import load_tokens
from speedlab.model import draw_weights
from speedlab.profile import get_profile
from speedlab.recipe import Recipe
from speedlab.records.store import write_text_atomic
from speedlab.training.distributed import Place, process_group

WARMUP_BEFORE_PROFILE = 3
# Numbers of this rank in a job's value; the answer holds a list of all ranks' instead.
OF_EACH = "of_each"


class Rank:
    """One process of the group with what its jobs share: tokens, weights, and the rates of the link once measured."""

    def __init__(self, corpus: str, profile: str, place: Place) -> None:
        self.place = place
        self.tokens = load_tokens(corpus, get_profile(profile)).tokens
        self.link: list[dict[str, float]] = []
        self._weights: tuple[Recipe, dict[str, torch.Tensor]] | None = None

    def weights_for(self, recipe: Recipe) -> dict[str, torch.Tensor]:
        if self._weights is None or not _same_shape(self._weights[0], recipe):
            self._weights = recipe, draw_weights(recipe)
        return self._weights[1]

    def variant(self, recipe: dict[str, Any], plan: dict[str, Any], **options: bool) -> dict[str, Any]:
        """Check and time one recipe; the median and the memory of every rank beside the samples of this one."""
        recipe = Recipe.from_dict(recipe)
        measured = measure_variant(recipe, self.weights_for(recipe), self.tokens, Plan(**plan), self.place, **options)
        peak = measured.peak.allocated_bytes
        own = {"median_step_ms": median(measured.step_ms)} | ({} if peak is None else {"peak_allocated_bytes": peak})
        return {"measured": asdict(measured), OF_EACH: own}

    def measure_link(self) -> list[dict[str, float]]:
        self.link = link_rates(self.place) if self.place.world_size > 1 else []
        return self.link

    def timeline(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """Where the communication of a step lies in time, and its kernels, on this rank."""
        recipe = Recipe.from_dict(recipe)
        start_fresh(self.place.device)
        step, batches = start_variant(recipe, self.weights_for(recipe), self.tokens, self.place)
        parameters = sum(p.numel() for p in step.model.parameters())
        for _ in range(WARMUP_BEFORE_PROFILE):
            step(batches)
        timeline, kernels = step_timeline(partial(step, batches), self.place)
        del step, batches
        free_everything(self.place.device)
        return {
            "communication": communication_record(self.place, recipe, parameters, self.link, timeline),
            "kernels": in_format(kernels, recipe),
        }

    def stopwatch(self, recipe: dict[str, Any], steps: int) -> list[dict[str, Any]]:
        """The published stopwatch and ours around the same steps."""
        from speedlab.measuring.stopwatch_trial import trial_rows

        recipe = Recipe.from_dict(recipe)
        return list(trial_rows(recipe, self.weights_for(recipe), self.tokens, self.place, steps=steps))


KINDS: dict[str, Callable[..., Any]] = {
    "variant": Rank.variant,
    "link": Rank.measure_link,
    "timeline": Rank.timeline,
    "stopwatch": Rank.stopwatch,
}


def do_jobs(folder: Path, place: Place) -> None:
    """All jobs of `folder`/jobs.json; answers go to `folder`/<number>.json as each ends."""
    work = json.loads((folder / "jobs.json").read_text())
    rank = Rank(work["corpus"], work["profile"], place)
    alone = len(work["jobs"]) == 1
    for number, job in enumerate(work["jobs"]):
        if _too_late(work["deadline_unix_s"], job["reserve_s"], place):
            answer = {"status": "unavailable", "reason": "the time that this session was given was used up before"}
        else:
            answer = _answer(rank, job, alone=alone)
        if place.rank == 0:
            write_text_atomic(folder / f"{number}.json", json.dumps(answer))


def _answer(rank: Rank, job: dict[str, Any], *, alone: bool) -> dict[str, Any]:
    """What became of a job on all ranks. A lone job raises instead: nothing after it is to be saved."""
    do = partial(KINDS[job["kind"]], rank, **job["arguments"])
    if alone:
        return {"status": "measured", "reason": None, "value": _gathered(do(), rank.place)}
    try:
        answer = attempt(lambda: {"value": do()})
    except BadInput as error:  # one combination of fields among many
        answer = {"status": "error", "reason": str(error)}
    failed = [number for number, bad in enumerate(rank.place.each(answer["status"] != "measured")) if bad]
    if failed and answer["status"] == "measured":
        answer = {"status": "error", "reason": f"process {failed[0]} failed, this one did not"}
    if answer["status"] == "measured":
        answer["value"] = _gathered(answer["value"], rank.place)
    else:
        free_everything(rank.place.device)
    return answer


def _gathered(value: Any, place: Place) -> Any:
    """Called when every rank is known to have a value: one that fails alone must not leave the others waiting."""
    if isinstance(value, dict) and OF_EACH in value:
        value[OF_EACH] = {name: place.each(number) for name, number in value[OF_EACH].items()}
    return value


def _too_late(deadline_unix_s: float | None, reserve_s: float, place: Place) -> bool:
    """Whether any rank's clock is past the deadline: all must agree on what to do next."""
    return any(place.each(deadline_unix_s is not None and time.time() > deadline_unix_s - reserve_s))


def _same_shape(one: Recipe, two: Recipe) -> bool:
    fields = ("num_layers", "embedding_width", "context_length", "vocab_size", "output_head", "qkv_bias", "seed")
    return all(getattr(one, name) == getattr(two, name) for name in fields)


def main(folder: str) -> None:
    """What torchrun runs on each rank."""
    with process_group() as place:
        do_jobs(Path(folder), place)


if __name__ == "__main__":
    main(*sys.argv[1:])
