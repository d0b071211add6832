"""Does it fit, the largest micro-batch that does, what to change; and the command that says so."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from speedlab import cli, memory_fit
from speedlab.cards import CARDS
from speedlab.ladder import NINE_STEPS
from speedlab.memory_fit import (
    ALLOCATOR_SHARE,
    CONTEXT_BYTES,
    allocator_share,
    fits,
    largest_micro_batch,
    needed_bytes,
    on_card,
    switches,
)
from speedlab.memory_plan import is_counted, plan_memory
from speedlab.recipe import Recipe
from speedlab.records.store import committed_root, read_records

BY_SLUG = {card.slug: card for card in CARDS}
H200, T4, A100 = BY_SLUG["nvidia-h200"], BY_SLUG["tesla-t4"], BY_SLUG["nvidia-a100-40gb"]


def test_the_reserve_covers_what_the_allocator_took_in_every_committed_record_of_one_gpu() -> None:
    records = [
        record for record in read_records(committed_root())
        if record.peak_allocated_bytes and not record.rung.startswith("data_parallel_")
    ]  # fmt: skip
    assert records
    for record in records:
        recipe = Recipe.from_dict(record.recipe)
        # What a CUDA graph keeps is not counted as allocated: there the plan stands for it.
        held = record.peak_allocated_bytes if is_counted(recipe) else plan_memory(recipe).peak_allocated_bytes
        assert record.peak_reserved_bytes <= held * (1 + allocator_share(recipe)) + CONTEXT_BYTES, record.rung


def test_needed_is_the_peak_and_the_reserve() -> None:
    recipe = Recipe()
    peak = plan_memory(recipe, capability=T4.capability).peak_allocated_bytes
    assert needed_bytes(recipe, T4) == pytest.approx(peak * (1 + ALLOCATOR_SHARE) + CONTEXT_BYTES)
    assert fits(recipe, H200) and not fits(recipe, T4)


@pytest.mark.parametrize("card", [H200, A100, T4], ids=lambda card: card.slug)
@pytest.mark.parametrize("rung", ["baseline", "merged_qkv", "batch_size"])
def test_the_largest_micro_batch_fits_and_one_more_does_not(rung: str, card) -> None:
    recipe = NINE_STEPS.recipe_at(rung)
    most = largest_micro_batch(recipe, card)
    assert most >= 1
    assert fits(recipe.but(micro_batch=most), card) and not fits(recipe.but(micro_batch=most + 1), card)


def test_no_micro_batch_fits_a_card_that_is_full_of_weights() -> None:
    giant = Recipe(num_layers=96, embedding_width=12_288, num_heads=96)
    assert largest_micro_batch(giant, H200) == 0
    steps = switches(giant, H200)
    assert steps and not steps[-1].fits and "micro_batch" not in steps[-1].change


def test_switches_are_cheapest_first_each_on_top_of_the_last_and_end_when_it_fits() -> None:
    recipe = Recipe(micro_batch=8)
    steps = switches(recipe, T4)
    assert [step.change for step in steps] == [{"attention": "sdpa"}, {"layers": "native"}]
    for step in steps:
        before, recipe = recipe, recipe.but(**step.change)
        peaks = [plan_memory(r, capability=T4.capability).peak_allocated_bytes for r in (before, recipe)]
        assert (step.saved_bytes, step.peak_allocated_bytes) == (peaks[0] - peaks[1], peaks[1])
    assert [step.fits for step in steps] == [False, True]


def test_the_last_resort_keeps_the_tokens_of_an_update() -> None:
    recipe = NINE_STEPS.recipe_at("batch_size").but(num_layers=48, embedding_width=1600, num_heads=25)
    last = switches(recipe, BY_SLUG["nvidia-rtx-4090"])[-1]
    assert last.fits and set(last.change) == {"micro_batch", "accumulation"}
    assert recipe.but(**last.change).tokens_per_step == recipe.tokens_per_step


def test_a_card_is_offered_only_formats_that_it_has_units_for() -> None:
    recipe = Recipe(attention="sdpa", layers="native", causal_mask="on_the_fly", optimizer="fused", micro_batch=40)
    assert {"precision": "float16_autocast"} in [step.change for step in switches(recipe, T4)]
    formats = [step.change.get("precision") for step in switches(recipe, replace(A100, memory_gib=8.0))]
    assert "bfloat16_autocast" in formats and "float16_autocast" not in formats
    planned, substitutions = on_card(NINE_STEPS.recipe_at("bfloat16"), T4)
    assert planned.precision == "float16_autocast" and "precision" in [s.field for s in substitutions]
    assert on_card(NINE_STEPS.recipe_at("data_parallel"), H200) == (NINE_STEPS.recipe_at("data_parallel"), ())


def test_a_larger_limit_is_no_endless_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fit, "LARGEST_MICRO_BATCH", 4)
    assert largest_micro_batch(Recipe(num_layers=1, embedding_width=8, num_heads=1, context_length=8), H200) == 4


def test_the_command_prints_components_peak_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["memory", "--recipe", "nine-steps/baseline", "--card", "tesla-t4"]) == 0
    shown = capsys.readouterr().out
    for words in ("163 M parameters", "activations", "logits", "does not fit", "largest micro-batch that fits: 3",
                  "attention sdpa: saves", "which fits"):  # fmt: skip
        assert words in shown


def test_the_command_as_json_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["memory", "--layers", "6", "--width", "512", "--heads", "8", "--context", "512", "--vocab", "1000",
                 "--micro-batch", "4", "--recipe", "six-steps", "--set", "dropout=0.2", "--json"]  # fmt: skip
    assert cli.run(arguments) == 0
    values = json.loads(capsys.readouterr().out)
    recipe = Recipe.from_dict(values["recipe"])
    assert (recipe.num_layers, recipe.embedding_width, recipe.num_heads) == (6, 512, 8)
    assert (recipe.context_length, recipe.vocab_size, recipe.micro_batch, recipe.dropout) == (512, 1000, 4, 0.2)
    assert (recipe.precision, recipe.optimizer) == ("bfloat16_autocast", "fused")
    assert values["peak_allocated_bytes"] == plan_memory(recipe).peak_allocated_bytes == sum(values["parts"].values())
    assert values["fits"] is True and values["switches"] == [] and values["not_modelled"] == []


def test_the_command_takes_the_top_of_one_gpu_and_says_what_a_card_runs_instead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["memory", "--recipe", "nine-steps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == NINE_STEPS.recipe_at("batch_size").as_dict()
    assert cli.run(["memory", "--recipe", "six-steps", "--card", "tesla-t4"]) == 0
    assert "note: precision float16_autocast instead of bfloat16_autocast" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--width", "770"], ["770", "multiple of the number of heads"]),
        (["--card", "gtx"], ["'gtx'", "nvidia-h200", "tesla-t4"]),
        (["--layers", "0"], ["--layers is 0", "from 1 to"]),
        (["--micro-batch", "-3"], ["--micro-batch is -3", "from 1 to"]),
        (["--context", "99999999999"], ["--context is 99999999999", "from 1 to"]),
        (["--vocab", "many"], ["--vocab", "speedlab memory --help"]),
        (["--recipe", "nine-steps/top"], ["'top'", "batch_size"]),
        (["--recipe", "ten"], ["'ten'", "nine-steps"]),
        (["--recipe", ""], ["--recipe is empty"]),
        (["--recipe", "nine-steps/"], ["''", "batch_size"]),
        (["--set", "num_layers=" + "9" * 30], ["--set num_layers is 999", "from 1 to"]),
        (["--set", "accumulation=1e5"], ["accumulation is a whole number"]),
        (["--layers", "6", "--set", "num_layers=12"], ["num_layers was given as 6 already"]),
        (["--set", "dropout=0.1", "--set", "dropout=0.2"], ["--set dropout is 0.2", "give it once"]),
        (["--set", "dropout"], ["'dropout'", "FIELD=VALUE"]),
        (["--set", "colour=red"], ["'colour'", "precision"]),
        (["--set", "precision=int8"], ["'int8'", "bfloat16"]),
        (["--set", "micro_batch=many"], ["micro_batch=many", "number"]),
        (["--set", "qkv_bias=yes"], ["'yes'", "true, false"]),
        (["--set", "dropout=nan"], ["nan", "number from"]),
        (["--set", "data_parallel=0"], ["data_parallel is 0", "from 1 to"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["memory", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("speedlab: ") and shown.err.count("\n") == 1
    assert [word for word in words if word not in shown.err] == []


def test_the_command_needs_no_torch() -> None:
    code = (
        "import sys; from speedlab.cli import run; code = run(['memory', '--card', 'tesla-t4']); "
        "print([name for name in ('torch', 'matplotlib', 'numpy') if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
