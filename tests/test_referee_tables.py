"""Sections on the measuring itself: they say what the rows say, and that nothing is recorded where nothing is."""

from __future__ import annotations

import pytest
from test_folklore_labs import curve, experiment

from speedlab.publishing.plotting import alt_text
from speedlab.publishing.referee_tables import determinism_section, harness_section, loss_curves, loss_section


def drawn(name: str, figure: object, caption: str) -> str:
    return f"[{name}: {caption}]\n"


def test_nothing_recorded_is_said_with_the_command_that_measures_it() -> None:
    other = [experiment("another", {"what": "x"})]
    assert "`speedlab experiment harness_overhead`" in harness_section(other)
    assert "`speedlab experiment determinism`" in determinism_section(other)
    assert "`speedlab experiment loss_against_time`" in loss_section([], drawn)


@pytest.mark.parametrize(("on_ms", "words"), [(100.4, "within"), (103.0, "above")])
def test_the_cost_of_the_harness_is_held_against_the_promise(on_ms: float, words: str) -> None:
    rows = [
        {"harness": harness, "pair": pair, "steps": 10, "block_ms": ms}
        for pair in range(12) for harness, ms in (("on", on_ms), ("off", 100.0))
    ]  # fmt: skip
    rows.append({"harness": "profiled", "kernel_ms": 9.7, "step_ms": 10.0})
    section = harness_section([experiment("harness_overhead", *rows)])
    assert f"{words} the 1.0 % that we allow" in section and f"takes {on_ms - 100:.1f} % longer" in section
    assert "runs nothing in 3.0 % of a step" in section and section.startswith("**H200 SXM:**")


def test_repeatability_names_rungs_operations_warnings_and_cost() -> None:
    same = {
        "losses_equal": True,
        "weights_equal": True,
        "largest_loss_difference": 0.0,
        "largest_weight_difference": 0.0,
    }
    apart = {"losses_equal": True, "weights_equal": False, "largest_loss_difference": 0.0,
             "largest_weight_difference": 3e-5}  # fmt: skip
    section = determinism_section([
        experiment(
            "determinism",
            {"what": "rung", "rung": "baseline", "mode": "ordinary", **same},
            {"what": "rung", "rung": "flash_attention", "mode": "ordinary", **apart},
            {"what": "rung", "rung": "flash_attention", "mode": "deterministic", **same},
            {"what": "operation", "operation": "token table", "repeats": 10, "different": 4, "largest_difference": 0.5},
            {"what": "operation", "operation": "LayerNorm", "repeats": 10, "different": 0, "largest_difference": 0.0},
            {"what": "warning", "rung": "baseline", "messages": ["put_ does not have a deterministic implementation"]},
            {"what": "cost", "rung": "flash_attention", "mode": "ordinary", "step_ms": [10.0, 10.0]},
            {"what": "cost", "rung": "flash_attention", "mode": "deterministic", "step_ms": [12.0, 12.0]},
        )
    ])  # fmt: skip
    assert "| Baseline | the same | the same |" in section
    assert "| FlashAttention | the same | up to 3.0e-05 apart |" in section
    assert "| FlashAttention, deterministic mode | the same | the same |" in section
    assert "| token table | 4 of 10 | 5.0e-01 |" in section and "| LayerNorm | 0 of 10 | – |" in section  # noqa: RUF001
    assert "| put_ does not have a deterministic implementation | Baseline |" in section
    assert "| FlashAttention | 10.0 | 12.0 | 20.0 % |" in section


def test_what_failed_leaves_its_table_out() -> None:
    failed = {"what": "cost", "mode": "deterministic", "status": "error", "reason": "RuntimeError: x"}
    section = determinism_section([experiment("determinism", failed)])
    assert "What deterministic mode costs" not in section and "what PyTorch warns" not in section


def test_seconds_to_a_loss_stand_beside_tokens_per_second() -> None:
    small = curve("padded_vocab", 5e-4, [10.8, 7.0, 6.0], 400_000) | {"updates": [0, 50, 100], "micro_batch": 8}
    large = curve("batch_size", 2e-3, [10.8, 8.0, 7.0], 480_000) | {"updates": [0, 15, 30], "micro_batch": 32}
    lost = large | {"diverged_after_s": 2.5}
    found = experiment("loss_against_time", small, large)
    section = loss_section([found], drawn)
    assert "| recipe | tokens/s | updates | loss at the end | s to 7 nats | s to 6.5 nats | s to 6 nats |" in section
    assert (
        "| Padded vocabulary, batch 8, learning rate 0.0005 | 400,000 | 100 | 6.500 | 1.00 | 1.50 | 2.00 |" in section
    )
    assert "| Larger batch, batch 32, learning rate 0.002 | 480,000 | 30 | 7.500 | 2.00 | – | – |" in section  # noqa: RUF001
    assert "[loss-against-time-nvidia-h200: Loss on text that none of them saw" in section
    assert "7.500, then not finite after 2.50 s" in loss_section([experiment("loss_against_time", small, lost)], drawn)
    figure = loss_curves(found)
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[10.8, 7.0, 6.0], [10.8, 8.0, 7.0]]
    assert "learning rate 0.002 ends at 7.00" in alt_text(figure)
