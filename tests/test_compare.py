"""Two folders of records side by side: ratios, what differs, what is refused. All records are made up."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from records_helper import MACHINE_H200, make_record, skipped_record, spread

from speedlab import cli
from speedlab.errors import BadInput
from speedlab.publishing import compare
from speedlab.publishing.compare import compare_folders, compare_records, comparison_table, render_comparison
from speedlab.publishing.figure_of_comparison import comparison_figure
from speedlab.publishing.plotting import alt_text, svg_text
from speedlab.records.record import REMARK
from speedlab.records.store import write_record

OTHER_DAY = {"session": "aaaa1111bbbb", "utc": "2026-12-24T08:00:00Z"}


def one_pair(of_a, of_b):
    [pair] = compare_records(of_a, of_b).pairs
    return pair, {row["rung"]: row for row in pair.rows}


def test_the_ratio_is_that_of_the_speeds_of_b_over_a():
    _, rows = one_pair([make_record(step_ms=250.0)], [make_record(step_ms=200.0, **OTHER_DAY)])
    row = rows["baseline"]
    assert row["ratio"] == pytest.approx(1.25) and row["clear"] is True
    assert row["ratio_low"] < 1.25 < row["ratio_high"]
    assert row["tokens_per_s_a"] == pytest.approx(8 * 1024 / 0.25)


def test_the_interval_agrees_with_an_independent_bootstrap_and_is_widened_by_the_larger_drift():
    draw = np.random.default_rng(3)
    slow, fast = draw.normal(309, 6, 40), draw.normal(300, 6, 40)
    a = make_record(step_ms=slow.tolist(), drift_step_ms=[1.01 * float(np.median(slow))] * 9)
    _, rows = one_pair([a], [make_record(step_ms=fast.tolist(), **OTHER_DAY)])
    ratios = np.median(draw.choice(slow, (20_000, 40)), axis=1) / np.median(draw.choice(fast, (20_000, 40)), axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert rows["baseline"]["ratio_low"] == pytest.approx(low * 0.99, abs=0.006)
    assert rows["baseline"]["ratio_high"] == pytest.approx(high * 1.01, abs=0.006)


def test_a_difference_inside_the_interval_is_no_clear_difference():
    a, b = [make_record(step_ms=spread(250.0, relative=0.02))], [make_record(step_ms=spread(249.0, relative=0.02))]
    comparison = compare_records(a, b)
    assert comparison.pairs[0].rows[0]["clear"] is False
    table = comparison_table(comparison, comparison.pairs[0])
    assert table.cells[0][table.columns.index("B/A")] == "no clear difference"


def test_everything_that_differs_between_machine_and_method_is_named_and_nothing_else():
    machine = MACHINE_H200 | {
        "torch": "2.14.0+cu131", "cuda": "13.1", "driver": "590.2", "power_limit_w": 500.0, "python": "3.12.1",
        "gpu": "NVIDIA H200 NVL",
    }  # fmt: skip
    pair, _ = one_pair([make_record()], [make_record(machine=machine, profile="t4", **OTHER_DAY)])
    assert {item.what: (item.a, item.b) for item in pair.differences} == {
        "torch": ("2.13.0+cu130", "2.14.0+cu131"),
        "CUDA": ("13.0", "13.1"),
        "driver": ("580.1", "590.2"),
        "power cap, W": (700.0, 500.0),
        "Python": ("3.11.9", "3.12.1"),
        "GPU": ("NVIDIA H200", "NVIDIA H200 NVL"),
        "profile": ("full", "t4"),
        "session": ("0f1e2d3c4b5a", "aaaa1111bbbb"),
        "day": ("2026-11-29", "2026-12-24"),
    }


def test_another_method_is_named():
    pair, _ = one_pair([make_record(method=1)], [make_record(method=2)])
    assert [(item.what, item.a, item.b) for item in pair.differences] == [("method", 1, 2)]


def test_the_same_records_differ_in_nothing_and_the_table_says_so():
    comparison = compare_records([make_record()], [make_record()])
    assert comparison.pairs[0].differences == ()
    assert "nothing that the records hold" in render_comparison(comparison, "table")


def test_a_rung_of_one_side_only_or_not_measured_stands_there_with_its_reason_and_no_ratio():
    a = [make_record("baseline"), make_record("causal_mask"), skipped_record("tensor_cores", reason="no TF32 units")]
    b = [make_record(rung, **OTHER_DAY) for rung in ("baseline", "tensor_cores", "fused_adamw")]
    pair, rows = one_pair(a, b)
    assert list(rows) == ["baseline", "causal_mask", "tensor_cores", "fused_adamw"]
    assert [row["ratio"] is None for row in pair.rows] == [False, True, True, True]
    assert rows["causal_mask"]["notes"] == ["B has no record of it"]
    assert rows["fused_adamw"]["notes"] == ["A has no record of it"]
    assert rows["tensor_cores"]["notes"] == ["A unavailable: no TF32 units"]


def test_flags_and_recipes_that_differ_stand_beside_the_row_and_remarks_do_not():
    smaller = make_record().recipe | {"micro_batch": 2}
    a = make_record(notes=["clocks throttled in the timed window: power brake", f"{REMARK}SM clock 1980 MHz"])
    b = make_record(recipe=smaller, tokens_per_step=2 * 1024, step_ms=100.0, **OTHER_DAY)
    _, rows = one_pair([a], [b])
    assert rows["baseline"]["notes"] == [
        "micro_batch 8 in A, 2 in B",
        "A: clocks throttled in the timed window: power brake",
    ]
    assert rows["baseline"]["ratio"] == pytest.approx(2 / 0.1 / (8 / 0.25))  # per token


def test_a_device_is_compared_with_itself_and_otherwise_with_every_device_of_the_other_side():
    a = [make_record(device="nvidia-a100", machine=MACHINE_H200)]
    b = [make_record(), make_record(device="nvidia-l40s", machine=MACHINE_H200)]
    assert [(p.device_a, p.device_b) for p in compare_records(a, b).pairs] == [
        ("nvidia-a100", "nvidia-h200"), ("nvidia-a100", "nvidia-l40s"),
    ]  # fmt: skip
    assert [(p.device_a, p.device_b) for p in compare_records(a, [*a, *b]).pairs] == [("nvidia-a100", "nvidia-a100")]


def test_a_ladder_without_counterpart_is_named_and_no_common_ladder_is_an_error():
    nine, six = make_record(), make_record(ladder="six-steps")
    assert compare_records([nine, six], [nine]).left_out == ("nvidia-h200/six-steps is only in A",)
    both = compare_records([nine], [nine, six])
    assert both.left_out == ("nvidia-h200/six-steps is only in B",)
    assert "left out: nvidia-h200/six-steps is only in B" in render_comparison(both, "markdown")
    with pytest.raises(BadInput, match=r"nothing to compare: .*only in A.*only in B"):
        compare_records([nine], [six])


def test_a_toy_is_never_compared_with_a_real_model():
    toy = make_record(device="cpu", step_ms=20.0)
    for a, b in (([toy], [make_record()]), ([make_record()], [toy])):
        with pytest.raises(BadInput, match=r"profile .*smoke.*not compared") as caught:
            compare_records(a, b)
        assert "\n" not in str(caught.value)
    mixed = compare_records([toy, make_record()], [make_record()])
    assert len(mixed.pairs) == 1 and "a toy and a real model are not compared" in mixed.left_out[0]


def test_two_toys_are_compared_and_say_what_they_are():
    text = render_comparison(compare_records([make_record(device="cpu")], [make_record(device="cpu")]), "table")
    assert "its speeds mean nothing" in text and "no clear difference" in text


def test_json_holds_everything_with_raw_numbers():
    comparison = compare_records([make_record()], [make_record(step_ms=125.0, **OTHER_DAY)], a="mine", b="yours")
    parsed = json.loads(render_comparison(comparison, "json"))
    assert (parsed["a"], parsed["b"]) == ("mine", "yours")
    assert parsed["pairs"][0]["rows"][0]["ratio"] == pytest.approx(2.0)
    assert {"what": "session", "a": "0f1e2d3c4b5a", "b": "aaaa1111bbbb"} in parsed["pairs"][0]["differences"]
    with pytest.raises(BadInput, match="table, markdown, json"):
        render_comparison(comparison, "csv")


def test_the_committed_records_are_the_other_side_unless_one_is_named(tmp_path, monkeypatch):
    write_record(tmp_path / "mine", make_record(step_ms=125.0, **OTHER_DAY))
    write_record(tmp_path / "committed", make_record())
    monkeypatch.setattr(compare, "committed_root", lambda: tmp_path / "committed")
    comparison = compare_folders(str(tmp_path / "mine"))
    assert comparison.b == "published" and comparison.pairs[0].rows[0]["ratio"] == pytest.approx(0.5)
    back = compare_folders("published", str(tmp_path / "mine"))
    assert back.pairs[0].rows[0]["ratio"] == pytest.approx(2.0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"no records below .*empty"):
        compare_folders(str(tmp_path / "empty"))


def test_it_loads_nothing_heavy():
    code = (
        "import sys\nfrom speedlab.publishing import compare, cost\n"
        "compare.render_comparison(compare.compare_folders('published', 'published'), 'table')\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'matplotlib', 'tiktoken'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_figure_shows_each_rung_of_both_sides_with_their_ratio(tmp_path):
    a = [make_record("baseline"), skipped_record("causal_mask", reason="no room")]
    b = [
        *(make_record(rung, step_ms=125.0, **OTHER_DAY) for rung in ("baseline", "causal_mask")),
        *(
            make_record(rung, device="nvidia-l40s", machine=MACHINE_H200, step_ms=500.0)
            for rung in ("baseline", "causal_mask")
        ),
    ]
    mine = [record.__class__(**(record.to_dict() | {"device": "nvidia-a100"})) for record in a]
    figure = comparison_figure(compare_records(mine, b, a="runs/x", b="published"))
    bars = figure.axes[0].containers
    tokens = 8 * 1024 / 1e3
    assert [[round(bar.get_width(), 4) for bar in group] for group in bars] == [
        [round(tokens / 0.25, 4), 0.0], [round(tokens / 0.125, 4)] * 2, [round(tokens / 0.5, 4)] * 2,
    ]  # fmt: skip
    words = alt_text(figure)
    assert "Baseline on H200 SXM, published 65.5 k, 2.00x" in words and "0.50x" in words
    assert "nvidia-a100, yours not measured" in words
    assert svg_text(figure) == svg_text(comparison_figure(compare_records(mine, b, a="runs/x", b="published")))


def test_a_figure_of_several_ladders_is_refused():
    both = [make_record(), make_record(ladder="six-steps")]
    with pytest.raises(BadInput, match="a figure shows one ladder on one device of A"):
        comparison_figure(compare_records(both, both))


def test_compare_draws_into_a_file(tmp_path, capsys):
    write_record(tmp_path / "a", make_record())
    write_record(tmp_path / "b", make_record(step_ms=125.0, **OTHER_DAY))
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--figure"]
    assert cli.run([*arguments, str(tmp_path / "figure.svg")]) == 0
    assert "<svg" in (tmp_path / "figure.svg").read_text() and "2.00x" in capsys.readouterr().out
    assert cli.run([*arguments, str(tmp_path / "figure.doc")]) == 2
    assert "must end in .svg" in capsys.readouterr().err
