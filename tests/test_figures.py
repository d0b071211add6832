"""Figures show the values of the rows, describe them in words, and are the same file every time."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest
from records_helper import make_record, skipped_record

from speedlab.errors import BadInput
from speedlab.publishing import figures
from speedlab.publishing.figures_of_records import milliseconds_by_kind
from speedlab.publishing.plotting import FAINT, INK, PANEL, UNCLEAR, styled
from speedlab.records.rows import report_rows

STEP_MS = {"baseline": 250.0, "causal_mask": 249.9, "tensor_cores": 125.0, "fused_adamw": 130.0}


def kernels(**times):
    return [{"name": "k", "kind": kind.replace("_", " "), "calls": 1.0, "time_us": us} for kind, us in times.items()]


@pytest.fixture(scope="module")
def rows():
    records = [make_record(rung, step_ms=step_ms) for rung, step_ms in STEP_MS.items()]
    return report_rows([*records, skipped_record("bfloat16", status="out_of_memory", reason="needs 27 GiB")])


@pytest.fixture(scope="module")
def changed_pair():
    losses = [10.9, 10.5, 10.1]
    before = make_record("padded_vocab", step_ms=50.0, kernels=kernels(copy=2_000.0, fused=8_000.0), losses=losses)
    after = make_record(
        "batch_size", step_ms=100.0, kernels=kernels(copy=2_000.0, optimizer=4_000.0), losses=[10.9, 10.4, 10.0],
        contract_detail={"before": "padded_vocab", "losses_before": losses, "tolerance": None},
    )  # fmt: skip
    return before, after


def words(figure):
    """Every text that is drawn."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def bars(axis, colour):
    """(start, end) of the bars of one colour, from top to bottom."""
    wanted = matplotlib.colors.to_rgba(colour)
    found = [bar for bar in axis.patches if bar.get_facecolor() == wanted]
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in sorted(found, key=lambda bar: bar.get_y())]


def test_speed_bars_are_the_medians_with_their_quartiles_and_the_published_ones_are_labelled(rows):
    figure = figures.ladder_speed(rows)
    (axis,) = figure.axes
    measured = bars(axis, "#0072B2")
    assert [end for _, end in measured] == pytest.approx([8.192 / ms * 1e3 for ms in STEP_MS.values()])
    spans = [tuple(line.get_xdata()) for line in axis.lines]
    assert spans[0] == pytest.approx((rows[0]["tokens_per_s_q1"] / 1e3, rows[0]["tokens_per_s_q3"] / 1e3))
    assert bars(axis, "white")[2][1] == pytest.approx(27.648)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0] == "measured: NVIDIA H200" and legend[1].startswith("published: A100, LLMs-from-scratch")
    assert "out of memory" in words(figure)


def test_a_toy_is_named_and_never_put_beside_published_figures():
    toy = report_rows([make_record(device="cpu", step_ms=20.0), skipped_record("tensor_cores", device="cpu")])
    drawn = " ".join(words(figures.ladder_speed(toy)))
    assert "speeds mean nothing" in drawn and "unavailable" in drawn and "published" not in drawn


def test_memory_shows_reserved_and_allocated_and_nothing_where_nothing_was_counted(rows):
    (axis,) = figures.memory(rows).axes
    assert bars(axis, "#56B4E9") == [pytest.approx((0, 26.0))] * 4
    assert bars(axis, "#0072B2") == [pytest.approx((0, 20.0))] * 4
    (axis,) = figures.memory(report_rows([make_record(device="cpu", step_ms=20.0)])).axes
    assert not axis.patches


def test_the_waterfall_adds_up_and_is_grey_where_nothing_is_clear(rows):
    figure = figures.waterfall(rows)
    (axis,) = figure.axes
    per_thousand = {rung: ms / 8.192 for rung, ms in STEP_MS.items()}
    (_, first), (_, last) = bars(axis, "#0072B2")
    assert (first, last) == pytest.approx((per_thousand["baseline"], per_thousand["fused_adamw"]))
    steps = {
        colour: sum(start - end for start, end in bars(axis, colour)) for colour in ("#009E73", "#D55E00", UNCLEAR)
    }
    assert first + sum(steps.values()) == pytest.approx(last)
    assert bars(axis, "#009E73") == [pytest.approx((per_thousand["tensor_cores"], per_thousand["causal_mask"]))]
    assert len(bars(axis, "#D55E00")) == 1  # fused_adamw got slower here
    assert len(bars(axis, UNCLEAR)) == 1
    assert any("no clear difference" in text for text in words(figure))


def test_the_waterfall_leaves_out_what_is_not_stacked():
    keys = {"baseline": 400.0, "torch_compile": 200.0, "torch_compile_max_autotune": 190.0, "flash_attention": 150.0}
    rows = report_rows([make_record(key, ladder="six-steps", step_ms=ms) for key, ms in keys.items()])
    figure = figures.waterfall(rows)
    assert not any("max-autotune" in text for text in words(figure))
    # Rungs that were not measured lie between; the bars are compared with each other all the same.
    assert len(bars(figure.axes[0], "#009E73")) == 2 and not bars(figure.axes[0], UNCLEAR)


def test_the_waterfall_compares_equal_amounts_of_tokens():
    """Four times the batch in twice the time is twice as fast: the bar is the time of 1,000 tokens, not of a step."""
    times = {"baseline": 200.0, "padded_vocab": 50.0, "batch_size": 100.0}
    records = [make_record(rung, step_ms=ms) for rung, ms in times.items()]
    figure = figures.waterfall(report_rows(records))
    (axis,) = figure.axes
    (_, first), (_, last) = bars(axis, "#0072B2")
    assert first == pytest.approx(200.0 / 8.192) and last == pytest.approx(100.0 / 32.768)
    padded, batch = bars(axis, "#009E73")
    assert padded == pytest.approx((50.0 / 8.192, first)) and batch == pytest.approx((last, 50.0 / 8.192))
    assert figures.alt_text(figure).endswith("Larger batch -3.05 ms.")


def test_the_waterfall_leaves_several_gpus_out():
    times = {"baseline": 200.0, "batch_size": 100.0, "data_parallel": 101.0}
    records = [make_record(rung, step_ms=ms) for rung, ms in times.items()]
    (axis,) = figures.waterfall(report_rows(records)).axes
    assert bars(axis, "#0072B2")[1][1] == pytest.approx(100.0 / 32.768)


def test_predictions_stand_beside_measurements(rows):
    figure = figures.predicted_against_measured(rows)
    predicted, measured = (points.get_offsets()[:, 0] for points in figure.axes[0].collections[1:3])
    assert list(measured) == pytest.approx(list(STEP_MS.values()))
    assert list(predicted) == pytest.approx([0.8 * ms for ms in STEP_MS.values()])
    assert words(figure).count("1.25x") == 4


def test_kernel_times_are_compared_for_the_same_tokens(changed_pair):
    before, after = changed_pair
    (axis,) = figures.kernel_kinds(before, after).axes
    kinds = [label.get_text() for label in axis.get_yticklabels()]
    assert kinds == ["fused", "copy", "optimizer"]
    assert [end for _, end in bars(axis, "#56B4E9")] == pytest.approx([8.0, 2.0, 0.0])
    assert [end for _, end in bars(axis, "#0072B2")] == pytest.approx(
        [0.0, 0.5, 1.0]
    )  # a quarter: four times the batch
    assert milliseconds_by_kind(after) == pytest.approx({"copy": 2.0, "optimizer": 4.0})


def test_loss_curves_of_two_trainings_and_of_a_rounding_contract(changed_pair):
    _, training = changed_pair
    (axis,) = figures.loss_curves(training).axes
    assert [list(line.get_ydata()) for line in axis.lines] == [[10.9, 10.5, 10.1], [10.9, 10.4, 10.0]]
    detail = {"before": "fused_adamw", "losses_before": [10.9, 10.5], "tolerance": 0.05}
    rounding = make_record("bfloat16", losses=[10.9, 10.48], contract_detail=detail)
    figure = figures.loss_curves(rounding)
    difference, tolerance = figure.axes[1].lines
    assert list(difference.get_ydata()) == pytest.approx([0.0, 0.02]) and tolerance.get_ydata()[0] == 0.05
    assert "largest difference is 0.02, the tolerance 0.05" in figures.alt_text(figure)


def every_figure(rows, pair):
    return [
        figures.ladder_speed(rows), figures.memory(rows), figures.waterfall(rows),
        figures.predicted_against_measured(rows), figures.kernel_kinds(*pair), figures.loss_curves(pair[1]),
    ]  # fmt: skip


def test_every_figure_is_the_same_file_every_time_and_describes_itself(rows, changed_pair, tmp_path):
    once = [figures.svg_text(figure) for figure in every_figure(rows, changed_pair)]
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.hashsalt": "mine"}):
        again = [figures.svg_text(figure) for figure in every_figure(rows, changed_pair)]
    assert once == again
    for svg, figure in zip(once, every_figure(rows, changed_pair), strict=True):
        ElementTree.fromstring(svg)
        alt = figures.alt_text(figure)
        assert len(alt) > 40 and any(character.isdigit() for character in alt)
        assert svg.count("<dc:date>") == 0
    figures.save_svg(figures.memory(rows), tmp_path / "new" / "memory.svg")
    assert (tmp_path / "new" / "memory.svg").read_text() == once[1]


def test_drawing_changes_no_setting_of_the_reader_and_loads_no_pyplot(rows):
    with matplotlib.rc_context({"font.size": 17.0}):
        before = dict(matplotlib.rcParams)
        figures.svg_text(figures.memory(rows))
        assert dict(matplotlib.rcParams) == before
    program = (
        "import sys, speedlab.publishing.figures; print({'torch', 'pandas', 'matplotlib.pyplot'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def luminance(colour):
    channels = matplotlib.colors.to_rgb(colour)
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colour", "least"), [(INK, 4.5), (FAINT, 4.5), (UNCLEAR, 3.0)])
def test_words_have_enough_contrast_on_the_panel_whatever_the_page(colour, least, rows):
    assert (luminance(PANEL) + 0.05) / (luminance(colour) + 0.05) >= least
    with styled():
        assert figures.memory(rows).get_facecolor() == matplotlib.colors.to_rgba(PANEL)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.ladder_speed([]), "one device and ladder, not of 0: none"),
        (lambda: figures.memory(report_rows([make_record(), make_record(ladder="six-steps")])), "not of 2"),
        (lambda: figures.waterfall(report_rows([make_record()])), "nvidia-h200/nine-steps needs two measured rungs"),
        (lambda: figures.predicted_against_measured(report_rows([make_record(device="cpu")])), "no rung of cpu/nine"),
        (lambda: figures.kernel_kinds(make_record(), skipped_record("bfloat16")), "baseline and bfloat16 need one"),
        (lambda: figures.loss_curves(make_record()), "nine-steps/baseline has no losses to compare"),
    ],
)  # fmt: skip
def test_a_figure_of_nothing_is_one_line(draw, message):
    with pytest.raises(BadInput, match=message):
        draw()
