"""The batch probe for a rung of a ladder on this machine, as `speedlab probe-batch` asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from speedlab.device import Substitution, capabilities
from speedlab.ladder import get_ladder
from speedlab.measuring.batch_probe import Probe, Try, probe_micro_batch
from speedlab.measuring.memory import card_bytes, emulated_card
from speedlab.measuring.workbench import Workbench
from speedlab.memory_fit import planned_micro_batch
from speedlab.profile import get_profile
from speedlab.recipe import Recipe

AT_MOST = 1024
MOST_COMPILED_TRIES = 6  # each compiles anew: half a minute on a GPU, as long on a CPU
COMPILED_NOTE = (
    f"each try compiles the step anew, about half a minute, and at most {MOST_COMPILED_TRIES} are made: "
    "`--compile off` searches without the compiler, `speedlab memory` says by formula what fits"
)
AT_MOST_OF_A_TOY = 8  # a CPU has no limit of its own: the search shows itself and stops


@dataclass(frozen=True, kw_only=True)
class ProbedRung:
    """A probe with what it was made for. recipe: as it ran, with the largest micro-batch.

    planned: the micro-batch that the memory plan would have filled the card with; 0 where it has nothing to say.
    """

    ladder: str
    rung: str
    device: str
    profile: str
    recipe: Recipe
    substitutions: tuple[Substitution, ...]
    probe: Probe
    planned: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"exact": self.probe.exact}

    def rows(self) -> list[dict[str, Any]]:
        """The tries in the order they were made."""
        return [
            {
                "micro_batch": tried.micro_batch,
                "fits": "yes" if tried.fits else "no",
                "peak_reserved_gib": _gib(tried.peak_reserved_bytes),
                "peak_allocated_gib": _gib(tried.peak_allocated_bytes),
                "seconds": tried.seconds,
            }
            for tried in self.probe.tries
        ]

    def sentence(self) -> str:
        probe = self.probe
        what = f"{self.ladder}/{self.rung}, context {self.recipe.context_length}"
        changed = "".join(f"; {s.field} {s.used} instead of {s.asked}" for s in self.substitutions)
        if probe.limit_bytes is None:
            return (
                f"{what}{changed}: {probe.largest} sequences pass, the upper bound of this search; a CPU has no "
                "allocator that says no, so this shows only that the search works"
            )
        share = probe.best.peak_reserved_bytes / probe.limit_bytes
        card = f"{probe.limit_bytes / 2**30:.1f} GiB{' (emulated)' if probe.emulated else ''}"
        more = ", the upper bound of this search: more may fit" if probe.bounded else ""
        if not probe.exact:
            more = f", as far as {len(probe.tries)} tries tell: give --start {probe.largest} for more"
        plan = f"; the memory plan said {self.planned}" if self.planned else ""
        return (
            f"{what}{changed}: at most {probe.largest} sequences{more}, {share:.0%} of {card} reserved at the peak"
            f"{plan}"
        )


def probe_rung(
    ladder: str,
    rung: str,
    *,
    card_gib: float | None = None,
    at_most: int = 0,
    guess: int = 0,
    profile: str = "auto",
    corpus: str = "standard-library",
    compile_mode: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = lambda text: None,
) -> ProbedRung:
    """Probe one rung's recipe on one device. at_most, guess: 0 for the usual bound and for no guess.

    compile_mode: instead of the recipe's own, "off" for a quick search. warn: is told before a search that takes long.

    Without a guess the search begins where the memory plan says that the card is full. Where the plan does not know a
    compiled recipe, it is probed without the compiler first, which tells where to begin. A few compiled tries decide,
    and the result says whether they were enough to find the border to the sequence.
    `NotAvailable` for an emulated card without a GPU, and where not even one sequence fits.
    """
    ladder_ = get_ladder(ladder)
    ladder_.rung(rung)
    machine = capabilities()
    profile_ = get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes)
    bench = Workbench(profile_, machine, corpus=corpus)
    recipe, substitutions = bench.recipe(ladder_, rung)
    recipe = recipe.but(data_parallel=1)  # a micro-batch is one process's
    if compile_mode is not None and compile_mode != recipe.compile:
        asked = Substitution(field="compile", asked=recipe.compile, used=compile_mode, reason="asked for")
        recipe, substitutions = recipe.but(compile=compile_mode), (*substitutions, asked)
    bound = at_most or (AT_MOST if profile_.publishable else AT_MOST_OF_A_TOY)

    def tell(tried: Try) -> None:
        say(f"micro-batch {tried.micro_batch}: {'fits' if tried.fits else 'does not fit'} ({tried.seconds:.1f} s)")

    def search(recipe: Recipe, guess: int, most_tries: int | None) -> Probe:
        return probe_micro_batch(
            recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place, at_most=bound, guess=guess or None,
            most_tries=most_tries, listener=tell,
        )  # fmt: skip

    with emulated_card(card_gib, bench.device):
        compiled = recipe.compile != "off"
        if compiled:
            warn(COMPILED_NOTE)
        planned = planned_micro_batch(recipe, card_bytes(bench.device), machine.capability)
        if planned and not guess:
            say(f"the memory plan begins at micro-batch {planned}")
        guess = guess or planned
        if compiled and not guess:
            say("without the compiler first, for a place to begin")
            guess = search(recipe.but(compile="off"), 0, None).largest
        probe = search(recipe, guess, MOST_COMPILED_TRIES if compiled else None)
    return ProbedRung(
        ladder=ladder, rung=rung, device=bench.device_slug, profile=profile_.name,
        recipe=recipe.but(micro_batch=probe.largest), substitutions=substitutions, probe=probe, planned=planned,
    )  # fmt: skip


def _gib(byte_count: int | None) -> float | None:
    return None if byte_count is None else byte_count / 2**30
