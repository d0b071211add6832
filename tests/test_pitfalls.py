"""What others ran into while they measured training speed, each as a test of what this program does instead.

This file: number formats, timing, kernels, several processes. Memory: test_pitfalls_memory.py. The book's side:
test_pitfalls_book.py. The numbers are stable names of the entries; a few that need a longer test point to it in
`ELSEWHERE`.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import socket
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from model_helper import CPU, TINY, lively_weights, random_batches
from records_helper import make_record, spread
from test_machines import pretend

import speedlab
from speedlab import doctor
from speedlab.data.stream import BatchStream
from speedlab.data.tokenizer import get_tokenizer
from speedlab.device import adapt, capabilities
from speedlab.errors import BadInput, NotAvailable
from speedlab.ladder import NINE_STEPS, SIX_STEPS
from speedlab.measuring import stopwatch, variant
from speedlab.model.sampling import sample
from speedlab.records import stats
from speedlab.records.rows import report_rows
from speedlab.records.store import read_records, write_record
from speedlab.training.launching import check_world_size, launch
from speedlab.training.parallel import Replicated
from speedlab.training.step import TrainingStep, token_loss
from speedlab.work import datasheet_flops_per_s

# Entries whose test takes a fixture of its own, or longer: file and test.
ELSEWHERE = {
    "26_installing_our_requirements_breaks_the_session": (
        "test_colab_install", "test_the_first_cell_installs_what_is_missing_and_leaves_the_rest",
    ),
    "28_accumulation_and_ddp_exchange_once_a_step": (
        "test_distributed", "test_gradients_are_exchanged_once_a_step_and_not_once_a_micro_batch",
    ),
    "29_clipping_before_unscaling": (
        "test_accumulation", "test_clipping_before_unscaling_would_have_been_noticed",
    ),
    "40_importing_draws_nothing": (
        "test_own_step", "test_importing_the_package_loads_nothing_heavy_and_other_names_are_unknown",
    ),
    "41_resume": ("test_reproduce", "test_a_later_call_goes_on_with_what_is_left"),
    "41_time_limits": ("test_reproduce", "test_a_cell_that_takes_too_long_is_stopped"),
    "41_stop_signals": ("test_reproduce", "test_a_signal_ends_the_kernel_and_leaves_what_was_there"),
}  # fmt: skip


# All entries there are; the numbers between were given up.
ENTRIES = {
    *range(1, 12),
    *range(13, 17),
    *range(18, 21),
    *range(22, 27),
    28,
    29,
    *range(33, 36),
    *range(37, 42),
    43,
    46,
    47,
}


def test_every_entry_has_a_test_of_its_number() -> None:
    names = list(ELSEWHERE)
    for module in ("test_pitfalls", "test_pitfalls_memory", "test_pitfalls_book"):
        names += [name.removeprefix("test_") for name in vars(importlib.import_module(module))]
    numbered = [re.match(r"\d\d(?:_and_\d\d)?(?=_)", name) for name in names]
    assert {int(number) for match in numbered if match for number in match[0].split("_and_")} == ENTRIES


@pytest.mark.parametrize("entry", ELSEWHERE)
def test_the_entry_is_tested_elsewhere(entry: str) -> None:
    module, name = ELSEWHERE[entry]
    assert callable(getattr(importlib.import_module(module), name))


def test_01_a_t4_says_that_it_supports_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SIX_STEPS.recipe_at("bfloat16_autocast")
    used = {}
    for name in ("T4", "A100", "H200"):
        pretend(monkeypatch, name)
        assert torch.cuda.is_bf16_supported()
        used[name] = adapt(asked, capabilities())[0].precision
    assert used == {"T4": "float16_autocast", "A100": "bfloat16_autocast", "H200": "bfloat16_autocast"}


def test_02_compile_with_bfloat16_on_a_t4(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "T4")
    recipe, _ = adapt(NINE_STEPS.recipe_at("torch_compile"), capabilities())
    assert (recipe.compile, recipe.precision) == ("default", "float16_autocast")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (6, 0))  # below what Triton knows
    recipe, substitutions = adapt(NINE_STEPS.recipe_at("torch_compile"), capabilities())
    assert recipe.compile == "off"
    assert "Triton needs compute capability 7.0" in next(s.reason for s in substitutions if s.field == "compile")
    assert not torch._dynamo.config.suppress_errors


def test_04_compile_and_warm_up_stay_out_of_the_measured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, calls=0)

    def step() -> None:
        clock.calls += 1
        clock.now += {1: 8.0, 2: 0.5}.get(clock.calls, 0.010)

    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    found = speedlab.measure(step, tokens_per_step=1, steps=5, warmup_steps=3, kernels=False, device="cpu")
    assert found.step_ms == pytest.approx([10.0] * 5) and found.first_step_s == pytest.approx(8.0)


def test_10_tokens_per_second_do_not_depend_on_accumulation() -> None:
    micro_steps = 0.1  # seconds each
    rates = {}
    for batch, accumulation in ((16, 4), (64, 1), (16, 1)):
        recipe = TINY.but(micro_batch=batch, accumulation=accumulation, context_length=1024)
        step_ms = 1e3 * micro_steps * accumulation * (batch / 16)
        record = make_record(
            recipe=recipe.as_dict(), contract_recipe=recipe.as_dict(), tokens_per_step=recipe.tokens_per_step,
            step_ms=step_ms,
        )  # fmt: skip
        rates[batch, accumulation] = stats.tokens_per_s(record).median
    assert list(rates.values()) == pytest.approx([163_840.0] * 3)


def test_11_utilization_is_against_the_peak_of_the_right_card_and_format() -> None:
    assert datasheet_flops_per_s("Tesla T4", "bfloat16") is None and datasheet_flops_per_s("Foo", "bfloat16") is None
    assert datasheet_flops_per_s("Tesla T4", "float16") == 65e12
    assert datasheet_flops_per_s("NVIDIA H200", "bfloat16") == pytest.approx(989e12, rel=1e-3)
    [row] = report_rows([make_record("bfloat16", machine=make_record().machine | {"gpu": "Foo"}, device="foo")])
    assert row["mfu"] is None
    with pytest.raises(BadInput, match=r"(?i)utilization|step_ms"):
        make_record("bfloat16", step_ms=0.5)  # more than the card can do


def test_14_pinning_on_a_machine_without_a_gpu() -> None:
    recipe, (substitution,) = adapt(TINY.but(host_memory="pinned_non_blocking"), capabilities_of_a_cpu())
    assert (recipe.host_memory, substitution.status) == ("pageable", "not_applicable")
    stream = BatchStream(  # warnings are errors in these tests
        torch.arange(200).numpy(), micro_batch=2, context_length=8, host_memory="pinned_non_blocking", device="cpu",
        seed=0,
    )  # fmt: skip
    assert not stream.pins and not next(stream)[0].is_pinned()


def capabilities_of_a_cpu():
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, "none")
        return capabilities()


def test_16_timing_the_work_and_not_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            happened.append("mark")

        def elapsed_time(self, end: Event) -> float:
            return 1.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: happened.append("wait"))
    variant.time_steps(lambda batches: happened.append("step"), iter(()), torch.device("cuda"), 3)
    assert happened[: happened.index("mark")][-1] == "wait"
    inside = happened[happened.index("mark") :]
    assert inside == ["mark", *["step", "mark"] * 3, "wait"]


def test_18_the_attention_backend_that_ran_is_looked_up_and_not_assumed() -> None:
    found = {check.name: check for check in doctor._attention_backends(capabilities_of_a_cpu())}
    assert "the CPU's own kernel" in found["attention, flash"].found  # no evidence of the GPU's
    step = TrainingStep(TINY.but(attention="sdpa_efficient"), lively_weights(TINY), CPU)
    with pytest.raises(RuntimeError, match=r"[Nn]o available kernel|No viable backend"):  # never the slow path instead
        step(iter(random_batches(TINY, 1)))
    kernels = [{"name": "fmha_cutlassF", "kind": "attention, efficient", "calls": 12.0, "time_us": 9.0}]
    [row] = report_rows([make_record("flash_attention", kernels=kernels)])
    assert row["attention_backend"] == "efficient"


def test_19_and_40_processes_started_from_a_notebook(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch was used here, the code is a module's, and the notebook's plotting backend does not reach it."""
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]))
    launch("pitfall_worker", [str(tmp_path)], world_size=2, timeout_s=120)
    assert sorted(path.read_text().lower() for path in tmp_path.iterdir()) == ["0 of 2: agg", "1 of 2: agg"]


def test_20_more_ranks_than_gpus() -> None:
    with pytest.raises(NotAvailable, match=r"needs 2 GPUs.*this machine has 1"):
        check_world_size(2, gpus=1)


def test_22_the_tokenizer_needs_no_network(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "socket", no_network)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    get_tokenizer.cache_clear()
    assert get_tokenizer().decode(get_tokenizer().encode("Every effort moves you")) == "Every effort moves you"
    assert list(tmp_path.iterdir()) == []


def test_23_a_sampled_id_of_a_padded_vocabulary() -> None:
    logits = torch.zeros(50_304)
    logits[50_300] = 100.0

    class Model(torch.nn.Module):
        context_length = 4

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens_BT):
            return logits.expand(*tokens_BT.shape, -1)

    model = Model()
    ids = sample(model, [50_256], new_tokens=3, vocab_size=50_257)
    assert max(ids) <= 50_256 and isinstance(get_tokenizer().decode(ids), str)
    # What padding does to the loss at the start is known, and not hidden.
    padded, exact = torch.zeros(1, 1, 50_304), torch.zeros(1, 1, 50_257)
    difference = token_loss(padded, torch.tensor([[7]])) - token_loss(exact, torch.tensor([[7]]))
    assert difference.item() == pytest.approx(math.log(50_304 / 50_257), abs=1e-5)


def test_29_loss_scale_and_the_float16_scaler() -> None:
    joined, split = TINY.but(micro_batch=8), TINY.but(micro_batch=2, accumulation=4)
    [(inputs, targets)] = random_batches(joined, 1)
    parts = list(zip(inputs.split(2), targets.split(2), strict=True))
    one, four = (TrainingStep(recipe, lively_weights(TINY), CPU) for recipe in (joined, split))
    assert one(iter([(inputs, targets)])).item() == pytest.approx(four(iter(parts)).item(), abs=1e-6)
    for a, b in zip(one.model.parameters(), four.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    scaled = TrainingStep(TINY.but(precision="float16_autocast"), lively_weights(TINY), CPU)
    scaled(iter(random_batches(TINY, 1)))
    assert {p.dtype for p in scaled.model.parameters()} == {torch.float32} and scaled.skipped in (0, 1)


def test_33_fused_adamw_on_a_cpu_gives_the_same_losses() -> None:
    losses = {}
    for optimizer in ("for_loop", "foreach", "fused"):
        step = TrainingStep(TINY.but(optimizer=optimizer), lively_weights(TINY), CPU)
        assert not (step.optimizer.defaults["foreach"] and step.optimizer.defaults["fused"])
        losses[optimizer] = torch.stack([step(iter([batch])) for batch in random_batches(TINY, 4)])
    torch.testing.assert_close(losses["foreach"], losses["for_loop"], rtol=0, atol=1e-4)
    torch.testing.assert_close(losses["fused"], losses["for_loop"], rtol=0, atol=1e-4)


def test_34_max_autotune_on_a_small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "T4")
    recipe, substitutions = adapt(SIX_STEPS.recipe_at("torch_compile_max_autotune"), capabilities())
    reason = next(s for s in substitutions if s.field == "compile")
    assert recipe.compile == "default" and "needs 68 multiprocessors, this card has 40" in reason.reason


def test_35_ddp_is_wrapped_first_and_compiled_then(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.parallel import DistributedDataParallel

    monkeypatch.setattr(torch, "compile", partial(captured, torch.compile))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        torch._dynamo.reset()
        recipe = TINY.but(compile="default")
        both = TrainingStep(recipe, lively_weights(TINY), CPU, parallelize=partial(Replicated, device=CPU))
        plain = TrainingStep(TINY, lively_weights(TINY), CPU)
        assert isinstance(both.forward._orig_mod, DistributedDataParallel)
        for batch in random_batches(TINY, 2):
            torch.testing.assert_close(both(iter([batch])), plain(iter([batch])), rtol=0, atol=1e-5)
        # All three together are refused before PyTorch fails in the middle of them.
        with pytest.raises(NotAvailable, match=r"checkpointing every_block with compile default .*several processes"):
            TrainingStep(
                recipe.but(checkpointing="every_block"), lively_weights(TINY), CPU,
                parallelize=partial(Replicated, device=CPU),
            )  # fmt: skip
    finally:
        torch.distributed.destroy_process_group()
        torch._dynamo.reset()


GRAPHS: list[list[tuple]] = []  # of each captured graph the shapes of its inputs


def captured(real, function, *, mode, dynamic):
    """torch.compile that captures graphs, notes their inputs, and generates nothing."""

    def backend(graph, inputs):
        GRAPHS.append([tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in inputs])
        return graph.forward

    return real(function, backend=backend, dynamic=dynamic)


def test_43_no_compiler_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    machine = capabilities_of_a_cpu()
    recipe, (substitution,) = adapt(TINY.but(compile="default"), machine)
    assert recipe.compile == "off" and "'/nonexistent/g++' is not installed" in substitution.reason
    assert not {check.name: check for check in doctor.checks(machine, doctor_machine())}["torch.compile"].ok


def doctor_machine() -> dict:
    return dict.fromkeys(("torch", "cuda", "triton", "driver"))


def test_46_numbers_of_two_machines_are_never_in_one_table(tmp_path) -> None:
    other = make_record().machine | {"machine_id": "0" * 12}
    write_record(tmp_path, make_record("baseline"))
    write_record(tmp_path, make_record("causal_mask", machine=other))
    with pytest.raises(BadInput, match=r"machine\.machine_id .*one session"):
        read_records(tmp_path)
    near = [make_record("baseline", step_ms=spread(250.0)), make_record("causal_mask", step_ms=spread(249.9))]
    assert report_rows(near)[1]["speedup_step_clear"] is False  # shown as "no clear difference"


def test_47_a_second_batch_size_is_compiled_for_its_own_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(captured, torch.compile))
    GRAPHS.clear()
    for micro_batch in (3, 5):
        variant.start_fresh(CPU)
        recipe = TINY.but(micro_batch=micro_batch, compile="default")
        step = TrainingStep(recipe, lively_weights(TINY), CPU)
        step(iter(random_batches(recipe, 1)))
    torch._dynamo.reset()
    assert len(GRAPHS) == 2
    for shapes, micro_batch in zip(GRAPHS, (3, 5), strict=True):
        assert (micro_batch, 16) in shapes
        assert all(isinstance(size, int) for shape in shapes if isinstance(shape, tuple) for size in shape)
        assert all(isinstance(shape, tuple) for shape in shapes)  # no symbolic size is passed in
