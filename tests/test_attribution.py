"""Shares of a speed-up against the definition, and against the shares that the published figures have."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from records_helper import make_record, skipped_record

from speedlab.derived_ladders import changing_keys, reordered
from speedlab.ladder import ALONE, LADDERS, NINE_STEPS, REMOVED, SIX_STEPS
from speedlab.publishing.attribution_table import attribution_section, changes_table, layers_table
from speedlab.records.attribution import LAYERS, attribute, layer_of, shares_along
from speedlab.records.published import published_rows
from speedlab.records.rows import report_rows

ONE_GPU = NINE_STEPS.keys[:-1]
MIXED = reordered(
    NINE_STEPS, ("flash_attention", "causal_mask", "bfloat16", "tensor_cores", *(
        key for key in NINE_STEPS.keys[1:] if key not in ("flash_attention", "causal_mask", "bfloat16", "tensor_cores")
    ))
)  # fmt: skip
INERT = {"reordered": ("causal_mask", "tensor_cores"), "removed": ("causal_mask", "tensor_cores", "data_parallel")}


def rows_of(ladder, tokens_per_s: dict[str, float], *, inert: tuple[str, ...] = (), **changes):
    """Report rows of a ladder whose rungs ran at these made-up speeds; without data parallel training."""
    records = []
    for rung in ladder:
        if rung.key in inert:
            status = {"status": "not_applicable", "reason": "not read there"}
            records.append(skipped_record(rung.key, ladder=ladder, **status))
        elif rung.key in tokens_per_s:
            tokens = make_record(rung.key, ladder=ladder, step_ms=10_000.0).tokens_per_step
            step_ms = 1e3 * tokens / tokens_per_s[rung.key]
            records.append(make_record(rung.key, ladder=ladder, step_ms=step_ms, **changes))
    return report_rows(records)


def doubling(keys) -> dict[str, float]:
    """Speeds that grow by 1 %, 2 %, 3 % ... from rung to rung."""
    speeds, speed = {}, 20_000.0
    for index, key in enumerate(keys):
        speed *= 1 + index / 100
        speeds[key] = speed
    return speeds


def nine_steps(**changes):
    return rows_of(NINE_STEPS, doubling(ONE_GPU), **changes)


def everything():
    """Rows of every ladder that attribution knows, all with the same start and top where they share them."""
    total = doubling(ONE_GPU)["batch_size"] / 20_000.0
    mixed = {key: 20_000.0 * total ** (index / 9) for index, key in enumerate(
        key for key in MIXED.keys[:-1] if key not in INERT["reordered"]
    )}  # fmt: skip
    alone = dict.fromkeys(ONE_GPU, 30_000.0) | {"baseline": 20_000.0}
    removed = dict.fromkeys(ONE_GPU, 30_000.0) | {"baseline": 33_000.0}
    return [
        *nine_steps(),
        *rows_of(MIXED, mixed, inert=INERT["reordered"]),
        *rows_of(ALONE, alone),
        *rows_of(REMOVED, removed, inert=INERT["removed"]),
        *rows_of(SIX_STEPS, doubling(SIX_STEPS.keys)),
    ], math.log(total)


def by_rung(attribution):
    return {row["rung"]: row for row in attribution.rows}


def test_shares_along_a_ladder_are_logarithms_over_that_of_the_whole_and_sum_to_one() -> None:
    shares, total = shares_along(nine_steps())
    assert total == pytest.approx(sum(math.log(1 + index / 100) for index in range(1, len(ONE_GPU))))
    assert list(shares) == list(ONE_GPU[1:])
    assert sum(share.value for share in shares.values()) == pytest.approx(1.0)
    for index, key in enumerate(ONE_GPU[1:], start=1):
        assert shares[key].value == pytest.approx(math.log(1 + index / 100) / total)
        assert shares[key].ratio == pytest.approx(1 + index / 100)
    # Samples are spread by 1 % to either side: 1 % more is inside the spread, 9 % is not.
    assert not shares["causal_mask"].clear and shares["merged_qkv"].clear


def test_the_published_figures_give_the_shares_that_are_known_of_them() -> None:
    """TF32, bfloat16 and FlashAttention: 73 % of the published climb by log share."""
    speeds = {row.rung: row.tokens_per_s for row in published_rows("nine-steps") if row.gpus == 1}
    # FlashAttention was published together with the joined projections.
    speeds["flash_attention"] = speeds["merged_qkv"]
    shares, _ = shares_along(rows_of(NINE_STEPS, speeds))
    three = sum(shares[key].value for key in ("tensor_cores", "bfloat16", "flash_attention"))
    assert round(100 * three) == 73
    [found] = attribute(rows_of(NINE_STEPS, speeds))
    layer = next(row for row in found.layers if row["layer"] == "algorithm and precision")
    assert layer["along"] == pytest.approx(three + shares["causal_mask"].value)


def test_a_change_that_another_ladder_shows_apart_is_a_part_of_the_same_whole() -> None:
    rows, total = everything()
    [found] = attribute(rows)
    table = by_rung(found)
    assert list(table) == list(ONE_GPU[1:]) and found.gaps == []
    for key in ONE_GPU[1:]:
        assert table[key]["alone"].value == pytest.approx(math.log(1.5) / total)
        assert table[key]["alone"].ratio == pytest.approx(1.5)
        if key in INERT["removed"]:
            assert table[key]["removed"].inert and table[key]["removed"].value == 0.0
        else:
            assert table[key]["removed"].value == pytest.approx(math.log(1.1) / total)
            assert table[key]["removed"].ratio == pytest.approx(1.1)


def test_the_spread_is_over_the_orders_that_hold_the_change() -> None:
    [found] = attribute(everything()[0])
    table = by_rung(found)
    shares, _ = shares_along(nine_steps())
    flash = table["flash_attention"]
    six, _ = shares_along(rows_of(SIX_STEPS, doubling(SIX_STEPS.keys)))
    assert flash["orders"] == pytest.approx(
        {
            "nine-steps": shares["flash_attention"].value,
            "nine-steps-reordered": 1 / 9,
            "six-steps": six["flash_attention"].value,
        }
    )
    assert (flash["low"], flash["high"]) == (min(flash["orders"].values()), max(flash["orders"].values()))
    assert table["tensor_cores"]["low"] == 0.0  # after bfloat16 it makes no difference
    assert set(table["bfloat16"]["orders"]) == {"nine-steps", "nine-steps-reordered"}  # six-steps has autocast
    assert "torch_compile_max_autotune" not in six and sum(share.value for share in six.values()) == pytest.approx(1)


def test_layers_hold_every_change_once_and_sum_to_the_whole() -> None:
    keys = [key for layer in LAYERS.values() for key in layer]
    assert len(keys) == len(set(keys))
    wanted = {key for ladder in (NINE_STEPS, SIX_STEPS) for key in changing_keys(ladder)}
    assert set(keys) == wanted - {"data_parallel"}
    [found] = attribute(everything()[0])
    for name in ("nine-steps", "nine-steps-reordered", "six-steps"):
        assert sum(row["orders"][name] for row in found.layers) == pytest.approx(1.0)
    for row in found.layers:
        own = [line["alone"].value for line in found.rows if line["layer"] == row["layer"]]
        assert row["alone"] == pytest.approx(sum(own)) and row["low"] <= row["along"] <= row["high"]
    assert layer_of("torch_compile") == "fusion and compilation"


def failed(status: str, rung: str):
    changes = {"status": status, "reason": "because"}
    if status == "contract_failed":
        changes["contract_verdict"] = "failed"
    records = [
        skipped_record(key, **changes) if key == rung else make_record(key, step_ms=1_000.0 - 10 * index)
        for index, key in enumerate(ONE_GPU)
    ]
    return report_rows(records)


@pytest.mark.parametrize("status", ["out_of_memory", "error", "contract_failed"])
@pytest.mark.parametrize("rung", ["baseline", "bfloat16"])
def test_a_rung_without_a_speed_breaks_the_chain_and_is_named(status, rung) -> None:
    with pytest.raises(ValueError, match=f"{rung} is {status.replace('_', ' ')}"):
        shares_along(failed(status, rung))
    [found] = attribute(failed(status, rung))
    assert any(rung in gap for gap in found.gaps) and all(row["orders"] == {} for row in found.rows)
    assert "No whole ladder is committed" in attribution_section(failed(status, rung))


def test_a_rung_that_was_not_measured_is_named_and_one_that_cannot_be_is_stepped_over() -> None:
    speeds = doubling(ONE_GPU)
    del speeds["torch_compile"]
    with pytest.raises(ValueError, match="no record of torch_compile"):
        shares_along(rows_of(NINE_STEPS, speeds))
    records = [
        skipped_record(key, status="unavailable")
        if key == "tensor_cores"
        else make_record(key, step_ms=1_000.0 - 10 * index)
        for index, key in enumerate(ONE_GPU)
    ]
    shares, _ = shares_along(report_rows(records))
    assert shares["tensor_cores"].value is None
    assert sum(share.value or 0.0 for share in shares.values()) == pytest.approx(1.0)


def test_more_gpus_are_no_part_of_the_speed_up_of_one() -> None:
    several = [
        *(make_record(key, step_ms=1_000.0 - 10 * index) for index, key in enumerate(ONE_GPU)),
        make_record("data_parallel", step_ms=900.0),
    ]
    shares, _ = shares_along(report_rows(several))
    assert "data_parallel" not in shares and sum(share.value for share in shares.values()) == pytest.approx(1.0)
    comparison = [
        make_record(f"data_parallel_{gpus}", device="nvidia-h200-x2", step_ms=90.0, session="two-gpus-1")
        for gpus in (1, 2)
    ]
    assert [one.device for one in attribute(report_rows([*several, *comparison]))] == ["nvidia-h200"]


def test_without_a_speed_up_there_is_nothing_to_share() -> None:
    slower = {key: 40_000.0 - 100 * index for index, key in enumerate(ONE_GPU)}
    with pytest.raises(ValueError, match="no speed-up"):
        shares_along(rows_of(NINE_STEPS, slower))


def test_the_whole_comes_from_another_order_where_the_first_one_is_not_there() -> None:
    rows, total = everything()
    [found] = attribute(row for row in rows if row["ladder"] != "nine-steps")
    assert by_rung(found)["torch_compile"]["alone"].value == pytest.approx(math.log(1.5) / total)
    assert by_rung(found)["torch_compile"]["along"] is None and found.gaps == ["no records of ladder nine-steps"]
    [apart] = attribute(row for row in rows if row["ladder"] == "alone")
    assert by_rung(apart)["torch_compile"]["alone"].value is None
    assert by_rung(apart)["torch_compile"]["alone"].ratio == pytest.approx(1.5)


def cells(table):
    return {line[0]: dict(zip(table.columns, line, strict=True)) for line in table.cells}


def test_the_table_shows_shares_ratios_doubt_and_sums() -> None:
    rows, total = everything()
    [found] = attribute(rows)
    table = cells(changes_table(found))
    assert table["all together"]["along"] == "100.0 %"
    assert table["all together"]["alone"] == f"{100 * 11 * math.log(1.5) / total:.1f} %"
    assert table["Causal mask on the fly"]["along"].endswith("(1.01x, unclear)")
    assert table["Causal mask on the fly"]["removed"] == "inert"
    assert table["torch.compile"]["alone"] == f"{100 * math.log(1.5) / total:.1f} % (1.50x)"
    assert table["bfloat16"]["over orders"].endswith("(2 orders)")
    assert table["FlashAttention"]["over orders"].endswith("(3 orders)")
    assert set(cells(layers_table(found))) == set(LAYERS)
    assert any(note.startswith("inert") for note in changes_table(found).notes)


def test_a_page_says_what_is_missing_and_shows_no_empty_number() -> None:
    words = attribution_section([])
    assert "No whole ladder is committed" in words and "|" not in words
    words = attribution_section(nine_steps())
    for name in ("nine-steps-reordered", "six-steps", "alone", "removed"):
        assert f"* no records of ladder {name}" in words
    assert "inert" not in words and "### What each change contributes on H200 SXM" in words
    assert "-0.0 %" not in words


def test_shares_need_nothing_heavy() -> None:
    code = (
        "import sys, speedlab.records.attribution, speedlab.ladder, speedlab.inert\n"
        "sys.exit(bool({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert {"alone", "removed"} <= set(LADDERS)
