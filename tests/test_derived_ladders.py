"""Each change alone, each taken away, all in another order: what the recipes, contracts and rows of these hold."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from data_helper import one_line_error
from model_helper import CPU, TINY, lively_weights, random_batches, short_collections
from records_helper import make_record, skipped_record
from torch.utils._python_dispatch import TorchDispatchMode

from speedlab import cli
from speedlab.beyond import BEYOND
from speedlab.derived_ladders import NOTES, changing_keys, reordered, reordered_parent
from speedlab.device import Capabilities
from speedlab.errors import BadInput
from speedlab.inert import RULES, inert_reason
from speedlab.ladder import ALONE, NINE_STEPS, REMOVED, SIX_STEPS, get_ladder
from speedlab.measuring.workbench import Workbench
from speedlab.profile import FULL, PROFILES, SMOKE, T4
from speedlab.publishing.tables import ladder_table, rung_title
from speedlab.recipe import Recipe, changes
from speedlab.records.rows import report_rows
from speedlab.records.store import read_records, write_record
from speedlab.training.step import TrainingStep

KEYS = NINE_STEPS.keys[1:]
MIXED = (
    "flash_attention", "causal_mask", "bfloat16", "tensor_cores", "torch_compile", "padded_vocab", "fused_adamw",
    "batch_size", "merged_qkv", "native_layers", "pinned_memory", "data_parallel",
)  # fmt: skip
H200 = Capabilities(
    device_type="cuda", capability=(9, 0), gpu_name="NVIDIA H200", gpu_memory_bytes=140 * 2**30, multiprocessors=132,
    gpus=1,
)  # fmt: skip
T4_CARD = Capabilities(
    device_type="cuda", capability=(7, 5), gpu_name="Tesla T4", gpu_memory_bytes=15 * 2**30, multiprocessors=40, gpus=1
)
ONE_CORE = Capabilities(device_type="cpu", cores=1)


@pytest.mark.parametrize("key", KEYS)
def test_alone_makes_one_change_of_the_baseline(key: str) -> None:
    assert ALONE.before(key) == "baseline"
    assert changes(Recipe(), ALONE.recipe_at(key)) == changes(
        NINE_STEPS.recipe_at(NINE_STEPS.before(key)), NINE_STEPS.recipe_at(key)
    )


@pytest.mark.parametrize("key", KEYS[:-1])
def test_removed_takes_one_change_from_the_top_of_one_gpu(key: str) -> None:
    top = NINE_STEPS.recipe_at("batch_size")
    assert REMOVED.before(key) == "baseline"
    [(field, (held, plain))] = changes(top, REMOVED.recipe_at(key)).items()
    assert NINE_STEPS.rung(key).change == {field: held} and plain == getattr(Recipe(), field)


def test_both_start_from_their_reference_row() -> None:
    assert ALONE.recipe_at("baseline") == Recipe()
    assert REMOVED.recipe_at("baseline") == NINE_STEPS.recipe_at("batch_size")
    for ladder in (ALONE, REMOVED):
        assert get_ladder(ladder.name) is ladder and ladder.keys == NINE_STEPS.keys
        assert [rung.key for rung in ladder if rung.contract == "reference"] == ["baseline"]
        assert {rung.chapter for rung in ladder} == {None}
    assert REMOVED.recipe_at("data_parallel") == REMOVED.start  # one GPU has nothing of it to lose


def test_contracts_are_those_of_the_changes_as_loose_as_their_place_makes_them() -> None:
    promises = {key: (ALONE.rung(key).contract, ALONE.rung(key).tolerance) for key in KEYS}
    assert promises["causal_mask"] == promises["pinned_memory"] == ("identical", None)
    assert promises["tensor_cores"] == ("rounding", 1e-2) and promises["fused_adamw"] == ("rounding", 2e-3)
    assert promises["bfloat16"] == ("rounding", 5e-2)
    assert promises["batch_size"] == promises["data_parallel"] == ("training", None)
    # At the top everything runs in bfloat16, and fused attention and compiled kernels add in no fixed order.
    at_the_top = {(REMOVED.rung(key).contract, REMOVED.rung(key).tolerance) for key in KEYS[:-2]}
    assert at_the_top == {("rounding", 5e-2)}
    assert REMOVED.rung("batch_size").contract == "training"


def test_a_copy_from_pinned_memory_stays_exact_until_a_kernel_adds_in_any_order() -> None:
    early = ("bfloat16", "pinned_memory", *(key for key in KEYS if key not in ("bfloat16", "pinned_memory")))
    assert reordered(NINE_STEPS, early).rung("pinned_memory").contract == "identical"
    late = reordered(NINE_STEPS, MIXED).rung("pinned_memory")
    assert (late.contract, late.tolerance) == ("rounding", 5e-2)


@pytest.mark.parametrize("ladder", [NINE_STEPS, SIX_STEPS], ids=["nine-steps", "six-steps"])
def test_any_order_leads_from_the_same_start_to_the_same_top_one_field_at_a_time(ladder) -> None:
    keys = list(changing_keys(ladder))
    assert [reordered(ladder, keys).recipe_at(key) for key in keys] == [ladder.recipe_at(key) for key in keys]
    for seed in range(5):
        random.Random(seed).shuffle(keys)
        mixed = reordered(ladder, keys)
        assert mixed.name == f"{ladder.name}-reordered" and reordered_parent(mixed.name) == ladder.name
        assert mixed.keys == (ladder.keys[0], *keys)
        assert mixed.recipe_at(keys[-1]) == ladder.recipe_at(ladder.keys[-1])
        for before, key in zip(mixed.keys, keys, strict=False):
            assert mixed.before(key) == before
            difference = changes(mixed.recipe_at(before), mixed.recipe_at(key))
            assert {name: after for name, (_, after) in difference.items()} == ladder.rung(key).change
    assert reordered_parent(ladder.name) is None


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (["bfloat16", "warp"], ["unknown: warp", "missing: causal_mask, tensor_cores"]),
        (list(KEYS[:-1]), ["missing: data_parallel"]),
        ([*KEYS, "bfloat16"], ["named twice: bfloat16;"]),
        (["baseline", *KEYS], ["unknown: baseline"]),
        ([""], ["unknown", "missing: causal_mask"]),
    ],
)
def test_an_order_that_is_no_permutation_is_refused_in_one_line(order, words) -> None:
    one_line_error(BadInput, lambda: reordered(NINE_STEPS, order), "nine-steps", "as-is", *words)


def test_what_is_not_stacked_has_no_order() -> None:
    one_line_error(BadInput, lambda: reordered(ALONE, KEYS), "alone", "not stacked", "as-is")
    order = [*SIX_STEPS.keys[1:]]
    one_line_error(BadInput, lambda: reordered(SIX_STEPS, order), "unknown: torch_compile_max_autotune")


class MatmulFormats(TorchDispatchMode):
    """Collects the formats in which the matmuls inside it run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm"):
            self.seen |= {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("attention", ["plain", "sdpa"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "bfloat16_autocast"])
def test_the_rule_for_tf32_against_the_matmuls_that_run(precision, attention) -> None:
    before = TINY.but(precision=precision, attention=attention)
    step = TrainingStep(before, lively_weights(before), CPU)
    with MatmulFormats() as formats:
        step(iter(random_batches(before, 1)))
    assert formats.seen
    reason = inert_reason("matmul_precision", before, before.but(matmul_precision="high"))
    assert (reason is None) == (torch.float32 in formats.seen)


@pytest.mark.parametrize("attention", ["plain", "sdpa", "sdpa_math"])
def test_the_rule_for_the_mask_against_the_modules_that_hold_one(attention) -> None:
    before = TINY.but(attention=attention)
    buffers = [
        {name for name, _ in TrainingStep(recipe, lively_weights(recipe), CPU).model.named_buffers()}
        for recipe in (before, before.but(causal_mask="on_the_fly"))
    ]
    reason = inert_reason("causal_mask", before, before.but(causal_mask="on_the_fly"))
    assert (reason is None) == (buffers[0] != buffers[1])
    assert reason is None or attention in reason


def test_a_change_is_at_work_when_one_side_reads_it_or_another_field_is_at_work() -> None:
    inert = Recipe(attention="sdpa")
    assert inert_reason("causal_mask", Recipe(), inert.but(causal_mask="on_the_fly")) is None
    assert inert_reason("causal_mask", inert, inert.but(causal_mask="on_the_fly", layers="native")) is None
    assert inert_reason("optimizer", Recipe(), Recipe(optimizer="fused")) is None
    assert inert_reason("data_parallel", Recipe(), Recipe(data_parallel=4)) is None
    both = inert.but(precision="bfloat16")
    assert "sdpa" in inert_reason("causal_mask", both, both.but(causal_mask="on_the_fly", matmul_precision="high"))
    aligned = Recipe(vocab_size=1_024)
    assert "1024" in inert_reason("vocabulary", aligned, aligned.but(vocabulary="padded"))
    assert inert_reason("vocabulary", Recipe(), Recipe(vocabulary="padded")) is None


def test_every_rule_is_of_a_field_that_ladders_change_and_gives_one_line() -> None:
    for rule in RULES:
        assert any(rule.field in rung.change for rung in (*NINE_STEPS, *BEYOND))
        assert "\n" not in rule.reason.format(**Recipe().as_dict())


def bench(profile, machine: Capabilities) -> Workbench:
    """What a session asks about rungs, without its corpus and its device."""
    made = Workbench.__new__(Workbench)
    made.profile, made.machine = profile, machine
    return made


def undone(ladder, profile, machine) -> dict[str, tuple[str, str]]:
    made = bench(profile, machine)
    found = {rung.key: made.undone(ladder, rung) for rung in ladder}
    return {key: (why.status, why.reason) for key, why in found.items() if why is not None}


def test_what_makes_no_difference_on_a_large_card() -> None:
    none = undone(ALONE, FULL, H200)
    assert set(none) == {"data_parallel"} and none["data_parallel"][0] == "unavailable"
    none = undone(REMOVED, FULL, H200)
    assert set(none) == {"causal_mask", "tensor_cores", "data_parallel"}
    assert {status for status, _ in none.values()} == {"not_applicable"}
    assert "reads no mask" in none["causal_mask"][1] and "bfloat16" in none["tensor_cores"][1]
    assert "one process" in none["data_parallel"][1]
    none = undone(reordered(NINE_STEPS, MIXED), FULL, H200)
    assert {key: status for key, (status, _) in none.items()} == {
        "causal_mask": "not_applicable", "tensor_cores": "not_applicable", "data_parallel": "unavailable",
    }  # fmt: skip
    assert set(undone(NINE_STEPS, FULL, H200)) == {"data_parallel"} and undone(SIX_STEPS, FULL, H200) == {}


def test_what_a_machine_refuses_cannot_be_taken_away_either() -> None:
    none = undone(REMOVED, T4, T4_CARD)
    assert set(none) == {"causal_mask", "tensor_cores", "data_parallel"}
    assert "float16_autocast" in none["tensor_cores"][1]
    none = undone(REMOVED, SMOKE, ONE_CORE)
    assert none["pinned_memory"] == ("not_applicable", "pinned memory serves copies to a GPU, and there is none here")
    assert undone(ALONE, SMOKE, ONE_CORE)["pinned_memory"] == none["pinned_memory"]
    assert set(undone(ALONE, SMOKE, ONE_CORE)) == {"tensor_cores", "pinned_memory", "data_parallel"}


def test_a_row_is_compared_with_the_nearest_one_that_makes_a_difference() -> None:
    mixed = reordered(NINE_STEPS, MIXED)
    assert bench(FULL, H200).before(mixed, "bfloat16") == "flash_attention"
    assert bench(FULL, H200).before(mixed, "torch_compile") == "bfloat16"
    assert bench(FULL, H200).before(REMOVED, "batch_size") == "baseline"


def records_of(ladder, **step_ms: float) -> list:
    """What a session on a large card would leave: made-up times, and the rows that make no difference there."""
    none = undone(ladder, FULL, H200)
    return [
        skipped_record(rung.key, ladder=ladder, status=none[rung.key][0], reason=none[rung.key][1])
        if rung.key in none
        else make_record(rung.key, ladder=ladder, step_ms=step_ms.get(rung.key, 1_000.0))
        for rung in ladder
    ]


def test_rows_of_another_order_come_in_that_order_with_their_own_ratios(tmp_path: Path) -> None:
    mixed = reordered(NINE_STEPS, MIXED)
    times = {key: 250.0 - 10 * index for index, key in enumerate(mixed.keys)}
    # The batch is four times as large from its rung on.
    for record in records_of(mixed, **times):
        write_record(tmp_path, record)
    rows = report_rows(read_records(tmp_path))
    assert [row["rung"] for row in rows][:-1] == list(mixed.keys)[:-1]
    by_rung = {row["rung"]: row for row in rows}
    assert by_rung["bfloat16"]["before"] == "flash_attention"
    assert by_rung["bfloat16"]["speedup_step"] == pytest.approx(240.0 / 220.0)
    assert by_rung["torch_compile"]["before"] == "bfloat16"
    assert by_rung["batch_size"]["speedup_step"] == pytest.approx(4 * times["fused_adamw"] / times["batch_size"])
    assert by_rung["causal_mask"]["status"] == "not_applicable" and "reads no mask" in by_rung["causal_mask"]["reason"]
    assert rung_title("nine-steps-reordered", "bfloat16") == "bfloat16"


def test_an_order_with_a_rung_that_is_missing_has_no_ratio_across_it_either() -> None:
    records = [record for record in records_of(reordered(NINE_STEPS, MIXED)) if record.rung != "bfloat16"]
    by_rung = {row["rung"]: row for row in report_rows(records)}
    assert by_rung["torch_compile"]["before"] is None
    assert by_rung["flash_attention"]["before"] == "baseline" and by_rung["baseline"]["before"] is None


def test_an_order_with_a_rung_that_failed_has_no_ratio_across_it() -> None:
    mixed = reordered(NINE_STEPS, MIXED)
    records = [
        skipped_record("bfloat16", ladder=mixed, status="out_of_memory", reason="no room")
        if record.rung == "bfloat16"
        else record
        for record in records_of(mixed)
    ]
    by_rung = {row["rung"]: row for row in report_rows(records)}
    assert by_rung["torch_compile"]["before"] is None and by_rung["torch_compile"]["speedup_step"] is None
    assert by_rung["padded_vocab"]["before"] == "torch_compile"


@pytest.mark.parametrize("ladder", [ALONE, REMOVED], ids=["alone", "removed"])
def test_rows_of_single_changes_are_over_the_reference_and_the_table_says_so(ladder) -> None:
    rows = report_rows(records_of(ladder, baseline=200.0, torch_compile=160.0))
    assert [row["rung"] for row in rows] == list(NINE_STEPS.keys)
    row = next(row for row in rows if row["rung"] == "torch_compile")
    assert row["before"] == "baseline"
    assert row["speedup_step"] == row["speedup_total"] == pytest.approx(1.25)
    table = ladder_table(rows, titles=True)
    assert set(NOTES[ladder.name]) <= set(table.notes)
    assert ("Without: torch.compile" in {line[0] for line in table.cells}) == (ladder is REMOVED)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The command, on a CPU: some rungs of `alone`, and some of another order. Rows by ladder, and the folder."""
    folder = tmp_path_factory.mktemp("measured")
    corpus = folder / "verses.txt"
    corpus.write_text("".join(f"{n} green bottles, {n * 7} more behind the wall.\n" for n in range(3_000)))
    common = ["ladder", "--profile", "smoke", "--corpus", str(corpus), "--steps", "2", "--out", str(folder / "out")]
    with short_collections(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPEEDLAB_CACHE", str(folder / "cache"))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        patch.delenv("SPEEDLAB_SESSION", raising=False)
        alone = [*common, "--ladder", "alone", "--rungs", "baseline,flash_attention,tensor_cores"]
        mixed = [*common, "--order", ",".join(MIXED), "--rungs", "baseline,flash_attention,causal_mask,bfloat16"]
        codes = [cli.run(arguments) for arguments in (alone, mixed)]
    return codes, report_rows(read_records(folder / "out")), folder / "out"


def test_the_command_measures_derived_ladders(measured) -> None:
    codes, rows, folder = measured
    assert codes == [0, 0]
    assert [(row["ladder"], row["rung"], row["status"]) for row in rows] == [
        ("alone", "baseline", "measured"),
        ("alone", "tensor_cores", "unavailable"),
        ("alone", "flash_attention", "measured"),
        ("nine-steps-reordered", "baseline", "measured"),
        ("nine-steps-reordered", "flash_attention", "measured"),
        ("nine-steps-reordered", "causal_mask", "not_applicable"),
        ("nine-steps-reordered", "bfloat16", "measured"),
    ]
    flash = json.loads((folder / "cpu" / "alone" / "flash_attention.json").read_text())
    assert flash["contract_detail"]["before"] == "baseline" and flash["contract_verdict"] == "passed"
    changed = changes(PROFILES["smoke"].recipe(ALONE, "baseline"), Recipe.from_dict(flash["recipe"]))
    assert changed == {"attention": ("plain", "sdpa")}
    mixed = {row["rung"]: row for row in rows if row["ladder"] == "nine-steps-reordered"}
    assert mixed["bfloat16"]["before"] == "flash_attention" and mixed["bfloat16"]["contract_verdict"] == "passed"


def test_the_command_refuses_a_wrong_order_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ladder", "--order", ",".join(KEYS[1:])]) == 2
    error = capsys.readouterr().err
    assert "missing: causal_mask;" in error and error.count("\n") == 1
