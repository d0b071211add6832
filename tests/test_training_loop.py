"""Training from tokens: stopping and going on changes nothing, bit for bit; what is on disk is whole or not there."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from speedlab.errors import BadInput
from speedlab.model import draw_weights
from speedlab.recipe import Recipe
from speedlab.training.checkpoint import FIELDS, read_checkpoint, write_checkpoint
from speedlab.training.loop import CHECKPOINT, TrainingPlan, split_tokens, train, validation_loss
from speedlab.training.step import TrainingStep

CPU = torch.device("cpu")
RECIPE = Recipe(
    num_layers=2, embedding_width=32, num_heads=2, context_length=16, vocab_size=61, dropout=0.2, micro_batch=3,
    learning_rate=1e-2,
)  # fmt: skip
CORPUS = {"name": "count", "sha256": "0" * 64}
# A pattern that can be learned, and long enough that four steps are no whole epoch.
TOKENS = (np.arange(3_000) * 7 % 61).astype(np.uint16)


def run(out: Path, steps: int, recipe: Recipe = RECIPE, **changes):
    plan = TrainingPlan(steps=steps, **changes.pop("plan", {"validate_every": 2, "checkpoint_every": 3}))
    return train(recipe, TOKENS, plan=plan, out=out, device=CPU, **({"corpus": CORPUS} | changes))


def everything(trained) -> list[torch.Tensor]:
    """Weights and every tensor of the optimizer, in one order."""
    state = trained.step.optimizer.state_dict()
    state = state.get("optimizer", state)["state"]
    moments = [value for _, of in sorted(state.items()) for _, value in sorted(of.items())]
    return [*trained.step.model.state_dict().values(), *moments, *getattr(trained.step.optimizer, "masters", [])]


@pytest.mark.parametrize(
    "changes",
    [{}, {"accumulation": 2}, {"precision": "bfloat16_master"}, {"precision": "bfloat16_autocast"}],
    ids=["float32", "accumulation", "master weights", "autocast"],
)
def test_stopping_and_going_on_is_the_same_training_bit_for_bit(tmp_path: Path, changes: dict) -> None:
    recipe = RECIPE.but(**changes)
    straight = run(tmp_path / "straight", 8, recipe)
    run(tmp_path / "halves", 4, recipe)
    torch.manual_seed(999)  # whatever has happened in between
    resumed = run(tmp_path / "halves", 8, recipe, resume=True)
    assert resumed.losses == straight.losses and len(resumed.losses) == 8
    assert resumed.validation == straight.validation
    assert all(torch.equal(one, two) for one, two in zip(everything(straight), everything(resumed), strict=True))


def test_a_resume_in_another_process_is_the_same_training_too(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight", 6)
    run(tmp_path / "halves", 3)
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "import test_training_loop as t\nprint(t.run(Path(sys.argv[2]), 6, resume=True).losses)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "halves")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == str(straight.losses)


def test_it_learns_and_says_how_far_it_is(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    trained = run(
        tmp_path,
        60,
        RECIPE.but(dropout=0.0),
        plan={"validate_every": 20},
        say=lambda *arguments: said.append(arguments),
    )
    assert trained.losses[-1] < 0.5 * trained.losses[0]
    assert [step for step, _ in trained.validation] == [20, 40, 60]
    assert trained.validation[-1][1] < 0.5 * trained.validation[0][1]
    assert [(done, total) for _, done, total in said] == [(20, 60), (40, 60), (60, 60)]
    assert "validation" in said[-1][0] and trained.tokens_per_s > 0


def test_the_losses_are_those_of_the_plain_step(tmp_path: Path) -> None:
    from speedlab.data.stream import BatchStream

    training, _ = split_tokens(TOKENS, RECIPE)
    torch.manual_seed(RECIPE.seed)
    step = TrainingStep(RECIPE, draw_weights(RECIPE), CPU)
    batches = iter(
        BatchStream(training, micro_batch=3, context_length=16, host_memory="pageable", device=CPU, seed=RECIPE.seed)
    )
    expected = [step(batches).item() for _ in range(5)]
    assert run(tmp_path, 5).losses == expected


def test_the_validation_loss_is_the_mean_over_held_out_sequences_without_dropout() -> None:
    step = TrainingStep(RECIPE.but(vocabulary="padded"), draw_weights(RECIPE), CPU)
    _, held_out = split_tokens(TOKENS, RECIPE)
    pieces = torch.from_numpy(held_out[: 5 * 17].astype(np.int64)).view(5, 17)
    with torch.no_grad():
        logits = step.model.eval()(pieces[:, :-1])[..., :61]
        expected = torch.nn.functional.cross_entropy(logits.reshape(-1, 61), pieces[:, 1:].reshape(-1))
    step.model.train()
    assert validation_loss(step, held_out, 5) == pytest.approx(expected.item(), rel=1e-5)
    assert step.model.training


def test_validation_tokens_are_never_trained_on() -> None:
    training, held_out = split_tokens(TOKENS, RECIPE)
    assert len(training) + len(held_out) == len(TOKENS) and len(held_out) == 300
    assert np.array_equal(np.concatenate([training, held_out]), TOKENS)
    with pytest.raises(BadInput, match=r"the corpus has 60 tokens; training needs 51 for one batch and 17"):
        split_tokens(TOKENS[:60], RECIPE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resume": False}, r"checkpoint\.pt exists already: go on with --resume"),
        ({"corpus": CORPUS | {"sha256": "1" * 64}}, "resume with the same --corpus"),
        ({"steps": 2}, "has 3 steps already, steps is 2"),
        ({"recipe": RECIPE.but(weight_decay=0.2)}, r"another recipe \(weight_decay: 0\.1 -> 0\.2\)"),
    ],
)
def test_a_checkpoint_is_not_taken_for_another_training(tmp_path: Path, changes: dict, words: str) -> None:
    run(tmp_path, 3)
    arguments = {"steps": 6, "resume": True} | changes
    with pytest.raises(BadInput, match=words):
        run(tmp_path, arguments.pop("steps"), **arguments)


def test_nothing_to_resume_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no checkpoint at"):
        run(tmp_path, 3, resume=True)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("kind", ["code", "truncated", "text", "other values"])
def test_a_file_that_holds_code_or_is_damaged_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / CHECKPOINT
    if kind == "code":
        torch.save({name: Evil() for name in FIELDS}, path)
    elif kind == "other values":
        torch.save({"format": 1}, path)
    else:
        run(tmp_path / "whole", 1)
        path.write_bytes((tmp_path / "whole" / CHECKPOINT).read_bytes()[:900] if kind == "truncated" else b"hello")
    with pytest.raises(BadInput, match=r"checkpoint\.pt is no checkpoint") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value) and not (tmp_path / "evil").exists()


def test_a_checkpoint_with_odd_values_is_damaged_in_one_line(tmp_path: Path) -> None:
    run(tmp_path, 1)
    whole = read_checkpoint(tmp_path / CHECKPOINT)
    odd = {name: [None, "x", {}] for name in FIELDS[1:] if name not in ("scaler", "validation")}
    odd |= {"done": [None, True, -1, 2, "1"], "validation": [None, [1], [("x", 1.0)]]}
    odd["random_state"].append({"cpu": torch.zeros(3)})
    odd["weights"].append(whole["weights"] | {"token_table.weight": torch.zeros(2, 2)})
    for name, values in odd.items():
        for value in values:
            torch.save(whole | {name: value}, tmp_path / CHECKPOINT)
            with pytest.raises(BadInput, match=r"damaged|no checkpoint|trained (on|with)|recipe") as caught:
                run(tmp_path, 2, resume=True)
            assert "\n" not in str(caught.value), name


def test_a_checkpoint_holds_only_tensors_and_plain_values(tmp_path: Path) -> None:
    run(tmp_path, 2)

    def plain(value) -> bool:
        if isinstance(value, dict):
            return all(plain(item) for item in value.values())
        if isinstance(value, list | tuple):
            return all(map(plain, value))
        return value is None or isinstance(value, torch.Tensor | int | float | str | bool)

    assert plain(read_checkpoint(tmp_path / CHECKPOINT))


def test_an_interrupted_write_leaves_the_earlier_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, 3)
    before = (tmp_path / CHECKPOINT).read_bytes()

    def half(value, file) -> None:
        file.write(pickle.dumps("half"))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(BadInput, match=r"cannot write .*checkpoint\.pt: No space left on device"):
        run(tmp_path, 6, resume=True)
    assert (tmp_path / CHECKPOINT).read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    (tmp_path / "file").write_text("")
    monkeypatch.undo()
    with pytest.raises(BadInput, match="cannot write"):
        write_checkpoint(tmp_path / "file" / CHECKPOINT, {})


@pytest.mark.parametrize("name", ["steps", "validate_every", "checkpoint_every", "validation_sequences"])
def test_a_plan_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is 0"):
        TrainingPlan(**({"steps": 1} | {name: 0}))
