"""A session with several GPUs: which jobs it asks for, and what becomes of their answers. No process is started."""

import dataclasses

import pytest
from data_helper import one_line_error
from records_helper import MACHINE_H200

from speedlab import cli
from speedlab.device import Capabilities
from speedlab.errors import BadInput, NotAvailable
from speedlab.measuring import ceiling, scaling
from speedlab.measuring.processes import Answer
from speedlab.measuring.scaling import ScalingSession, run_scaling
from speedlab.measuring.variant import Plan
from speedlab.profile import FULL
from speedlab.recipe import Recipe
from speedlab.records.experiment import experiment_path, read_experiment
from speedlab.records.rows import report_rows
from speedlab.records.store import read_records
from speedlab.scaling_plan import PARTS, PLAIN, PUBLISHED, SERIES, SHARDINGS, SWEEP, Series, base_recipe

X2 = Capabilities(
    device_type="cuda", capability=(9, 0), gpu_name="NVIDIA H200", gpu_memory_bytes=150_000_000_000,
    multiprocessors=132, gpus=2, cores=32,
)  # fmt: skip
CEILINGS = {"matmul_flops_per_s": {"bfloat16": 7e14}, "copy_bytes_per_s": 4e12, "utc": "2026-11-29T12:00:00Z"}
LINK = [{"bytes": 2**28, "ms": 1.0, "bus_bytes_per_s": 2.7e11}]
TIMELINE = {"span_ms": 63.0, "exposed_ms": 1.5, "communication_ms": 4.0, "first_exchange_ms": None}


class Bench:
    """A workbench of a machine that is not here."""

    id, device_slug, profile, machine, corpus = "0f1e2d3c4b5a", "nvidia-h200", FULL, X2, "standard-library"
    ceilings = CEILINGS
    plan = Plan(contract_steps=3, warmup_steps=5, steps=30)
    machine_record = MACHINE_H200 | {"gpus": 2}
    corpus_record = {"name": "standard-library", "sha256": "c" * 64, "tokens": 5_000_000}  # noqa: RUF012
    provenance = {"source_hash": "a" * 64, "commit": None}  # noqa: RUF012

    def scaled(self, recipe):
        return recipe

    def base_record(self, ladder, rung, recipe, substitutions):
        return {
            "session": self.id, "device": self.device_slug, "ladder": ladder.name, "rung": rung.key,
            "profile": "full", "recipe": recipe.as_dict(), "substitutions": [], "contract": rung.contract,
            "machine": self.machine_record, "corpus": self.corpus_record, "utc": "2026-11-29T12:00:00Z",
            **self.provenance,
        }  # fmt: skip


def step_ms_of(recipe: Recipe) -> float:
    """Made up: by tokens of one GPU, and 2 ms more where DDP has other processes."""
    own_ms = recipe.tokens_per_step / recipe.data_parallel / 32_768 * 60.0
    return own_ms + (2.0 if recipe.data_parallel > 1 and recipe.sharding != "independent" else 0.0)


def measured(recipe: Recipe) -> dict:
    ms = step_ms_of(recipe)
    value = {
        "step_ms": [ms] * 30, "losses": [10.9, 10.5, 10.1] if recipe.dropout == 0 else [], "compile_s": 15.0,
        "compile_cache": "warm", "peak": [20 * 2**30, 22 * 2**30], "recompiles": 0, "kernels": [], "energy_j": 900.0,
        "energy_steps": 30, "skipped_steps": None, "notes": [],
    }  # fmt: skip
    each = [ms + 0.1 * rank for rank in range(recipe.data_parallel)]
    peaks = [20.0 * 2**30] * recipe.data_parallel
    return {"measured": value, "of_each": {"median_step_ms": each, "peak_allocated_bytes": peaks}}


def answer_to(job) -> Answer:
    if job.kind == "link":
        return Answer(key=job.key, status="measured", value=LINK)
    recipe = Recipe.from_dict(job.arguments["recipe"])
    if job.kind == "stopwatch":
        return Answer(key=job.key, status="measured", value=[{"key": "training_only", "window_ms": 1.0}])
    if job.kind == "timeline":
        communication = {
            "backend": "nccl", "gradient_bytes": 4, "ring_bytes": 4.0, "ring_ms": 1.0, "link": LINK,
            "timeline": TIMELINE,
        }  # fmt: skip
        kernels = [{"name": "ncclDevKernel", "kind": "communication", "calls": 6.0, "time_us": 4000.0}]
        return Answer(key=job.key, status="measured", value={"communication": communication, "kernels": kernels})
    if recipe.gradient_bucket_mb == 200:
        return Answer(key=job.key, status="error", reason="RuntimeError: it broke")
    return Answer(key=job.key, status="measured", value=measured(recipe))


@pytest.fixture
def done(monkeypatch, tmp_path):
    """A session of one and two GPUs whose jobs are answered at once."""
    asked = {}

    def run_jobs(jobs, *, world_size, take, **options):
        asked[world_size] = list(jobs)
        for job in jobs:
            take(job, answer_to(job))

    monkeypatch.setattr(scaling, "run_jobs", run_jobs)
    session = ScalingSession(Bench(), (1, 2), SERIES, PARTS, out=tmp_path)
    return asked, session.run(1e12), tmp_path


def test_each_number_of_gpus_is_one_launch_and_a_recipe_is_measured_once(done):
    asked, _, _ = done
    assert list(asked) == [1, 2]
    for gpus, jobs in asked.items():
        timed = [job.arguments["recipe"] for job in jobs if job.kind == "variant"]
        assert all(recipe["data_parallel"] == gpus for recipe in timed)
        assert len({tuple(recipe.items()) for recipe in timed}) == len(timed)
    assert [job.kind for job in asked[1]] == ["variant"] * 4 + ["stopwatch"]
    keys = [job.key for job in asked[2]]
    assert keys[:7] == ["link", *(series.name for series in SERIES), "stopwatch"]
    assert [variation.key for variation in SWEEP if variation.key not in keys] == ["defaults"]  # it is scaling-plain


def test_nothing_is_timed_after_the_profiler_ran_and_the_timelines_keep_their_time(done):
    asked, _, _ = done
    kinds = [job.kind for job in asked[2]]
    assert set(kinds[kinds.index("timeline") :]) == {"timeline"} and kinds.count("timeline") >= 4
    for job in asked[2]:
        assert job.reserve_s == (scaling.TIMELINES_S if job.kind in ("variant", "stopwatch") else 0.0)


def test_losses_are_compared_only_where_that_costs_no_compilation(done):
    asked, _, _ = done
    for job in asked[2]:
        if job.kind == "variant":
            wanted = 0 if job.arguments["recipe"]["dropout"] else Bench.plan.contract_steps
            assert job.arguments["plan"]["contract_steps"] == wanted


def test_records_stand_where_tables_look_for_them_and_scaling_is_of_their_own_session(done):
    _, answers, folder = done
    records = read_records(folder / "records")
    assert len(records) == len(answers.records) == 2 * len(SERIES)
    assert {record.device for record in records} == {"nvidia-h200-x2"}
    rows = {(row["ladder"], row["rung"]): row for row in report_rows(records)}
    assert rows["nine-steps", "data_parallel_2"]["scaling"] == pytest.approx(2 * 60 / 62)
    assert rows["nine-steps", "data_parallel_1"]["scaling"] == 1.0
    assert rows["scaling-total", "data_parallel_2"]["scaling"] == pytest.approx(60 / 32)
    assert rows["scaling-fastest", "data_parallel_2"]["world_size"] == 2
    total = rows["scaling-total", "data_parallel_2"]
    assert (total["contract"], total["contract_verdict"]) == ("rounding", "passed")
    assert rows["nine-steps", "data_parallel_2"]["contract_verdict"] is None  # nothing was compared


def test_a_timeline_is_added_to_the_record_that_was_timed_before(done):
    _, answers, folder = done
    for record in read_records(folder / "records"):
        drawn = record.rung == "data_parallel_2" and record.ladder != "scaling-total"
        assert (record.communication is not None) == drawn
        assert bool(record.kernels) == drawn and record.step_ms
        if drawn:
            assert record.communication["timeline"] == TIMELINE
    assert any("median step of each process: 62.00, 62.10 ms" in note for note in record_of(answers, 2).notes)


def record_of(answers, gpus):
    return answers.records["nine-steps", gpus]


def test_the_sweep_and_the_shardings_are_experiments_and_a_failed_row_says_why(done):
    _, _, folder = done

    def read(name):
        return read_experiment(experiment_path(folder / "experiments", "nvidia-h200-x2", name))

    sweep = read("data_parallel_sweep")
    assert sorted(row["key"] for row in sweep.rows) == sorted(variation.key for variation in SWEEP)
    rows = {row["key"]: row for row in sweep.rows}
    assert (rows["buckets_200"]["status"], rows["buckets_200"]["reason"]) == ("error", "RuntimeError: it broke")
    assert rows["independent"]["step_ms"] == [60.0] * 30 and rows["defaults"]["step_ms"] == [62.0] * 30
    assert rows["tuned"]["communication"]["timeline"] == TIMELINE and "communication" not in rows["few_blocks"]
    assert sweep.settings == {"gpus": [1, 2], "link": LINK}
    sharding = read("data_parallel_sharding")
    assert [row["key"] for row in sharding.rows] == [variation.key for variation in SHARDINGS]
    assert all(len(row["peak_allocated_bytes_of_each"]) == 2 for row in sharding.rows)
    assert [(row["gpus"], row["key"]) for row in read("data_parallel_stopwatch").rows] == [
        (1, "training_only"), (2, "training_only"),
    ]  # fmt: skip


def test_a_job_that_failed_is_a_record_with_its_reason(monkeypatch):
    def run_jobs(jobs, *, take, **options):
        for job in jobs:
            take(job, Answer(key=job.key, status="out_of_memory", reason="it needs more memory than there is"))

    monkeypatch.setattr(scaling, "run_jobs", run_jobs)
    answers = ScalingSession(Bench(), (1, 2), SERIES, PARTS).run(1e12)
    assert {record.status for record in answers.records.values()} == {"out_of_memory"}
    assert all(not record.step_ms and "memory" in record.reason for record in answers.records.values())
    assert {row["status"] for row in answers.experiments["data_parallel_sweep"].rows} == {"out_of_memory"}


def test_one_recipe_alone_is_a_series_of_its_own_and_parts_can_be_left_out(monkeypatch):
    asked = []
    monkeypatch.setattr(scaling, "run_jobs", lambda jobs, **options: asked.append([job.key for job in jobs]))
    own = Series(name="scaling-own", title="One recipe", recipe=base_recipe("nine-steps/merged_qkv"))
    ScalingSession(Bench(), (1, 2), (own,), ("series",)).run(1e12)
    assert asked == [["scaling-own"], ["link", "scaling-own"]]


def test_a_row_that_two_tables_share_enters_only_those_that_were_asked_for(monkeypatch):
    def run_jobs(jobs, *, take, **options):
        for job in jobs:
            take(job, answer_to(job))

    monkeypatch.setattr(scaling, "run_jobs", run_jobs)
    answers = ScalingSession(Bench(), (1, 2), SERIES, ("series", "sharding")).run(1e12)
    assert list(answers.experiments) == ["data_parallel_sharding"] and len(answers.records) == 2 * len(SERIES)
    answers = ScalingSession(Bench(), (1, 2), SERIES, ("sweep",)).run(1e12)
    assert list(answers.experiments) == ["data_parallel_sweep"] and answers.records == {}


@pytest.mark.parametrize(
    ("machine", "worlds", "error", "parts"),
    [
        (dataclasses.replace(X2, gpus=1), (1, 2), NotAvailable, ("2 GPUs", "has 1", "at most 1")),
        (X2, (1, 2, 4), NotAvailable, ("4 GPUs", "has 2")),
        (Capabilities(device_type="cpu", cores=2), (1, 8), BadInput, ("8 processes", "at most 4")),
        (X2, (2,), BadInput, ("'2'", "begin with 1")),
        (X2, (1, 1), BadInput, ("'1,1'", "rising")),
    ],
)
def test_more_ranks_than_gpus_or_a_senseless_order_are_one_line(monkeypatch, machine, worlds, error, parts):
    monkeypatch.setattr(scaling, "capabilities", lambda: machine)
    one_line_error(error, lambda: run_scaling(worlds), *parts)


def test_recipes_and_parts_are_told_by_name():
    assert base_recipe("published") == PUBLISHED and base_recipe("plain") == PLAIN
    assert base_recipe("six-steps/padded_vocab").vocabulary == "padded"
    one_line_error(BadInput, lambda: base_recipe("quick"), "'quick'", "fastest", "LADDER/RUNG")
    one_line_error(BadInput, lambda: run_scaling((1, 2), parts=("speed",)), "'speed'", *PARTS)


def test_a_batch_that_the_gpus_cannot_share_is_refused():
    total = next(series for series in SERIES if series.name == "scaling-total")
    assert [total.recipe_on(gpus).tokens_per_step for gpus in (1, 2, 4)] == [32 * 1024] * 3
    one_line_error(BadInput, lambda: total.recipe_on(3), "32", "3 GPUs")


def test_the_session_measures_the_rates_of_the_machine_itself(monkeypatch):
    monkeypatch.setattr(scaling, "run_jobs", lambda jobs, **options: None)
    monkeypatch.setattr(ceiling, "measure_ceilings", lambda machine: CEILINGS)
    bench = Bench()
    bench.ceilings = None
    ScalingSession(bench, (1,), SERIES, ("series",)).run(1e12)
    assert bench.ceilings == CEILINGS


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--worlds", "1,two"], 2, ("'1,two'", "1,2")),
        (["--parts", "series,speed"], 2, ("'speed'", "timelines")),
        (["--recipe", "quick"], 2, ("'quick'", "LADDER/RUNG")),
        (["--recipe", "nine-steps/quick"], 2, ("'quick'", "merged_qkv")),
    ],
)
def test_the_command_refuses_in_one_line(capsys, arguments, code, words):
    assert cli.run(["scaling", *arguments]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words)


def test_the_command_prints_records_and_rows_and_fails_where_one_did(monkeypatch, capsys, done):
    _, answers, _ = done
    results = list(answers.records.values()), list(answers.experiments.values())
    monkeypatch.setattr(scaling, "run_scaling", lambda worlds, **options: results)
    assert cli.run(["scaling"]) == 1  # the row that broke
    printed = capsys.readouterr().out
    assert "data_parallel_2" in printed and "RuntimeError: it broke" in printed and "data_parallel_sharding" in printed
