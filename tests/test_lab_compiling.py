"""The compile lab: its counts on functions whose traffic is known, its breaks and recompiles, its toy form."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from model_helper import CPU, TINY

from speedlab.device import capabilities
from speedlab.errors import NotAvailable
from speedlab.labs import compiling, counted_bytes, warm_start
from speedlab.measuring.experiments import run_experiment
from speedlab.model import GPT
from speedlab.records.experiment import Experiment

MEGA = 1_000_000


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).relu()


def test_operators_read_and_write_each_time_and_views_are_free() -> None:
    x = torch.randn(10, 25)
    with counted_bytes.OperatorBytes() as counted:
        chain(x.view(250).unsqueeze(0).t())
        torch.empty(MEGA)
    assert (counted.calls, counted.total) == (3, 3 * 2 * 250 * 4)


def test_a_matmul_counts_its_three_matrices_forward_and_backward() -> None:
    layer = torch.nn.Linear(6, 5, bias=False)
    gradient_of_ones = counted_bytes.operator_bytes(layer, torch.randn(4, 6))
    sizes = 4 * (4 * 6 + 5 * 6 + 4 * 5)  # input, weight, output; backward: the same three for the weight's gradient
    assert gradient_of_ones.total == 2 * sizes
    assert layer.weight.grad is not None


needs_compiler = pytest.mark.skipif(capabilities().compiler_problem is not None, reason="no compiler here")


@needs_compiler
def test_a_fused_chain_reads_once_and_writes_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    x = torch.randn(MEGA)
    with counted_bytes.compiled_bytes() as counted:
        found = torch.compile(chain, dynamic=False)(x)
    torch.testing.assert_close(found, chain(x))
    assert counted.graphs == [2 * 4 * MEGA] and counted.total == 2 * 4 * MEGA


@needs_compiler
def test_each_row_of_a_recompile_finds_no_cache_of_another(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model and the same batch twice: the second row compiles as the first did."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "GPT", Doubles)
    monkeypatch.setattr(compiling, "BATCHES", (2,))
    monkeypatch.setattr(compiling, "check_compiles", lambda bench, recipe: None)
    bench = SimpleNamespace(device=CPU, profile=SimpleNamespace(publishable=True))
    caches = [compiling.other_batches(bench, TINY, False)["compile_cache"] for _ in range(2)]
    assert caches == ["cold", "cold"] and list(tmp_path.iterdir()) == []


class Doubles(torch.nn.Module):
    """In place of the model: little to compile."""

    def __init__(self, recipe: object) -> None:
        super().__init__()

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        return tokens_BT * 2 + 1


class StandIn:
    """In place of inductor's class: it compiles to a word and cannot count."""

    def compile_to_module(self) -> str:
        return "module"

    def count_bytes(self) -> tuple[int]:
        raise KeyError("a node without a size")


def test_a_count_that_fails_lets_the_compiler_go_on_and_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.graph.GraphLowering", StandIn)
    original = StandIn.compile_to_module
    with counted_bytes.compiled_bytes() as counted:
        assert StandIn().compile_to_module() == "module"
    assert StandIn.compile_to_module is original
    with pytest.raises(NotAvailable, match="count failed: KeyError"):
        _ = counted.total
    monkeypatch.delattr(StandIn, "count_bytes")
    with counted_bytes.compiled_bytes() as counted:
        assert StandIn().compile_to_module() == "module"
    with pytest.raises(NotAvailable, match="counts no bytes"):
        _ = counted.total
    with pytest.raises(NotAvailable, match="no graph was compiled"):
        _ = counted_bytes.CompiledBytes().total


def test_breaks_are_seen_and_the_result_stays() -> None:
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    torch.manual_seed(1)
    model = GPT(TINY)
    expected = model(tokens)
    graphs = {}
    for name, interruption in compiling.INTERRUPTIONS.items():
        torch._dynamo.reset()
        block = model.blocks[0]
        model.blocks[0] = compiling.Interrupted(block, interruption)
        with compiling.quiet():
            graphs[name] = torch._dynamo.explain(model)(tokens).graph_count
        torch.testing.assert_close(model(tokens), expected)
        model.blocks[0] = block
    assert graphs["nothing"] == 1 and min(graphs[name] for name in graphs if name != "nothing") > 1


def test_quiet_silences_warnings_and_gives_them_back(caplog: pytest.LogCaptureFixture) -> None:
    with compiling.quiet():
        logging.getLogger("torch._dynamo").warning("inside")
    logging.getLogger("speedlab.trial").warning("outside")
    assert [record.message for record in caplog.records] == ["outside"]


def test_the_first_step_of_a_recipe_is_timed_here() -> None:
    found = warm_start.first_step(TINY, 2)
    assert found["first_step_s"] > 0 and len(found["step_ms"]) == 2


def test_another_process_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with pytest.raises(NotAvailable, match="compile cache"):
        warm_start.first_step_elsewhere(TINY, 1)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")
    monkeypatch.setattr(warm_start.sys, "executable", "false")
    with pytest.raises(NotAvailable, match="ended with 1: no message"):
        warm_start.first_step_elsewhere(TINY, 1)


def test_without_a_compiler_each_compiled_row_says_why() -> None:
    bench = SimpleNamespace(machine=SimpleNamespace(compiler_problem="no g++"), profile=None, device=CPU)
    with pytest.raises(NotAvailable, match=r"no g\+\+"):
        compiling.time_mode(bench, TINY.but(compile="default"))


@pytest.fixture(scope="module")
def toy() -> Experiment:
    return run_experiment("compile_modes", profile="smoke")


def test_the_toy_measures_what_needs_no_generated_code(toy: Experiment) -> None:
    assert {row["status"] for row in toy.rows} == {"measured", "unavailable"}
    skipped = [row for row in toy.rows if row["status"] == "unavailable"]
    assert {row["what"] for row in skipped} == {"mode", "warm", "bytes", "kernels"}
    assert all(row.get("mode") != "off" for row in skipped)
    losses = [row["losses"] for row in toy.measured if row["what"] == "mode"]
    assert len(losses) == 2 and losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_hand_written_layers_move_more_bytes_in_more_operators(toy: Experiment) -> None:
    counts = {row["recipe"]: row for row in toy.measured if row["what"] == "bytes"}
    assert counts["handwritten"]["bytes"] > 1.5 * counts["native"]["bytes"]
    assert counts["handwritten"]["operators"] > 2 * counts["native"]["operators"]


def test_fixed_shapes_compile_each_batch_and_free_ones_only_twice(toy: Experiment) -> None:
    graphs = {row["dynamic"]: row["graphs"] for row in toy.measured if row["what"] == "recompile"}
    assert graphs["False"] == [1, 2, 3, 4]
    assert graphs["None"][:3] == [1, 2, 2] and graphs["True"][:3] == [1, 1, 1]
