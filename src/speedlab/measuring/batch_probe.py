"""The largest micro-batch that a whole training step can take: by trying, never by extrapolating.

Each try is a step of its own with a model, an optimizer and a compiler of its own, in an emptied memory, for at least
two updates: AdamW's moments appear in the first one, so that only the second shows the peak. It knows recipes and
the allocator; what a memory plan would have guessed may be given as `guess` and is checked like any other number.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from speedlab.errors import BadInput, NotAvailable
from speedlab.measuring.memory import card_bytes, free_everything, read_peak, reset_peak
from speedlab.measuring.stopwatch import seconds_of
from speedlab.measuring.variant import start_fresh, start_variant
from speedlab.recipe import Recipe
from speedlab.training.distributed import Place

LEAST_UPDATES = 2
# A library that finds no memory for its own workspace says so in its own words.
OUT_OF_MEMORY_WORDS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "DefaultCPUAllocator: can't allocate")


@dataclass(frozen=True, kw_only=True)
class Try:
    """One micro-batch that was tried. Peaks in bytes, None where it did not fit and on a CPU."""

    micro_batch: int
    fits: bool
    seconds: float
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a search found. bounded: it ended at the upper bound, so that more may fit.

    largest: sequences of the largest micro-batch that passed, always one that was tried. limit_bytes: what the
    allocator could take; emulated: less than the card has.
    """

    largest: int
    bounded: bool
    limit_bytes: int | None
    emulated: bool
    tries: list[Try] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether one sequence more was tried and did not fit, or the bound forbade it; otherwise tries ran out."""
        failed = [tried.micro_batch for tried in self.tries if not tried.fits]
        return self.bounded or min(failed, default=0) == self.largest + 1

    @property
    def best(self) -> Try:
        return next(t for t in self.tries if t.micro_batch == self.largest and t.fits)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def largest_that_fits(
    fits: Callable[[int], bool], *, at_most: int, guess: int | None = None, most_tries: int | None = None
) -> int:
    """The largest whole number from 1 to `at_most` for which `fits` is true, 0 if there is none.

    `fits` must be true up to some number and false above. Without a guess the numbers double from 1; with one the
    search starts there in steps of a sixteenth, which double too. Then it bisects. Nothing is tried twice. most_tries:
    end after so many with the largest that passed, as soon as one did: for tries that cost a compilation each.

    largest_that_fits(lambda n: n <= 24, at_most=1000) tries 1, 2, 4, 8, 16, 32, 24, 28, 26, 25 and gives 24.
    """
    if at_most < 1:
        raise BadInput(f"at_most is {at_most}: a search needs room for at least 1")
    if guess is not None and guess < 1:
        raise BadInput(f"guess is {guess}: a micro-batch has at least 1 sequence")
    size = min(guess or 1, at_most)
    stride = max(1, size // 16)
    works, fails, tries = 0, at_most + 1, 0
    while works == 0 or fails > at_most:  # as long as one side of the border is unknown
        if works and tries == most_tries:
            return works
        tries += 1
        if fits(size):
            works = size
            if size == at_most:
                return works
            size = min(size + stride, fails - 1)
        else:
            fails = size
            if size == 1:
                return 0
            size = max(size - stride, works + 1)
        if size in (works, fails):
            break
        stride *= 2
    while fails - works > 1 and (most_tries is None or tries < most_tries):
        tries += 1
        middle = (works + fails) // 2
        works, fails = (middle, fails) if fits(middle) else (works, middle)
    return works


def probe_micro_batch(
    recipe: Recipe,
    weights: dict[str, Tensor],
    tokens: Any,
    place: Place,
    *,
    at_most: int,
    guess: int | None = None,
    most_tries: int | None = None,
    updates: int = LEAST_UPDATES,
    start: Callable[..., Any] = start_variant,
    listener: Callable[[Try], None] = lambda tried: None,
) -> Probe:
    """The largest micro-batch of `recipe` up to `at_most` that takes `updates` optimizer steps on this device.

    The result holds for exactly this recipe: another format, compiler mode or context is another search. The random
    states and the emulated limit are afterwards what they were; peaks are reset. Any error but lack of memory passes
    through. `NotAvailable` if not even one sequence fits. start: builds step and batches, as `start_variant` does.
    """
    if updates < LEAST_UPDATES:
        raise BadInput(f"updates is {updates}: the optimizer's state counts from the second one on, so at least 2")
    windows = len(tokens) // (recipe.context_length + 1)
    if windows < 1:
        raise BadInput(
            f"the corpus has {len(tokens):,} tokens, but one sequence needs {recipe.context_length + 1:,}: give a "
            "longer corpus"
        )
    bound = min(at_most, windows)
    tries: list[Try] = []

    def fits(micro_batch: int) -> bool:
        tries.append(_tried(recipe.but(micro_batch=micro_batch), weights, tokens, place, updates, start))
        listener(tries[-1])
        return tries[-1].fits

    devices = [torch.cuda.current_device()] if place.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        largest = largest_that_fits(fits, at_most=bound, guess=guess, most_tries=most_tries)
    start_fresh(place.device)
    reset_peak(place.device)
    limit = card_bytes(place.device)
    if largest == 0:
        raise NotAvailable(
            f"not even one sequence of {recipe.context_length} tokens fits: choose a shorter context, checkpointing, "
            "or a number format with fewer bytes"
        )
    emulated = limit is not None and limit < torch.cuda.get_device_properties(place.device).total_memory
    return Probe(largest=largest, bounded=largest == bound, limit_bytes=limit, emulated=emulated, tries=tries)


def _tried(recipe: Recipe, weights, tokens, place: Place, updates: int, start) -> Try:
    """One try in an emptied memory. What it held is gone when this returns, whether it fitted or not."""
    device = place.device
    start_fresh(device)
    reset_peak(device)
    outcome: dict[str, bool] = {}

    def run() -> None:
        try:
            step, batches = start(recipe, weights, tokens, place)
            if step.scaler is not None:  # an overflow would skip the update, and the moments would not be there yet
                step.scaler = torch.amp.GradScaler(device.type, init_scale=1.0)
            for _ in range(updates):
                step(batches)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            outcome["fits"] = True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # The traceback holds the frames, and the frames hold the tensors that did not leave enough room.
            traceback.clear_frames(error.__traceback__)
            outcome["fits"] = False

    seconds = seconds_of(run, device)
    peak = read_peak(device)
    free_everything(device)
    if not outcome["fits"]:
        return Try(micro_batch=recipe.micro_batch, fits=False, seconds=seconds)
    return Try(
        micro_batch=recipe.micro_batch, fits=True, seconds=seconds,
        peak_allocated_bytes=peak.allocated_bytes, peak_reserved_bytes=peak.reserved_bytes,
    )  # fmt: skip


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, in PyTorch's words or a library's, itself or as the cause."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_WORDS):
            return True
        error = error.__cause__
    return False
