"""Which rungs give the same bits twice, which operations do not, and what PyTorch's deterministic mode costs.

The mode needs cuBLAS to have been told before it started, so it is measured in a process of its own:
`python -m speedlab.labs.determinism PROFILE ANSWER`, started here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speedlab.labs.rows import attempt
from speedlab.ladder import NINE_STEPS

if TYPE_CHECKING:
    from speedlab.measuring.workbench import Workbench
    from speedlab.recipe import Recipe

TOP = "batch_size"
TIMED = ("flash_attention", TOP)
WARNED = ("baseline", "flash_attention")
STEPS, REPEATS, TIMED_STEPS = 5, 10, 30
LONGEST_CHILD_S = 300.0


def determinism(bench: Workbench, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Rows by `what`: "rung" (the same run twice), "operation", "warning", and "cost" (step_ms by `mode`).

    mode "ordinary" is this process, "deterministic" the other one. Dropout is off in all of them.
    """
    from speedlab.measuring.repeats import operations, repeat

    keys = NINE_STEPS.keys[: NINE_STEPS.keys.index(TOP) + 1]
    for key in keys:
        yield from rung_rows(bench, say, key, mode="ordinary")
    say("single operations")
    for name, make in operations(bench.device).items():
        yield attempt(lambda make=make: repeat(make, REPEATS), what="operation", operation=name)
    for key in WARNED:
        yield attempt(lambda key=key: {"messages": warnings_of(bench, key)}, what="warning", rung=key)
    say("deterministic mode, in a process of its own")
    rows: list[dict[str, Any]] = []
    failed = attempt(lambda: rows.extend(in_own_process(bench)) or {}, what="cost", mode="deterministic")
    yield from rows if failed["status"] == "measured" else [failed]


def rung_rows(bench: Workbench, say: Callable[[str], None], key: str, *, mode: str) -> Iterator[dict[str, Any]]:
    """One rung twice, and its step times where it is one of `TIMED`."""
    from speedlab.measuring.memory import free_everything

    recipe, reason = rung_recipe(bench, key)
    if reason is not None:
        yield {"what": "rung", "rung": key, "mode": mode, "status": "not_applicable", "reason": reason}
        return
    say(f"twice the same, {mode}: {key}")
    built: list[Any] = []
    yield attempt(lambda: _twice(bench, recipe, built), what="rung", rung=key, mode=mode)
    if key in TIMED and built:
        yield attempt(lambda: {"step_ms": _timed(bench, recipe, built[0])}, what="cost", rung=key, mode=mode)
    built.clear()
    free_everything(bench.device)


def rung_recipe(bench: Workbench, key: str) -> tuple[Recipe, str | None]:
    """The recipe with dropout off, and why it is left out here, if it is."""
    recipe = bench.recipe(NINE_STEPS, key)[0].but(dropout=0.0)
    if recipe.compile != "off" and not bench.profile.publishable:
        return recipe, "a toy leaves the compiler out"
    undone = bench.undone(NINE_STEPS, NINE_STEPS.rung(key))
    return recipe, undone and undone.reason


def _twice(bench: Workbench, recipe: Recipe, built: list[Any]) -> dict[str, Any]:
    from speedlab.measuring.repeats import run_again
    from speedlab.measuring.variant import start_fresh, start_variant

    start_fresh(bench.device)
    weights = bench.weights_for(recipe)
    step, _ = start_variant(recipe, weights, bench.tokens.tokens, bench.place)
    built.append(step)
    return run_again(step, weights, lambda: batches_of(bench, recipe), STEPS)


def _timed(bench: Workbench, recipe: Recipe, step: Any) -> list[float]:
    from speedlab.measuring.variant import time_steps

    batches = batches_of(bench, recipe)
    for _ in range(bench.plan.warmup_steps):
        step(batches)
    return time_steps(step, batches, bench.device, TIMED_STEPS)


def batches_of(bench: Workbench, recipe: Recipe) -> Iterator[Any]:
    """The batches of a variant from the first one on, without a new model."""
    from speedlab.data.stream import BatchStream

    return BatchStream(
        bench.tokens.tokens, micro_batch=recipe.micro_batch, context_length=recipe.context_length,
        host_memory=recipe.host_memory, device=bench.device, seed=recipe.seed,
    )  # fmt: skip


def warnings_of(bench: Workbench, key: str) -> list[str]:
    """What PyTorch warns of in one step of a rung."""
    from speedlab.measuring.repeats import warned_operations
    from speedlab.measuring.variant import start_fresh, start_variant

    start_fresh(bench.device)
    recipe, _ = rung_recipe(bench, key)
    step, batches = start_variant(recipe, bench.weights_for(recipe), bench.tokens.tokens, bench.place)
    return warned_operations(lambda: step(batches))


def in_own_process(bench: Workbench) -> list[dict[str, Any]]:
    """The rows of deterministic mode, from a process whose cuBLAS was told in time."""
    from speedlab.measuring.repeats import CUBLAS_WORKSPACE

    with tempfile.TemporaryDirectory(prefix="speedlab-deterministic-") as folder:
        answer = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "speedlab.labs.determinism", bench.profile.name, bench.corpus, str(answer)]
        environment = os.environ | dict([CUBLAS_WORKSPACE])
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LONGEST_CHILD_S, check=False
        )
        if child.returncode != 0:
            lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
            raise RuntimeError(f"the process in deterministic mode failed: {lines[-1] if lines else 'no message'}")
        return json.loads(answer.read_text())


def answer(profile: str, corpus: str, path: Path) -> None:
    """What the other process does: `TIMED` rungs in deterministic mode, their rows to `path`."""
    from speedlab.device import capabilities
    from speedlab.measuring.repeats import deterministic_mode
    from speedlab.measuring.workbench import Workbench
    from speedlab.profile import get_profile

    bench = Workbench(get_profile(profile), capabilities(), corpus=corpus)
    rows: list[dict[str, Any]] = []
    with deterministic_mode():
        for key in TIMED:
            rows += rung_rows(bench, lambda text: None, key, mode="deterministic")
    path.write_text(json.dumps(rows))


if __name__ == "__main__":
    answer(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
