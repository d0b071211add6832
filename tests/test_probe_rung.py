"""Where the search for a rung's largest micro-batch begins, and the command that shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from speedlab import cli, memory_fit
from speedlab.errors import BadInput
from speedlab.measuring import probe_rung as rung_module
from speedlab.measuring.batch_probe import Probe, Try
from speedlab.memory_plan import plan_memory
from speedlab.recipe import Recipe


def test_a_compiled_rung_begins_where_the_uncompiled_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(recipe, *arguments, at_most, guess, most_tries, listener):
        asked.append((recipe.compile, guess, most_tries))
        tried = Try(micro_batch=5, fits=True, seconds=1.0)
        return Probe(largest=5, bounded=False, limit_bytes=None, emulated=False, tries=[tried])

    monkeypatch.setattr(rung_module, "probe_micro_batch", fake)
    rung_module.probe_rung("nine-steps", "torch_compile", profile="smoke")
    rung_module.probe_rung("nine-steps", "torch_compile", profile="smoke", guess=7)
    rung_module.probe_rung("nine-steps", "baseline", profile="smoke")
    cap = rung_module.MOST_COMPILED_TRIES
    assert asked == [("off", None, None), ("default", 5, cap), ("default", 7, cap), ("off", None, None)]


def test_a_compiled_search_says_first_what_it_costs_and_can_be_had_without(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def fake(recipe, *arguments, at_most, guess, most_tries, listener):
        events.append(f"search {recipe.compile}")
        tried = Try(micro_batch=5, fits=True, seconds=1.0)
        return Probe(largest=5, bounded=False, limit_bytes=None, emulated=False, tries=[tried])

    monkeypatch.setattr(rung_module, "probe_micro_batch", fake)
    rung_module.probe_rung("nine-steps", "torch_compile", profile="smoke", guess=7, warn=events.append)
    assert events == [rung_module.COMPILED_NOTE, "search default"] and "--compile off" in events[0]
    events.clear()
    found = rung_module.probe_rung(
        "nine-steps", "torch_compile", profile="smoke", compile_mode="off", warn=events.append
    )
    assert events == ["search off"] and found.recipe.compile == "off"
    assert "compile off instead of default" in found.sentence()
    with pytest.raises(BadInput, match="off"):
        rung_module.probe_rung("nine-steps", "torch_compile", profile="smoke", compile_mode="sometimes")


def planned_guesses(monkeypatch: pytest.MonkeyPatch, rung: str, **options: Any) -> tuple[list[int | None], Recipe]:
    """The guesses that a rung's searches begin with on a card of 2 GiB that is not there, and the recipe."""
    guesses = []

    def fake(recipe, *arguments, at_most, guess, most_tries, listener):
        guesses.append(guess)
        tried = Try(micro_batch=guess or 1, fits=True, seconds=1.0, peak_reserved_bytes=2**30, peak_allocated_bytes=1)
        return Probe(largest=tried.micro_batch, bounded=False, limit_bytes=2**31, emulated=False, tries=[tried])

    monkeypatch.setattr(rung_module, "probe_micro_batch", fake)
    monkeypatch.setattr(rung_module, "card_bytes", lambda device: 2**31)
    found = rung_module.probe_rung("nine-steps", rung, profile="smoke", **options)
    assert f"the memory plan said {found.planned}" in found.sentence() or not found.planned
    return guesses, found.recipe


@pytest.mark.parametrize("rung", ["flash_attention", "padded_vocab"])
def test_a_search_begins_where_the_plan_says_that_the_card_is_full(monkeypatch, rung: str) -> None:
    (guess,), recipe = planned_guesses(monkeypatch, rung)
    fill = [plan_memory(recipe.but(micro_batch=guess + more)).peak_allocated_bytes for more in (0, 1)]
    assert fill[0] <= 0.97 * 2**31 < fill[1]
    assert planned_guesses(monkeypatch, rung, guess=7)[0] == [7]


def test_a_recipe_that_the_plan_does_not_know_is_searched_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fit, "not_modelled", lambda recipe: ("colour",))
    assert planned_guesses(monkeypatch, "flash_attention")[0] == [None]
    assert planned_guesses(monkeypatch, "torch_compile")[0] == [None, 1], "without the compiler first"


def test_the_plan_has_no_guess_for_a_cpu_nor_for_a_card_that_is_too_small() -> None:
    recipe = Recipe()
    assert memory_fit.planned_micro_batch(recipe, None, None) == 0
    assert memory_fit.planned_micro_batch(recipe, 2**20, (9, 0)) == 0
    assert memory_fit.planned_micro_batch(recipe, 2**35, None) == memory_fit.planned_micro_batch(recipe, 2**35, (9, 0))


def test_the_command_shows_the_search_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["probe-batch", "--recipe", "nine-steps/flash_attention", "--profile", "smoke", "--at-most", "2"]
    assert cli.run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["probe"]["largest"] == 2
        and found["probe"]["bounded"]
        and found["exact"]
        and found["recipe"]["micro_batch"] == 2
    )
    assert [t["micro_batch"] for t in found["probe"]["tries"]] == [1, 2]
    assert cli.run(asked) == 0
    assert "upper bound" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--recipe", "nine-steps"], 2, "LADDER/RUNG"),
        (["--recipe", "nine-steps/flash"], 2, "flash_attention"),
        (["--recipe", "ten-steps/flash"], 2, "six-steps"),
        (["--recipe", "nine-steps/baseline", "--card-memory", "16"], 3, "GPU only"),
        ([], 2, "--recipe"),
    ],
)
def test_the_command_refuses_in_one_line(arguments: list[str], code: int, words: str, capsys) -> None:
    assert cli.run(["probe-batch", *arguments]) == code
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
