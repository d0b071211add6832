"""The calls of the chapter on several GPUs: with nothing recorded they say so, with records they fill themselves."""

import re
from dataclasses import replace

import pytest
from records_helper import MACHINE_H200, make_record, spread
from test_notebook import Shown

from speedlab import several_gpus
from speedlab.folklore.source import code_lines, package_source
from speedlab.publishing import scaling_parts, scaling_words
from speedlab.publishing.plotting import alt_text
from speedlab.publishing.scaling_figures import model_figure
from speedlab.records.experiment import Experiment, write_experiment
from speedlab.records.store import write_record
from speedlab.scaling_model import Link, Step, weak_efficiency
from speedlab.scaling_plan import SERIES

TIMELINE = {
    "span_ms": 63.0, "compute_ms": 60.5, "communication_ms": 4.0, "exposed_ms": 1.25, "idle_ms": 1.25,
    "first_exchange_ms": 25.0, "wait_ms": 0.0, "optimizer_ms": 0.75, "collectives": 5.0,
}  # fmt: skip
LINK = [{"bytes": 64 * 2**20, "ms": 0.3, "bus_bytes_per_s": 2.5e11}]
COMMUNICATION = {
    "backend": "nccl", "gradient_bytes": 500_000_000, "ring_bytes": 5e8, "ring_ms": 2.0, "link": LINK,
    "timeline": TIMELINE,
}  # fmt: skip
CALLS = (
    several_gpus.show_series, several_gpus.show_exchange, several_gpus.show_sharding, several_gpus.show_stopwatch,
)  # fmt: skip


def experiment(name, rows):
    return Experiment(
        name=name, session="0f1e2d3c4b5a", device="nvidia-h200-x2", profile="full", rows=rows,
        settings={"gpus": [1, 2], "link": LINK}, machine=MACHINE_H200 | {"gpus": 2}, source_hash="a" * 64,
        utc="2026-11-29T12:00:00Z",
    )  # fmt: skip


def row(key, step_ms, **more):
    return {
        "key": key, "title": f"title of {key}", "change": {}, "gpus": 2, "status": "measured", "reason": None,
        "tokens_per_step": 65_536, "step_ms": [step_ms] * 30, "median_step_ms_of_each": [step_ms, step_ms + 0.5],
        "peak_allocated_bytes_of_each": [2**34, 2**33], **more,
    }  # fmt: skip


SWEEP = [
    row("defaults", 65.0),
    row("independent", 61.0),
    row("nothing_sent", 62.5),
    row("tuned", 63.0, communication=COMMUNICATION),
    {"key": "few_blocks", "title": "few", "gpus": 2, "status": "error", "reason": "RuntimeError: a | b"},
]
STOPWATCH = [
    {"key": key, "title": key, "gpus": gpus, "window_ms": ms, "steps": 30, "tokens_per_step": 1000 * gpus,
     "status": "measured", "reason": None}
    for key, one, two in (
        ("training_only", 300.0, 310.0), ("evaluation_every_10", 400.0, 420.0), ("evaluation_every_5", 500.0, 600.0),
    )
    for gpus, ms in ((1, one), (2, two))
]  # fmt: skip


@pytest.fixture
def shown(monkeypatch):
    import IPython.display

    things = Shown()
    monkeypatch.setattr(IPython.display, "display", lambda *objects, **options: things.extend(objects))
    return things


@pytest.fixture
def empty(monkeypatch, tmp_path):
    for name in ("records", "experiments"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(several_gpus, "committed_root", lambda: tmp_path / "records")
    monkeypatch.setattr(several_gpus, "committed_experiments", lambda: tmp_path / "experiments")
    return tmp_path


@pytest.fixture
def recorded(empty):
    """What `speedlab scaling` leaves on a machine of two H200."""
    plain = next(series for series in SERIES if series.name == "scaling-plain")
    for gpus, ms in ((1, 60.0), (2, 65.0)):
        record = make_record(f"data_parallel_{gpus}", device="nvidia-h200-x2", step_ms=ms)
        recipe = plain.recipe_on(gpus)
        machine = MACHINE_H200 | {"gpus": 2}
        own = {"ladder": "scaling-plain", "recipe": recipe.as_dict(), "tokens_per_step": recipe.tokens_per_step}
        own |= {"machine": machine, "contract": "training" if gpus == 2 else "reference", "contract_verdict": None}
        write_record(empty / "records", replace(record, machine=machine))
        write_record(empty / "records", replace(record, **own, communication=COMMUNICATION if gpus == 2 else None))
    for name, rows in (
        ("data_parallel_sweep", SWEEP), ("data_parallel_sharding", SWEEP[:2]), ("data_parallel_stopwatch", STOPWATCH),
    ):  # fmt: skip
        write_experiment(empty / "experiments", experiment(name, rows))
    return empty


def test_without_records_each_table_says_how_to_make_them(empty, shown):
    for call in CALLS:
        call()
    assert len(shown) == len(CALLS)
    assert shown.text.count("No machine with several GPUs has been recorded yet") == len(CALLS)
    assert shown.text.count("speedlab scaling --worlds 1,2 --parts") == len(CALLS)
    several_gpus.show_model()
    assert "A model, never a measurement" in shown.text and "fitted to no point" in shown.text
    assert len(shown.pictures) == 1 and "not a measurement" in shown.pictures[0]


def test_with_records_the_same_calls_fill_their_tables(recorded, shown):
    for call in CALLS:
        call()
    text = shown.text
    assert "No machine" not in text and text.count("**Recorded** on") == len(CALLS)
    assert "| Tied head, no dropout, autocast, 32 sequences a GPU | 2 | 1,008,246 | 65.0 | 1.85x |" in text
    # Step = computing + exposed + pauses; then the exchange in all, what of it is hidden, bytes and their time.
    assert "| 63.0 | 60.5 | 1.25 | 1.25 |" in text and "| 4.00 | 68.8 % | 500 | 2.00 | 25.0 |" in text
    assert "250 GB/s at 64 MiB" in text
    assert "Not measured (error: RuntimeError: a | b): few." in text


def test_the_way_from_one_gpu_to_two_adds_up(recorded, shown):
    several_gpus.show_exchange()
    stages = re.findall(r"\| (\d+\.\d\d) \| (–|[+-]\d+\.\d\d) \|", shown.text)  # noqa: RUF001
    assert [float(ms) for ms, _ in stages] == [60.0, 61.0, 62.5, 65.0]
    assert sum(float(added) for _, added in stages[1:]) == pytest.approx(5.0)
    assert "*title of tuned*, 63.00 ms a step: 3.00 ms more than one GPU alone, a scaling of 1.90x" in shown.text


def test_rows_of_a_sweep_stand_in_order_of_speed(recorded):
    titles = re.findall(
        r"^\| title of (\w+)", scaling_parts.sweep_table(experiment("data_parallel_sweep", SWEEP)), re.M
    )
    assert titles == ["independent", "nothing_sent", "tuned", "defaults"]


def test_each_stopwatch_has_its_own_scaling_and_the_published_one_divides_unlike_windows(recorded, shown):
    several_gpus.show_stopwatch()
    scalings = dict(re.findall(r"^\| ([^|]+?) \| .*\| (\d\.\d\d)x \|$", shown.text, re.M))
    assert scalings == {
        "training_only": f"{2 * 300 / 310:.2f}", "evaluation_every_10": f"{2 * 400 / 420:.2f}",
        "evaluation_every_5": f"{2 * 500 / 600:.2f}",
        "one GPU every 10 steps, 2 every 5: as published": f"{2 * 400 / 600:.2f}",
    }  # fmt: skip


def test_the_model_is_fitted_to_what_is_recorded(recorded, shown):
    several_gpus.show_model()
    assert "fitted to 1 measured point of several GPUs, which it meets by construction, with 5.00 ms" in shown.text
    assert "One GPU takes 60.0 ms a step, 500 MB are averaged" in shown.text and "250 GB/s" in shown.text


def test_the_figure_tells_in_words_what_it_draws_and_marks_what_was_measured():
    step, link = Step(compute_s=0.06, gradient_bytes=5e8), Link(bytes_per_s=1e11)
    figure = model_figure(step, step, {"a link": link}, [(1, 1.0), (2, 0.95)])
    assert "A model, not a measurement" in alt_text(figure)
    assert f"a link: {100 * weak_efficiency(step, 512, link):.0f} % growing" in alt_text(figure)
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels == ["model, a link", "measured"]
    points = next(line for line in figure.axes[0].lines if line.get_label() == "measured")
    assert list(points.get_xdata()) == [1, 2] and list(points.get_ydata()) == [100.0, 95.0]


def test_the_lines_of_several_gpus_are_counted_in_the_source(shown):
    several_gpus.show_lines()
    counts = [int(count) for count in re.findall(r"\| (\d+) \|$", shown.text, re.M)]
    assert counts[-1] == sum(counts[:-1]) and counts[0] == code_lines(package_source("training/parallel.py"))


def test_a_session_that_did_not_compare_losses_says_so_and_spread_samples_are_medians():
    record = make_record("data_parallel_2", device="nvidia-h200-x2", step_ms=spread(65.0), contract_verdict=None)
    assert "| not compared |" in scaling_words.series_table([record])
