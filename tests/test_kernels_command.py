"""`speedlab kernels`: one real run of the toy with all it can show, refusals in one line, and GPU events made up."""

import contextlib
import getpass
import io
import json
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from model_helper import CPU

from speedlab import cli
from speedlab.device import Capabilities
from speedlab.measuring import kernel_profile, trace
from speedlab.measuring.kernel_profile import (
    KernelProfile,
    launched_rows,
    profile_steps,
    profiled_rows,
    shapes_text,
)
from speedlab.measuring.loader_wait import LoaderWait
from speedlab.publishing.kernel_tables import kernel_report
from speedlab.records.record import KERNEL_KINDS

CUDA = torch.autograd.DeviceType.CUDA
HAND_MADE = KernelProfile(
    ladder="nine-steps", rung="bfloat16", title="bfloat16", device="a-card", on_gpu=True, profile="full",
    torch="2.13.0", steps=3,
    kernels=[
        {"name": "nvjet_tst_64x64", "kind": "matmul, Tensor Cores", "calls": 4.0, "time_us": 6_000.0},
        {"name": "ampere_sgemm_32x32_tn", "kind": "matmul, ordinary", "calls": 2.0, "time_us": 3_000.0},
        {"name": "unheard_of", "kind": "other", "calls": 1.0, "time_us": 1_000.0},
    ],
    loader_wait=LoaderWait(loader_wait_ms=0.5, step_ms=12.5, kernel_ms=10.0),
)  # fmt: skip


def run(*arguments: str) -> tuple[int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.run(["kernels", *arguments])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """One run with everything on: what it printed and the trace that it wrote."""
    path = tmp_path_factory.mktemp("profile") / "new folder" / "baseline.pt.trace.json"
    code, out, err = run(
        "baseline", "--profile", "smoke", "--shapes", "--memory", "--top", "150", "--trace", str(path)
    )  # fmt: skip
    assert code == 0, err
    return SimpleNamespace(out=out, path=path, trace=path.read_text(encoding="utf-8"))


def test_the_kinds_are_shown_with_shares_that_add_up(shown):
    kinds = dict(re.findall(r"^(\w.*?\S)  +[\d,]+  +\S+  +([\d.]+) %$", shown.out, re.MULTILINE))
    assert {"matmul, ordinary", "softmax and loss", "optimizer", "other"} <= set(kinds) <= set(KERNEL_KINDS)
    assert sum(map(float, kinds.values())) == pytest.approx(100.0, abs=1.0)
    assert f"{kinds['other']} % of the time" in shown.out
    assert "on cpu, profile smoke" in shown.out and "Tensor Cores" not in shown.out


def test_the_longest_are_shown_with_shapes_and_memory(shown):
    heading, _, *rows = shown.out.split("the 150 longest of ")[1].split("\n\n")[1].splitlines()
    assert re.split(r"\s{2,}", heading.strip()) == [
        "calls",
        "ms",
        "share",
        "MiB allocated",
        "kind",
        "shapes",
        "operator",
    ]
    assert len(rows) == 150
    times_ms = [float(row.split()[1].replace(",", "")) for row in rows]
    assert times_ms == sorted(times_ms, reverse=True) and times_ms[0] > 0
    # Logits: 4 sequences of 64 tokens by 64 channels, against 1,001 ids; their 256 x 1,001 float32 take 0.98 MiB.
    assert re.search(r"^\s+1\s.*\s0\.98\s+matmul, ordinary\s+256x64 64x1001\s+aten::mm$", shown.out, re.MULTILINE)


def test_the_wait_for_the_loader_stands_below(shown):
    assert re.search(r"^loader: the batches of a step take \S+ ms .* it waits for them [\d.]+ % of", shown.out, re.M)
    assert "GPU:" not in shown.out


def test_the_trace_holds_three_steps_and_their_operators(shown):
    events = json.loads(shown.trace)["traceEvents"]
    steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}
    products = [event for event in events if event["name"] == "aten::mm"]
    assert products and all(event["ph"] == "X" and event["dur"] > 0 for event in products)
    assert len(products) % 3 == 0 and any(event["args"]["Input Dims"][0][1] == 64 for event in products)


def test_the_trace_says_nothing_about_whose_it_is(shown):
    assert set(json.loads(shown.trace)) <= set(trace.KEPT)
    host = socket.gethostname()
    for path in (str(Path.home()), str(shown.path.parent), sys.prefix, "/tmp"):
        assert path not in shown.trace, path
    words = set(re.findall(r"[\w.-]+", shown.trace))
    assert "aten" in words and not words & {host, host.split(".")[0], getpass.getuser()}
    assert [path.name for path in shown.path.parent.iterdir()] == [shown.path.name]


def test_a_file_that_is_there_is_kept(shown):
    code, out, err = run("baseline", "--profile", "smoke", "--trace", str(shown.path))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and str(shown.path) in err and "another name" in err
    assert shown.path.read_text(encoding="utf-8") == shown.trace


def test_a_file_that_came_while_the_rung_ran_is_kept_too(tmp_path):
    path = tmp_path / "late.json"
    profiler = SimpleNamespace(export_chrome_trace=lambda raw: Path(raw).write_text('{"traceEvents": []}'))
    path.write_text("mine")
    with pytest.raises(trace.BadInput, match="there already"):
        trace.write_trace(profiler, path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["peak"], ["'peak'", "nine-steps", "flash_attention"]),
        (["pinned_memory", "--ladder", "six-steps"], ["'pinned_memory'", "six-steps"]),
        (["baseline", "--ladder", "seven"], ["'seven'", "nine-steps, six-steps"]),
        (["baseline", "--profile", "huge"], ["'huge'", "smoke"]),
        (["baseline", "--top", "0"], ["--top", "speedlab kernels --help"]),
        ([], ["argument", "rung"]),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(arguments, words):
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [word for word in words if word.lower() not in err.lower()] == []


def test_a_rung_of_several_processes_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(kernel_profile, "capabilities", lambda: Capabilities(device_type="cpu", cores=2))
    code, out, err = run("data_parallel", "--profile", "smoke")
    assert (code, out, err.count("\n")) == (3, "", 1) and "2 processes" in err


def test_too_little_memory_is_said_in_one_line(monkeypatch):
    def start_variant(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(kernel_profile, "start_variant", start_variant)
    code, out, err = run("baseline", "--profile", "smoke")
    assert (code, out) == (3, "") and err.splitlines()[-1].startswith("speedlab: rung baseline needs more memory")


def test_json_holds_all_that_was_measured(monkeypatch):
    monkeypatch.setattr(kernel_profile, "profile_rung", lambda rung, **options: HAND_MADE)
    code, out, _ = run("bfloat16", "--json", "--top", "1")
    found = json.loads(out)
    assert code == 0 and found["kernels"] == HAND_MADE.kernels
    assert [(row["kind"], row["share"]) for row in found["kinds"]] == [
        ("matmul, Tensor Cores", 0.6), ("matmul, ordinary", 0.3), ("other", 0.1)
    ]  # fmt: skip
    assert found["loader"] == HAND_MADE.loader_wait.as_dict()
    assert (found["ladder"], found["rung"], found["profiled_steps"]) == ("nine-steps", "bfloat16", 3)


def test_on_a_gpu_its_idle_share_stands_beside_the_loader():
    text = kernel_report(HAND_MADE, top=2)
    assert "take 0.50 ms until they are on the device, a step 12.5 ms" in text
    assert "kernels take 10.0 ms of the step, so it idles 20.0 % of it, at most 4.0 % for the loader" in text
    assert "the 2 longest of 3" in text and "10.0 % of the time" in text


def test_other_is_shown_when_there_is_none_of_it():
    known = replace(HAND_MADE, kernels=HAND_MADE.kernels[:2])
    assert re.search(r"^other\s+0\s+0\.00\s+0\.0 %$", kernel_report(known, top=2), re.MULTILINE)


def test_three_steps_are_profiled_after_two_that_are_not():
    left, right = torch.ones(24, 32), torch.ones(32, 40)
    calls = []

    def step():
        calls.append(None)
        torch.mm(left, right)

    profiler = profile_steps(step, CPU, shapes=True, memory=True)
    rows = {row["name"]: row for row in profiled_rows(profiler, on_gpu=False, shapes=True, memory=True)}
    assert len(calls) == 5
    product = rows["aten::mm"]
    assert (product["calls"], product["shapes"], product["memory_bytes"]) == (1.0, "24x32 32x40", 4 * 24 * 40)
    assert not any(name.startswith("ProfilerStep") for name in rows)
    plain = profiled_rows(profiler, on_gpu=False, shapes=False, memory=False)
    assert {"shapes", "memory_bytes"}.isdisjoint(plain[0])


def event(name, *, on_card, us=0.0, kernels=(), shapes=(), memory=0, annotation=False):
    return SimpleNamespace(
        name=name, device_type=CUDA if on_card else torch.autograd.DeviceType.CPU, self_device_time_total=us,
        kernels=[SimpleNamespace(name=kernel, duration=kernel_us) for kernel, kernel_us in kernels],
        input_shapes=list(shapes), device_memory_usage=memory, is_user_annotation=annotation,
    )  # fmt: skip


EVENTS = [
    event("aten::mm", on_card=False, kernels=[("nvjet_a", 6.0), ("splitKreduce", 2.0)], shapes=[[8, 4], [4, 2]],
          memory=64),
    event("aten::mm", on_card=False, kernels=[("nvjet_a", 10.0)], shapes=[[16, 4], [4, 2]], memory=128),
    event("Optimizer.step", on_card=False, kernels=[("Optimizer.step", 50.0)], annotation=True),
    event("aten::view", on_card=False, shapes=[[8, 4]]),
    event("nvjet_a", on_card=True, us=6.0),
    event("splitKreduce", on_card=True, us=2.0),
    event("nvjet_a", on_card=True, us=10.0),
    event("triton_poi_fused_add_0", on_card=True, us=4.0),
    event("Optimizer.step", on_card=True, us=50.0, annotation=True),
]  # fmt: skip


def test_kernels_of_a_gpu_get_the_shapes_and_memory_of_the_operators_that_launched_them():
    rows = launched_rows(EVENTS, 2, shapes=True, memory=True)
    assert [(row["name"], row["shapes"], row["calls"], row["time_us"], row["memory_bytes"]) for row in rows] == [
        ("nvjet_a", "16x4 4x2", 0.5, 5.0, 64),
        ("nvjet_a", "8x4 4x2", 0.5, 3.0, 16),
        ("triton_poi_fused_add_0", "", 0.5, 2.0, 0),
        ("splitKreduce", "8x4 4x2", 0.5, 1.0, 16),
    ]
    assert [row["kind"] for row in rows] == ["matmul, Tensor Cores"] * 2 + ["fused", "reduction"]


def test_without_shapes_the_calls_of_a_kernel_are_one_row():
    rows = launched_rows(EVENTS, 2, shapes=False, memory=True)
    assert [(row["name"], row["calls"], row["memory_bytes"]) for row in rows] == [
        ("nvjet_a", 1.0, 80), ("triton_poi_fused_add_0", 0.5, 0), ("splitKreduce", 0.5, 16)
    ]  # fmt: skip
    assert "shapes" not in rows[0]


def test_shapes_are_written_without_the_numbers_between_them():
    assert shapes_text([[8, 1024], [], [1024, 768]]) == "8x1024 1024x768"
    assert shapes_text("") == shapes_text(None) == ""


def test_a_trace_loses_paths_host_and_user_and_keeps_what_viewers_read():
    kernel = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int, float)"
    raw = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "uuid": "GPU-12"}],
        "host_name": "node7", "traceName": "/home/jane/x.json", "trace_id": "AB",
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/home/jane/.venv/bin/python"}},
            {"ph": "X", "cat": "kernel", "name": kernel, "ts": 1.5, "args": {"grid": [1, 2, 3], "est": float("nan")}},
            {"ph": "X", "cat": "cpu_op", "name": "triton_poi_0", "args": {"file": "/tmp/torchinductor_jane/a/k.py"}},
            {"ph": "X", "cat": "user_annotation", "name": "load /data/jane/words.txt", "args": {}},
            {"ph": "X", "cat": "cpu_op", "name": "Torch-Compiled Region: 0/0", "args": {"who": "jane on node7, janet"}},
        ],
    }  # fmt: skip
    kept = trace.anonymous(raw, names=frozenset({"node7", "jane"}), home="/home/jane")
    assert set(kept) == {"schemaVersion", "deviceProperties", "traceEvents"}
    assert kept["deviceProperties"] == [{"id": 0, "name": "NVIDIA H200"}]
    process, add, compiled, load, region = kept["traceEvents"]
    assert process["args"] == {"name": "python"}
    assert add == raw["traceEvents"][1] | {"args": {"grid": [1, 2, 3], "est": None}}
    assert compiled["args"] == {"file": "k.py"} and load["name"] == "load words.txt"
    assert region == raw["traceEvents"][4] | {"args": {"who": "- on -, janet"}}
