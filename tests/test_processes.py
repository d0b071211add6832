"""Jobs for several processes: what is kept when a launch fails, hangs or is refused. The launch itself is faked."""

import json
from pathlib import Path

import pytest
import torch
from model_helper import CPU, TINY

from speedlab.errors import BadInput, NotAvailable, SpeedLabError
from speedlab.measuring import processes, rank
from speedlab.measuring.processes import Answer, Job, measure_in_processes, run_jobs
from speedlab.measuring.variant import Measured, Plan
from speedlab.training.distributed import Place

JOBS = [Job(key=key, kind="link") for key in "abcd"]
GOOD = {"status": "measured", "reason": None, "value": 1}


def answered(monkeypatch, *launches):
    """Stand-ins for `launch`, one call each: how many jobs they answer, and the error that they end with."""
    todo, seen = list(launches), []

    def launch(module, arguments, *, world_size, timeout_s, look):
        count, error = todo.pop(0)
        folder = Path(arguments[0])
        seen.append([job["key"] for job in json.loads((folder / "jobs.json").read_text())["jobs"]])
        for number in range(count):
            (folder / f"{number}.json").write_text(json.dumps(GOOD))
            assert look() == processes.JOB_LIMIT_S  # a new limit for the next job
        assert look() is None
        if error:
            raise error

    monkeypatch.setattr(processes, "launch", launch)
    return seen


def run(**options):
    return run_jobs(JOBS, world_size=2, corpus="c", profile="smoke", **options)


def test_one_launch_does_all_jobs_and_each_answer_is_taken_when_it_is_there(monkeypatch):
    taken = []
    seen = answered(monkeypatch, (4, None))
    answers = run(take=lambda job, answer: taken.append((job.key, answer.status)))
    assert seen == [["a", "b", "c", "d"]]
    assert taken == [(key, "measured") for key in "abcd"]
    assert answers == [Answer(key=key, **GOOD) for key in "abcd"]


def test_a_job_that_ends_the_processes_is_a_row_and_the_rest_starts_anew(monkeypatch):
    seen = answered(monkeypatch, (1, SpeedLabError("2 processes failed: it broke")), (2, None))
    answers = run()
    assert seen == [["a", "b", "c", "d"], ["c", "d"]]
    assert [answer.status for answer in answers] == ["measured", "error", "measured", "measured"]
    assert answers[1].reason == "2 processes failed: it broke"


def test_what_is_refused_before_it_starts_is_no_row(monkeypatch):
    for error in (NotAvailable("needs 2 GPUs"), BadInput("no")):
        answered(monkeypatch, (0, error))
        with pytest.raises(type(error)):
            run()


def test_processes_that_leave_a_job_undone_and_call_it_well_are_no_success(monkeypatch):
    answered(monkeypatch, (3, None))
    with pytest.raises(SpeedLabError, match="left d undone"):
        run()


def test_a_recipe_comes_back_as_it_was_measured_and_an_error_of_a_rank_is_raised(monkeypatch):
    measured = {"step_ms": [1.0], "losses": [], "compile_s": None, "compile_cache": None, "peak": [1, 2]}
    asked = []

    def launch(module, arguments, *, world_size, timeout_s):
        job = json.loads((Path(arguments[0]) / "jobs.json").read_text())["jobs"][0]
        asked.append((world_size, job["arguments"]["kernels"], job["arguments"]["long_energy"]))
        if world_size == 3:
            raise SpeedLabError("3 processes failed: ValueError: no")
        answer = GOOD | {"value": {"measured": measured | {"recompiles": 0}}}
        (Path(arguments[0]) / "0.json").write_text(json.dumps(answer))

    monkeypatch.setattr(processes, "launch", launch)
    plan = Plan(contract_steps=0, warmup_steps=0, steps=1)
    found = measure_in_processes(TINY.but(data_parallel=2), plan, corpus="c", profile="smoke")
    assert isinstance(found, Measured) and found.peak.reserved_bytes == 2 and asked == [(2, True, True)]
    with pytest.raises(SpeedLabError, match="ValueError: no"):
        measure_in_processes(TINY.but(data_parallel=3), plan, corpus="c", profile="smoke")


class OneRank:
    """A rank of a group of one, with kinds of jobs of its own."""

    place = Place(device=CPU)


@pytest.fixture
def rank_of_one(monkeypatch, tmp_path):
    monkeypatch.setattr(rank, "Rank", lambda *arguments: OneRank())

    def fail(_, error):
        raise {"memory": torch.OutOfMemoryError, "input": BadInput, "bug": KeyError}[error]("why")

    kinds = {"good": lambda _: {"value": 7, "of_each": {"number": 2.5}}, "bad": fail}
    monkeypatch.setattr(rank, "KINDS", kinds)

    def do(*jobs, deadline=None):
        values = [{"kind": kind, "arguments": arguments, "reserve_s": reserve} for kind, arguments, reserve in jobs]
        work = {"corpus": "c", "profile": "smoke", "deadline_unix_s": deadline, "jobs": values}
        (tmp_path / "jobs.json").write_text(json.dumps(work))
        rank.do_jobs(tmp_path, Place(device=CPU))
        return [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(len(jobs))]

    return do


def test_every_failure_of_a_job_is_an_answer_and_the_next_job_runs(rank_of_one):
    bad = [("bad", {"error": error}, 0.0) for error in ("memory", "input", "bug")]
    answers = rank_of_one(*bad, ("good", {}, 0.0))
    assert [answer["status"] for answer in answers] == ["out_of_memory", "error", "error", "measured"]
    assert [answer["reason"] for answer in answers[1:3]] == ["why", "KeyError: 'why'"]
    assert answers[3]["value"] == {"value": 7, "of_each": {"number": [2.5]}}


def test_a_lone_job_raises_what_went_wrong(rank_of_one):
    with pytest.raises(KeyError):
        rank_of_one(("bad", {"error": "bug"}, 0.0))


def test_no_job_begins_after_the_deadline_and_time_is_kept_for_later_ones(rank_of_one, monkeypatch):
    class Clock:
        @staticmethod
        def time():
            return 100.0

    monkeypatch.setattr(rank, "time", Clock)
    answers = rank_of_one(("good", {}, 50.0), ("good", {}, 0.0), deadline=120.0)
    assert [answer["status"] for answer in answers] == ["unavailable", "measured"]
    assert "time" in answers[0]["reason"]
    assert [answer["status"] for answer in rank_of_one(("good", {}, 0.0), deadline=99.0)] == ["unavailable"]
