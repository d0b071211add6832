"""Small models that people accuse of an error of DistributedDataParallel, each trained for two steps.

`python -m speedlab.labs.ddp_errors ANSWER` writes [{case, error}]; one process in a gloo group of one is enough, for
the errors come from counting gradients, not from exchanging them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH = 4


class Concatenated(nn.Module):
    """Two layers whose outputs `torch.cat` joins; every weight takes part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.two(x)], dim=-1)


class Unused(nn.Module):
    """A layer that the forward pass leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.left_out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x)


class Shared(nn.Module):
    """One layer that is checkpointed twice in a step."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.one, self.reentrant = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.one, x, use_reentrant=self.reentrant)
        return x


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "torch.cat": (Concatenated, {}),
    "unused layer": (Unused, {}),
    "unused layer, find_unused_parameters": (Unused, {"find_unused_parameters": True}),
    "layer checkpointed twice, reentrant": (lambda: Shared(reentrant=True), {}),
    "layer checkpointed twice, non-reentrant": (lambda: Shared(reentrant=False), {}),
}


def error_of(make: Any, options: dict[str, Any], steps: int = 2) -> str | None:
    """The first sentence of the error that these steps end with, None where they do not."""
    torch.manual_seed(0)
    model = DistributedDataParallel(make(), **options)
    try:
        for _ in range(steps):
            model(torch.randn(2, WIDTH)).sum().backward()
    except RuntimeError as error:
        return str(error).split(". ")[0].strip()
    return None


def main(answer: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="speedlab-gloo-") as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            found = [{"case": name, "error": error_of(make, options)} for name, (make, options) in CASES.items()]
        finally:
            dist.destroy_process_group()
    answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
