"""Named recipes: what they are, and what becomes of them on other machines."""

import pytest
from data_helper import one_line_error
from test_device import A100, CPU, H200, T4, gpu

from speedlab.beyond import BEYOND
from speedlab.errors import BadInput
from speedlab.memory_plan import not_modelled
from speedlab.presets import PRESETS, memory_bytes, preset, preset_for
from speedlab.recipe import Recipe, changes

GIB = 2**30


def with_memory(machine, gib):
    from dataclasses import replace

    return replace(machine, gpu_memory_bytes=gib * GIB)


def test_fastest_is_the_top_of_what_ladder_beyond_stacks():
    stacked = [rung for rung in BEYOND if rung.stacked]
    assert preset("fastest") == BEYOND.recipe_at(stacked[-1].key)
    assert changes(preset("fastest"), preset("fastest_start")) == {"compile": ("default", "off")}
    assert preset("plain_compiled") == BEYOND.start
    assert all(entry.about and "\n" not in entry.about for entry in PRESETS.values())


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("machine", [with_memory(H200, 139), with_memory(A100, 39), with_memory(T4, 15), CPU])
def test_an_update_sees_the_same_tokens_everywhere(name, machine):
    recipe, substitutions = preset_for(name, machine)
    assert recipe.tokens_per_step == preset(name).tokens_per_step == 65_536
    assert {s.field for s in substitutions} == set(changes(preset(name), recipe))
    assert all(s.used == getattr(recipe, s.field) and s.asked == getattr(preset(name), s.field) for s in substitutions)


def test_a_preset_can_be_called_with_a_machine():
    assert PRESETS["fastest"](with_memory(T4, 15)) == preset_for("fastest", with_memory(T4, 15))[0]


def test_a_large_card_runs_the_preset_as_written_and_a_small_one_smaller_batches():
    assert preset_for("fastest", with_memory(H200, 139)) == (preset("fastest"), ())
    small, substitutions = preset_for("fastest", with_memory(T4, 15))
    assert small.micro_batch < 64 and small.accumulation == 64 // small.micro_batch
    assert any("15 GiB" in s.reason for s in substitutions)
    assert small.precision == "float16_autocast"
    assert memory_bytes(small) <= 0.9 * 15 * GIB < memory_bytes(small.but(micro_batch=2 * small.micro_batch))


def test_a_card_that_is_too_old_for_triton_gets_the_plain_forms():
    old, _ = preset_for("fastest", with_memory(gpu((6, 1), compiler_problem="too old for Triton"), 11))
    assert (old.compile, old.loss, old.feed_forward) == ("off", "compiled", "separate")
    assert (old.residual, old.qkv_backward) == ("separate", "separate")


def test_the_estimate_grows_with_what_is_kept():
    base = preset("fastest")
    assert memory_bytes(base.but(loss="compiled")) > memory_bytes(base)
    assert memory_bytes(base.but(precision="bfloat16_autocast")) > memory_bytes(base)
    # 65,536 tokens: about 20 GiB of activations, 6 of logits and 2 of weights.
    assert 25 * GIB < memory_bytes(base) < 35 * GIB


@pytest.mark.parametrize("name", PRESETS)
def test_the_memory_plan_does_not_model_the_presets_which_is_why_they_are_counted(name):
    assert "loss" in not_modelled(preset(name)), "it does now: let `presets.memory_bytes` ask the plan"


def test_the_recipe_of_this_machine_has_a_short_name():
    assert Recipe.fastest(with_memory(H200, 139)) == preset("fastest")
    assert Recipe.fastest().tokens_per_step == 65_536


def test_an_unknown_name_is_refused_with_the_known_ones():
    one_line_error(BadInput, lambda: preset("quickest"), "'quickest'", *PRESETS)
