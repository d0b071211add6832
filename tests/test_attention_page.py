"""Tables and sentences of the attention lab, from made-up rows of a card."""

from __future__ import annotations

from typing import Any

import pytest
from labs_inside_helper import made

from speedlab.publishing import figures_of_labs_inside as figures
from speedlab.publishing import words_of_attention as words
from speedlab.publishing import words_of_attention_traffic as traffic
from speedlab.publishing.plotting import alt_text
from speedlab.publishing.words_of_labs_inside import NOTHING_TO_SAY

MIB = 2**20
MISSING = {"status": "unavailable", "reason": "it is not installed"}


def row(what: str, kind: str, ms: float, **more: Any) -> dict[str, Any]:
    """A row whose last sample is an outlier, which no median sees."""
    return {"what": what, "kind": kind, "both_ms": [ms, ms, 99.0], "batch": 8, "heads": 2, "head_width": 64,
            "dtype": "bfloat16", "context": 512} | more  # fmt: skip


def held(kind: str, context: int, ms: float, mib: float, **more: Any) -> dict[str, Any]:
    return row("context", kind, ms, context=context, batch=2048 // context, extra_peak_bytes=mib * MIB, **more)


SWEEP = made(
    "attention_sweep",
    [
        held("plain", 256, 3.0, 300), held("plain", 512, 12.0, 600), held("plain", 1024, 0.0, 0) | {
            "status": "out_of_memory", "reason": "too little"},
        held("tiled", 256, 6.0, 400), held("tiled", 512, 30.0, 350),
        held("triton", 512, 2.7, 90),
        held("sdpa", 256, 2.02, 100), held("sdpa", 512, 2.0, 100),
        held("sdpa_flash", 256, 2.5, 130), held("sdpa_flash", 512, 3.0, 130),
        held("sdpa_cudnn", 256, 2.0, 100), held("sdpa_cudnn", 512, 2.0, 100),
        held("sdpa_math", 512, 0.1, 100),
        held("flash_attn", 256, 0.0, 0) | MISSING, held("flash_attn", 512, 0.0, 0) | MISSING,
        row("causal", "triton", 2.0, causal=True), row("causal", "triton", 3.5, causal=False),
        row("causal", "triton", 5.0, causal=True, context=1024),
        row("layout", "sdpa_flash", 2.0, layout="heads first", extra_peak_bytes=8 * MIB),
        row("layout", "sdpa_flash", 1.5, layout="tokens first", extra_peak_bytes=6 * MIB),
        row("layout", "triton", 2.0, layout="heads first", extra_peak_bytes=8 * MIB),
        row("layout", "triton", 2.0, layout="tokens first", extra_peak_bytes=8 * MIB),
        {"what": "copies", "copy_ms": [0.5]},
        row("heads", "sdpa", 4.0, key_value_heads=12, key_value_bytes=12 * MIB, repeated=False),
        row("heads", "sdpa", 4.4, key_value_heads=1, key_value_bytes=MIB, repeated=False),
        row("heads", "triton", 4.0, key_value_heads=12, key_value_bytes=12 * MIB, repeated=False),
        row("heads", "triton", 3.6, key_value_heads=1, key_value_bytes=MIB, repeated=False),
        row("heads", "sdpa", 5.5, key_value_heads=1, key_value_bytes=MIB, repeated=True),
        *({"what": "accuracy", "kind": kind, "dtype": dtype, "output_error": error, "q_gradient_error": error,
           "k_gradient_error": 3 * error, "v_gradient_error": error}
          for kind, dtype, error in (("plain", "bfloat16", 0.01), ("plain", "float32", 1e-6),
                                     ("flash", "bfloat16", 0.007))),
        {"what": "accuracy", "kind": "flash", "dtype": "float32"} | MISSING,
        {"what": "accuracy", "kind": "flash_attn", "dtype": "float32"} | MISSING,
        row("deterministic", "flash", 4.0, setting="as it is", gradients_repeat=False, largest_difference=0.001),
        row("deterministic", "flash", 5.0, setting="deterministic", gradients_repeat=True, largest_difference=0.0),
        row("layer_7b", "plain", 16.0, context=4096, width=4096),
        row("layer_7b", "sdpa", 8.0, context=4096, width=4096),
    ],
)  # fmt: skip


def cells(experiment: Any, make: Any, index: int = 0) -> dict[str, tuple[str, ...]]:
    return {line[0]: line[1:] for line in make(experiment)[index].cells}


def test_contexts_stand_beside_each_other_and_a_missing_package_is_one_note() -> None:
    time, memory = words.over_context(SWEEP)
    assert time.columns == ("attention", "256", "512", "1,024") and "2,048 tokens" in time.title
    found = cells(SWEEP, words.over_context)
    assert found["plain"] == ("3.00", "12.0", "out of memory") and found["triton"] == ("–", "2.70", "–")  # noqa: RUF001
    assert "flash_attn" not in found and time.notes == ("flash_attn: it is not installed",)
    assert memory.notes == () and cells(SWEEP, words.over_context, 1)["tiled"][1] == "0.34"


def test_a_toy_without_counted_memory_has_one_table() -> None:
    toy = made("attention_sweep", [held("plain", 256, 3.0, 0) | {"extra_peak_bytes": None}])
    (table,) = words.over_context(toy)
    assert table.cells == (("plain", "3.00"),)


def test_sentences_compare_with_the_plain_form() -> None:
    said = words.against_plain(SWEEP)
    # The math form writes the scores out: it is no fused kernel, however fast.
    assert "(sdpa_cudnn) against the plain form, both passes: 1.50x at 256, 6.00x at 512." in said
    assert "Tiles in plain PyTorch take 2.00x to 2.50x the time" in said and "from a context of 512 on" in said
    assert "take 0.90x the time of sdpa_flash" in said and "Out of memory: plain at 1,024." in said


def test_the_kernel_behind_sdpa_is_the_one_of_the_same_memory_and_time() -> None:
    said = words.chosen_backend(SWEEP)
    assert "the same bytes as sdpa_cudnn" in said and "differ by 1.0 % at most" in said
    assert "sdpa_flash takes 1.24x to 1.50x as long" in said
    slow = [r | {"both_ms": [9.0]} if r["kind"] == "sdpa" else r for r in SWEEP.rows if r["what"] == "context"]
    assert words.chosen_backend(made("attention_sweep", slow)).startswith("No backend has both")
    other = [r | {"extra_peak_bytes": 1} if r["kind"] == "sdpa" else r for r in SWEEP.rows if r["what"] == "context"]
    assert words.chosen_backend(made("attention_sweep", other)) == NOTHING_TO_SAY


def test_causal_layouts_and_heads() -> None:
    assert cells(SWEEP, words.causal)["triton"] == ("1.75x", "–")  # noqa: RUF001
    assert cells(SWEEP, words.layouts)["sdpa_flash"] == ("2.00", "1.50")
    said = words.layout_words(SWEEP)
    assert "sdpa_flash 0.75x the time and 2.00 MiB less; triton 1.00x the time and the same memory" in said
    assert "One of q, k and v has 1.00 MiB" in said and "takes 0.50 ms" in said
    found = cells(SWEEP, words.heads)
    assert found["MiB of keys and values"] == ("12.0", "1.00")
    assert found["sdpa, keys repeated first"] == ("–", "5.50")  # noqa: RUF001
    assert "With 1 key head instead of 12 a call takes 0.90x to 1.10x the time" in words.head_words(SWEEP)
    assert "takes 1.25x of grouping" in words.head_words(SWEEP)


def test_accuracy_determinism_and_the_block_of_7b() -> None:
    (table,) = words.accuracy(SWEEP)
    assert cells(SWEEP, words.accuracy) == {
        "plain": ("0.010", "0.030", "1.0e-06", "3.0e-06"), "flash": ("0.0070", "0.021", "–", "–"),  # noqa: RUF001
    }  # fmt: skip
    assert table.notes == ("flash, float32: it is not installed",)
    assert cells(SWEEP, words.determinism)["flash"] == ("4.00", "5.00", "no, up to 0.0010", "yes")
    assert "16.0 ms with plain and 8.00 ms with fused attention, 2.00x" in words.block_of_7b(SWEEP)


def counters(kind: str, *kernels: tuple[str, float, float]) -> dict[str, Any]:
    rows = [{"name": name, "read_bytes": read * MIB, "written_bytes": wrote * MIB} for name, read, wrote in kernels]
    read, wrote = (sum(kernel[name] for kernel in rows) for name in ("read_bytes", "written_bytes"))
    return {"what": "measured", "kind": kind, "batch": 1, "heads": 2, "context": 512, "read_bytes": read,
            "written_bytes": wrote, "bytes": read + wrote, "kernels": rows}  # fmt: skip


TRAFFIC = made(
    "attention_traffic",
    [
        {"what": "formula", "kind": "plain", "bytes": 8 * MIB, "parts": {}},
        {"what": "formula", "kind": "tiled", "bytes": 4 * MIB,
         "parts": {"queries and output": 2 * MIB, "keys and values, again": 3 * MIB, "log-sum-exp": 0}},
        counters("plain", ("nvjet_x", 1, 1), ("void softmax_warp", 2, 2)),
        counters("sdpa_flash", ("void flash_fwd_kernel", 3, 0.5)),
    ],
)  # fmt: skip


def test_traffic_is_explained_by_what_was_counted() -> None:
    assert cells(TRAFFIC, traffic.traffic)["plain"] == ("8.00", "6.00", "3.00", "3.00", "2")
    assert cells(TRAFFIC, traffic.plain_kernels) == {"matmul": ("1.00", "1.00"), "softmax": ("2.00", "2.00")}
    said = traffic.traffic_words(TRAFFIC)
    assert "read 3.0 to 3.0 MiB, and q, k and v together have 3.00" in said and "The 3.00 MiB" in said
    assert "moves 6.00 times its 1.00 MiB of scores" in said and "wgmma" not in said
    formula = made("attention_traffic", [r for r in TRAFFIC.rows if r["what"] == "formula"])
    assert cells(formula, traffic.traffic) == {
        "plain": ("8.00", "–", "–", "–", "–"), "any tiled kernel": ("4.00", "–", "–", "–", "–"),  # noqa: RUF001
    }  # fmt: skip


SAYINGS = (words.against_plain, words.chosen_backend, words.layout_words, words.head_words, words.block_of_7b,
           traffic.traffic_words)  # fmt: skip


@pytest.mark.parametrize("say", SAYINGS)
def test_without_its_rows_a_sentence_says_so(say: Any) -> None:
    assert say(made("toy_sweep", [{"what": "other"}])) == NOTHING_TO_SAY


def test_the_figure_names_every_kernel_but_the_choice_among_them() -> None:
    said = alt_text(figures.attention_over_context(made("attention_sweep", SWEEP.measured)))
    assert "sdpa_cudnn 2.00 ms at 256" in said and "; sdpa 2" not in said
    assert "no row of this experiment" in alt_text(figures.attention_over_context(made("x", [{"what": "other"}])))
