"""How long the first step takes in a new process that finds compiled graphs on disk. Run as a program, it prints JSON.

A second compilation in the same process would find them in memory, which no restart does. It knows no page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from speedlab.errors import NotAvailable
from speedlab.recipe import Recipe

TIME_LIMIT_S = 240


def first_step_elsewhere(recipe: Recipe, steps: int) -> dict[str, Any]:
    """The first step of `recipe` in a process of its own, on random tokens, and `steps` more.

    It uses the cache that TORCHINDUCTOR_CACHE_DIR names. The start of Python and the import of torch do not count.
    `NotAvailable` says why there is no answer.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        raise NotAvailable("no folder is set for the compile cache, so another process would not find it")
    command = [sys.executable, "-m", "speedlab.labs.warm_start", json.dumps(recipe.as_dict()), str(steps)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"the other process took more than {TIME_LIMIT_S} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotAvailable(f"the other process ended with {done.returncode}: {last[:200]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def first_step(recipe: Recipe, steps: int) -> dict[str, Any]:
    """Seconds of the first step here and now, milliseconds of `steps` more, and where the graphs came from."""
    from functools import partial

    import numpy as np
    import torch

    from speedlab.measuring.stopwatch import seconds_of
    from speedlab.measuring.variant import compile_cache, start_variant, time_steps
    from speedlab.model import draw_weights
    from speedlab.training.distributed import Place

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens = np.random.default_rng(1).integers(0, recipe.vocab_size, 4 * recipe.tokens_per_step + 1, dtype=np.uint16)
    step, batches = start_variant(recipe, draw_weights(recipe), tokens, Place(device=device))
    first_s = seconds_of(partial(step, batches), device)
    step(batches)
    return {
        "first_step_s": first_s,
        "step_ms": time_steps(step, batches, device, steps),
        "compile_cache": compile_cache(),
    }


if __name__ == "__main__":
    print(json.dumps(first_step(Recipe.from_dict(json.loads(sys.argv[1])), int(sys.argv[2]))))
