"""The ladders: every rung one field, in the published order, from the published start, in ten chapters."""

import pytest
from data_helper import one_line_error

from speedlab.errors import BadInput
from speedlab.ladder import LADDERS, NINE_STEPS, SIX_STEPS, Ladder, Rung, before_and_after, chapters, get_ladder
from speedlab.recipe import Recipe, changes

NINE_KEYS = (
    "baseline", "causal_mask", "tensor_cores", "fused_adamw", "pinned_memory", "bfloat16", "native_layers",
    "flash_attention", "merged_qkv", "torch_compile", "padded_vocab", "batch_size", "data_parallel",
)  # fmt: skip
SIX_KEYS = (
    "baseline", "tensor_cores", "bfloat16_autocast", "torch_compile", "torch_compile_max_autotune",
    "flash_attention", "padded_vocab", "fused_adamw",
)  # fmt: skip
STEMS = (
    "01_causal_mask", "02_tensor_cores", "03_fused_adamw", "04_pinned_memory", "05_bfloat16", "06_native_layers",
    "07_flash_attention", "08_torch_compile", "09_aligned_shapes", "10_data_parallel",
)  # fmt: skip
EVERY_RUNG = [(ladder.name, rung.key) for ladder in LADDERS.values() for rung in ladder]


def test_the_keys_are_the_published_ones_in_order():
    assert NINE_STEPS.keys == NINE_KEYS
    assert SIX_STEPS.keys == SIX_KEYS
    assert list(LADDERS) == ["nine-steps", "six-steps", "alone", "removed", "precisions", "beyond"]
    assert LADDERS["alone"].keys == LADDERS["removed"].keys == NINE_KEYS


@pytest.mark.parametrize(("ladder", "key"), EVERY_RUNG)
def test_a_rung_changes_exactly_one_field_of_the_rung_that_it_stands_on(ladder, key):
    ladder = get_ladder(ladder)
    before = ladder.before(key)
    if before is None:
        assert key == ladder.keys[0] and ladder.recipe_at(key) == ladder.start
        assert ladder.rung(key).contract == "reference"
        return
    difference = changes(ladder.recipe_at(before), ladder.recipe_at(key))
    if (ladder.name, key) == ("removed", "data_parallel"):
        assert difference == {}  # the top of one GPU holds no such change: a row that says so
        return
    assert len(difference) == 1
    assert {name: after for name, (_, after) in difference.items()} == ladder.rung(key).change
    assert ladder.rung(key).contract != "reference"


@pytest.mark.parametrize(("ladder", "key"), EVERY_RUNG)
def test_a_rung_says_why_and_a_rounding_rung_how_far(ladder, key):
    rung = get_ladder(ladder).rung(key)
    assert rung.title and rung.expectation
    assert (rung.tolerance is not None) == (rung.contract == "rounding")
    assert rung.tolerance is None or 0 < rung.tolerance <= 0.05


def test_rungs_that_change_the_batch_promise_no_equal_losses():
    for ladder in LADDERS.values():
        for rung in ladder:
            if {"micro_batch", "data_parallel", "accumulation"} & rung.change.keys():
                assert rung.contract == "training"


def test_the_top_of_nine_steps_holds_all_its_changes():
    top = NINE_STEPS.recipe_at("data_parallel")
    assert changes(Recipe(), top) == {
        "causal_mask": ("stored", "on_the_fly"),
        "matmul_precision": ("highest", "high"),
        "optimizer": ("default", "fused"),
        "host_memory": ("pageable", "pinned_non_blocking"),
        "precision": ("float32", "bfloat16"),
        "layers": ("handwritten", "native"),
        "attention": ("plain", "sdpa"),
        "qkv_projection": ("separate", "merged"),
        "compile": ("off", "default"),
        "vocabulary": ("exact", "padded"),
        "micro_batch": (8, 32),
        "data_parallel": (1, 4),
    }
    assert top.output_head == "untied" and top.qkv_bias is False


def test_six_steps_starts_where_its_readers_start():
    start = SIX_STEPS.recipe_at("baseline")
    assert (start.layers, start.qkv_projection, start.qkv_bias, start.output_head) == ("native", "merged", True, "tied")
    assert (start.attention, start.causal_mask, start.dropout, start.micro_batch) == ("plain", "stored", 0.0, 16)
    assert (start.optimizer, start.precision, start.compile) == ("default", "float32", "off")


def test_a_rung_that_is_not_stacked_is_left_behind():
    assert SIX_STEPS.before("torch_compile_max_autotune") == "torch_compile"
    assert SIX_STEPS.recipe_at("torch_compile_max_autotune").compile == "max-autotune"
    assert SIX_STEPS.before("flash_attention") == "torch_compile"
    assert SIX_STEPS.recipe_at("fused_adamw").compile == "default"


def test_there_are_ten_chapters_and_two_of_them_hold_two_rungs():
    assert tuple(chapters()) == STEMS
    assert [stem for stem, rungs in chapters().items() if len(rungs) == 2] == [STEMS[6], STEMS[8]]
    assert [rung.key for rungs in chapters().values() for rung in rungs] == list(NINE_KEYS[1:])


@pytest.mark.parametrize("stem", STEMS)
def test_a_chapter_measures_before_and_after_and_only_its_own_changes_lie_between(stem):
    before, *own = before_and_after(stem)
    assert own == [rung.key for rung in chapters()[stem]]
    assert before == NINE_KEYS[NINE_KEYS.index(own[0]) - 1]
    between = changes(NINE_STEPS.recipe_at(before), NINE_STEPS.recipe_at(own[-1]))
    assert len(between) == len(own)
    # Only the batch and the number of processes may change how many tokens a step takes.
    counts = {NINE_STEPS.recipe_at(key).tokens_per_step for key in (before, *own)}
    assert (len(counts) > 1) == bool({"micro_batch", "data_parallel"} & between.keys())


def test_unknown_names_are_refused_with_the_known_ones():
    one_line_error(BadInput, lambda: get_ladder("ten-steps"), "'ten-steps'", *LADDERS)
    for ask in (NINE_STEPS.rung, NINE_STEPS.recipe_at, NINE_STEPS.before):
        one_line_error(BadInput, lambda ask=ask: ask("flash"), "'flash'", "nine-steps", *NINE_KEYS)
    one_line_error(BadInput, lambda: before_and_after("11_more"), "'11_more'", *STEMS)


def test_an_unsound_rung_is_refused():
    one_line_error(BadInput, lambda: Rung(key="x", title="X", contract="hope"), "'hope'", "identical", "rounding")
    one_line_error(BadInput, lambda: Rung(key="x", title="X", contract="rounding"), "x", "tolerance")


def test_a_rung_with_an_unknown_field_shows_when_its_recipe_is_asked_for():
    rungs = (Rung(key="one", title="One", contract="reference"),
             Rung(key="two", title="Two", contract="identical", change={"speed": "high"}))  # fmt: skip
    ladder = Ladder(name="own", title="Own", start=Recipe(), rungs=rungs)
    one_line_error(BadInput, lambda: ladder.recipe_at("two"), "'speed'", "matmul_precision")
    assert list(ladder) == list(rungs)
