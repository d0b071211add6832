"""What a toy leaves out of the labs on attention and the compiler, with a compiler that generates no code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from model_helper import CPU, TINY

from speedlab.labs import attention, compiling
from speedlab.measuring.variant import Plan
from speedlab.model import draw_weights
from speedlab.recipe import Recipe
from speedlab.training import step
from speedlab.training.distributed import Place


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What an experiment needs of a workbench, of a real profile, with `backend="eager"` for every compilation."""
    real = torch.compile

    def compile_eagerly(model: Any, **options: Any) -> Any:
        return real(model, **options | {"backend": "eager", "mode": None})

    monkeypatch.setattr(step.torch, "compile", compile_eagerly)
    tokens = np.random.default_rng(1).integers(0, TINY.vocab_size, 2000, dtype=np.uint16)
    machine = SimpleNamespace(compiler_problem=None, device_type="cpu")
    return SimpleNamespace(
        device=CPU, place=Place(device=CPU), tokens=SimpleNamespace(tokens=tokens), weights_for=draw_weights,
        plan=Plan(contract_steps=2, warmup_steps=1, steps=3), machine=machine,
        profile=SimpleNamespace(publishable=True), scaled=lambda recipe: TINY.but(attention="sdpa"),
    )  # fmt: skip


def test_every_row_of_a_real_profile(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Recipe] = []

    def elsewhere(recipe: Recipe, steps: int) -> dict[str, Any]:
        asked.append(recipe)
        return {"first_step_s": 1.0, "step_ms": [1.0] * steps, "compile_cache": "warm"}

    monkeypatch.setattr(compiling, "first_step_elsewhere", elsewhere)
    rows = list(compiling.compile_modes(bench, lambda text: None))
    failed = [(row["what"], row["reason"]) for row in rows if row["status"] == "error"]
    assert failed == []
    modes = {(row["recipe"], row["mode"]): row for row in rows if row["what"] == "mode"}
    assert set(modes) == {(name, mode) for name, modes in compiling.MODES.items() for mode in modes}
    for row in modes.values():
        assert row["losses"] == pytest.approx(modes["native", "off"]["losses"], abs=1e-4)
        assert (row["compile_s"] is None) == (row["mode"] == "off") and len(row["step_ms"]) == 3
    assert [recipe.compile for recipe in asked] == ["default"]
    breaks = {row["interruption"]: row for row in rows if row["what"] == "graph_break"}
    assert all(len(row["step_ms"]) == 3 for row in breaks.values())
    assert breaks["nothing"]["graphs"] == 1 and not breaks["nothing"]["reasons"]
    assert all(row["graphs"] > 1 and row["reasons"] for name, row in breaks.items() if name != "nothing")
    uncounted = [row["status"] for row in rows if row["what"] == "bytes" and row["mode"] == "default"]
    assert uncounted == ["unavailable", "unavailable"]  # nothing was generated, so nothing was counted
    kernels = [row for row in rows if row["what"] == "kernels"]
    assert len(kernels) == len(modes) and all(row["calls"] > 0 for row in kernels)


def test_compiled_attention_is_a_row_at_its_contexts(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = attention.Sizes(batch=2, context=16, contexts=(8, 16, 32), long=16, causal=(8,), compiled=(8, 16), tiled=8)
    monkeypatch.setattr(attention, "SIZES", sizes)
    monkeypatch.setattr(attention, "SEVEN_B", attention.TOY_LAYER)
    rows = list(attention.attention_sweep(bench, lambda text: None))
    assert [(row["what"], row["reason"]) for row in rows if row["status"] == "error"] == []
    contexts: dict[str, list[int]] = {}
    for row in rows:
        if row["what"] == "context" and row["status"] == "measured":
            assert row["batch"] * row["context"] == 32
            contexts.setdefault(row["kind"], []).append(row["context"])
    assert contexts["plain"] == [8, 16, 32] and contexts["plain_compiled"] == [8, 16] and contexts["tiled"] == [8]
