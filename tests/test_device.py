"""What becomes of a recipe on machines that are not here: rules on made-up capabilities, and the real questions."""

import pytest
import torch
from data_helper import one_line_error

from speedlab import device
from speedlab.beyond import FASTEST
from speedlab.device import Capabilities, adapt, capabilities, memory_limit_bytes
from speedlab.errors import BadInput
from speedlab.ladder import LADDERS, NINE_STEPS
from speedlab.recipe import CHOICES, Recipe


def gpu(capability, *, multiprocessors=108, gpus=1, **changes):
    return Capabilities(
        device_type="cuda", capability=capability, multiprocessors=multiprocessors, gpus=gpus, cores=8, **changes
    )


T4 = gpu((7, 5), multiprocessors=40)
A100 = gpu((8, 0))
L4 = gpu((8, 9), multiprocessors=58)
H200 = gpu((9, 0), multiprocessors=132)
CPU = Capabilities(device_type="cpu", cores=2)
CPU_WITHOUT_COMPILER = Capabilities(device_type="cpu", cores=2, compiler_problem="no compiler here")


def adapted(machine, **changes):
    """The fields that changed, as {field: (asked, used)}, after checking that the recipe says the same."""
    asked = Recipe(**changes)
    used, substitutions = adapt(asked, machine)
    assert used == asked.but(**{s.field: s.used for s in substitutions})
    assert all(s.asked == getattr(asked, s.field) and s.reason and "\n" not in s.reason for s in substitutions)
    return {s.field: (s.asked, s.used) for s in substitutions}


@pytest.mark.parametrize("machine", [A100, H200], ids=["A100", "H200"])
@pytest.mark.parametrize("ladder", LADDERS.values(), ids=list(LADDERS))
def test_large_cards_run_the_ladders_as_written(machine, ladder):
    for rung in ladder:
        recipe = ladder.recipe_at(rung.key).but(data_parallel=1)
        if recipe.head_matmul == "fp8_forward" and machine is A100:
            assert adapted(machine, **recipe.as_dict()) == {"head_matmul": ("fp8_forward", "same")}
        else:
            assert adapt(recipe, machine) == (recipe, ())


@pytest.mark.parametrize("precision", ["bfloat16", "bfloat16_autocast"])
def test_a_t4_runs_float16_with_a_scaler_where_bfloat16_is_asked_for(precision):
    assert adapted(T4, precision=precision) == {"precision": (precision, "float16_autocast")}
    assert adapted(gpu((7, 0)), precision=precision)
    assert not adapted(A100, precision=precision)


def test_a_t4_keeps_what_it_can_do():
    assert not adapted(T4, host_memory="pinned_non_blocking", compile="default", attention="sdpa", optimizer="fused")
    assert not adapted(T4, precision="float16_autocast")


@pytest.mark.parametrize(("machine", "where"), [(T4, "7.5"), (CPU, "a CPU")], ids=["T4", "CPU"])
def test_tf32_needs_units_for_it(machine, where):
    assert adapted(machine, matmul_precision="high") == {"matmul_precision": ("high", "highest")}
    _, (substitution,) = adapt(Recipe(matmul_precision="high"), machine)
    assert substitution.status == "unavailable" and where in substitution.reason


@pytest.mark.parametrize("host_memory", ["pinned", "pinned_non_blocking"])
def test_pinned_memory_serves_a_gpu_only(host_memory):
    assert adapted(CPU, host_memory=host_memory) == {"host_memory": (host_memory, "pageable")}
    _, (substitution,) = adapt(Recipe(host_memory=host_memory), CPU)
    assert substitution.status == "not_applicable"


def test_a_cpu_keeps_bfloat16_and_makes_no_claim_about_units():
    assert not adapted(CPU, precision="bfloat16")
    assert not CPU.native_bfloat16 and not CPU.tf32 and not CPU.pinned_memory


@pytest.mark.parametrize("mode", [value for value in CHOICES["compile"] if value != "off"])
def test_without_a_compiler_nothing_is_compiled(mode):
    assert adapted(CPU_WITHOUT_COMPILER, compile=mode)["compile"] == (mode, "off")
    _, substitutions = adapt(Recipe(compile=mode), CPU_WITHOUT_COMPILER)
    assert [s.reason for s in substitutions] == ["no compiler here"]
    assert substitutions[0].status == "unavailable"


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize(("machine", "said"), [(T4, "40"), (L4, "58"), (CPU, "CPU")], ids=["T4", "L4", "CPU"])
def test_matmuls_are_autotuned_on_large_cards_only(mode, machine, said):
    assert adapted(machine, compile=mode) == {"compile": (mode, "default")}
    _, (substitution,) = adapt(Recipe(compile=mode), machine)
    assert substitution.status == "not_applicable" and said in substitution.reason and "68" in substitution.reason
    assert not adapted(machine, compile="reduce-overhead")
    assert not adapted(gpu((8, 0), multiprocessors=68), compile=mode)


@pytest.mark.parametrize(
    ("machine", "asked", "used"),
    [
        (gpu((9, 0), gpus=1), 4, 1),
        (gpu((9, 0), gpus=2), 4, 2),
        (Capabilities(device_type="cpu", cores=1), 4, 1),
        (Capabilities(device_type="cpu", cores=2), 4, 2),
        (Capabilities(device_type="cpu", cores=64), 4, 2),
    ],
)
def test_more_processes_than_gpus_become_as_many_as_there_are(machine, asked, used):
    assert adapted(machine, data_parallel=asked) == {"data_parallel": (asked, used)}
    _, (substitution,) = adapt(Recipe(data_parallel=asked), machine)
    assert str(asked) in substitution.reason
    assert ("not that it is fast" in substitution.reason) == (machine.device_type == "cpu" and used == 2)


def test_enough_gpus_are_left_alone():
    assert not adapted(gpu((9, 0), gpus=4), data_parallel=4)
    assert not adapted(gpu((9, 0), gpus=8), data_parallel=4)
    assert not adapted(CPU, data_parallel=2)


def test_a_t4_runs_the_top_of_the_ladder_with_every_reason_given():
    changes = adapted(T4, **{k: v for k, v in NINE_STEPS.recipe_at("data_parallel").as_dict().items()})
    assert set(changes) == {"precision", "matmul_precision", "data_parallel"}


def test_the_fastest_recipe_finds_its_way_to_a_t4_and_to_a_cpu():
    asked = FASTEST.as_dict()
    assert adapted(T4, **asked) == {
        "precision": ("bfloat16_master", "float16_autocast"), "matmul_precision": ("high", "highest"),
        "optimizer": ("one_pass", "fused"), "loss": ("in_place", "compiled"),
    }  # fmt: skip
    assert set(adapted(CPU, **asked)) == {"matmul_precision", "host_memory"}


def test_kernels_of_libraries_are_asked_for_only_where_they_can_run():
    without = gpu((9, 0), liger_problem="liger-kernel is not installed")
    assert adapted(without, loss="liger") == {"loss": ("liger", "compiled")}
    assert not adapted(H200, loss="liger", attention="sdpa_cudnn", head_matmul="fp8_forward")
    assert adapted(T4, attention="sdpa_flash") == {"attention": ("sdpa_flash", "sdpa")}
    assert adapted(CPU, attention="sdpa_cudnn") == {"attention": ("sdpa_cudnn", "sdpa")}
    assert not adapted(CPU, attention="sdpa_flash")  # PyTorch has a kernel of that name for a CPU
    for precision, used in (("float32", None), ("bfloat16_master", None), ("bfloat16", "fused")):
        assert adapted(H200, optimizer="one_pass", precision=precision) == (
            {} if used is None else {"optimizer": ("one_pass", used)}
        )


def test_adapting_twice_changes_nothing_more():
    for machine in (T4, L4, A100, H200, CPU, CPU_WITHOUT_COMPILER):
        for ladder in LADDERS.values():
            for rung in ladder:
                used, _ = adapt(ladder.recipe_at(rung.key), machine)
                assert adapt(used, machine) == (used, ())


@pytest.mark.parametrize(
    ("capability", "native"), [((7, 0), False), ((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True)]
)
def test_units_for_bfloat16_are_judged_by_the_capability_and_not_by_what_torch_can_emulate(
    monkeypatch, capability, native
):
    class Properties:
        total_memory = 15 * 2**30
        multi_processor_count = 40

    monkeypatch.delenv("SPEEDLAB_GPU_MEMORY_GIB", raising=False)
    for name, value in {
        "is_available": True, "is_bf16_supported": True, "get_device_capability": capability, "device_count": 1,
        "get_device_name": "Tesla T4", "get_device_properties": Properties,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value, **kwargs: value)
    machine = capabilities()
    assert machine.device_type == "cuda" and machine.gpus == 1 and machine.multiprocessors == 40
    assert machine.native_bfloat16 == machine.tf32 == native
    assert machine.gpu_memory_bytes == 15 * 2**30 and machine.compiler_problem is None
    monkeypatch.setenv("SPEEDLAB_GPU_MEMORY_GIB", "14.5")
    assert capabilities().gpu_memory_bytes == int(14.5 * 2**30)


def test_a_card_below_triton_says_so(monkeypatch):
    for name, value in {
        "is_available": True, "get_device_capability": (6, 0), "device_count": 1, "get_device_name": "Tesla P100",
        "get_device_properties": type("P", (), {"total_memory": 1, "multi_processor_count": 56}),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value, **kwargs: value)
    machine = capabilities()
    assert "7.0" in machine.compiler_problem and "6.0" in machine.compiler_problem
    used, _ = adapt(Recipe(compile="default"), machine)
    assert used.compile == "off"


def test_a_cpu_without_a_compiler_is_noticed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    machine = capabilities()
    assert machine.device_type == "cpu" and machine.capability is None and machine.gpus == 0 and machine.cores >= 1
    assert "/nowhere/g++" in machine.compiler_problem
    monkeypatch.setenv("CXX", "sh")  # any program that is there
    assert capabilities().compiler_problem is None


@pytest.mark.parametrize("text", ["lots", "-1", "0", "nan", "inf", "1e9"])
def test_an_impossible_memory_limit_is_refused(monkeypatch, text):
    monkeypatch.setenv("SPEEDLAB_GPU_MEMORY_GIB", text)
    one_line_error(BadInput, memory_limit_bytes, "SPEEDLAB_GPU_MEMORY_GIB", repr(text), "GiB")


def test_a_memory_limit_is_read_in_gib(monkeypatch):
    monkeypatch.setenv("SPEEDLAB_GPU_MEMORY_GIB", "14.5")
    assert memory_limit_bytes() == 14.5 * 2**30
    for absent in ("", None):
        if absent is None:
            monkeypatch.delenv("SPEEDLAB_GPU_MEMORY_GIB")
        else:
            monkeypatch.setenv("SPEEDLAB_GPU_MEMORY_GIB", absent)
        assert memory_limit_bytes() is None


def test_every_rule_names_a_field_of_the_recipe():
    worst = Recipe(**NINE_STEPS.recipe_at("data_parallel").as_dict() | {"compile": "max-autotune"})
    fast = worst.but(
        precision="float16_autocast", optimizer="one_pass", loss="in_place", attention="sdpa_cudnn",
        head_matmul="fp8_forward",
    )  # fmt: skip
    fused = fast.but(precision="float32", feed_forward="fused", residual="fused", qkv_backward="fused")
    machines = (T4, CPU, CPU_WITHOUT_COMPILER, gpu((6, 1), compiler_problem="too old for Triton"))
    fired = {
        rule for rule in device.RULES for machine in machines for recipe in (worst, fast, fused)
        if rule(recipe, machine) is not None
    }  # fmt: skip
    assert fired == set(device.RULES)
