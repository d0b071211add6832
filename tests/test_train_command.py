"""`speedlab train` and `speedlab tokenize` from outside: what they write, what they print, what they refuse."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from speedlab import cli
from speedlab.data.corpus import load_corpus
from speedlab.data.token_file import read_token_file
from speedlab.data.tokenizer import get_tokenizer
from speedlab.data.tokens import tokenize
from speedlab.device import Capabilities
from speedlab.errors import BadInput
from speedlab.ladder import NINE_STEPS
from speedlab.training import choose
from speedlab.training.choose import recipe_by_name

CPU = Capabilities(device_type="cpu", cores=2)
TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind.\n" * 120


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEEDLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def train(out: Path, corpus: Path, *more: str) -> int:
    arguments = ["train", "--recipe", "nine-steps/native_layers", "--profile", "smoke", "--corpus", str(corpus)]
    return cli.run([*arguments, "--out", str(out), *more])


def test_training_from_a_text_file_and_going_on(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "out", text, "--steps", "4", "--validate-every", "2", "--prompt", "The quick") == 0
    shown = capsys.readouterr()
    assert "The quick" in shown.out and "[2/4] loss " in shown.err and "[4/4] loss " in shown.err
    assert [str(tmp_path / "out" / name) in shown.out for name in ("checkpoint.pt", "training.json", "loss.svg")]
    result = json.loads((tmp_path / "out" / "training.json").read_text())
    assert (result["steps"], len(result["losses"]), result["corpus"]) == (4, 4, "file:text.txt")
    assert result["sample"].startswith("The quick") and [step for step, _ in result["validation"]] == [2, 4]
    assert "Loss from" in (tmp_path / "out" / "loss.svg").read_text()
    assert str(tmp_path) not in (tmp_path / "out" / "training.json").read_text()

    assert train(tmp_path / "out", text, "--steps", "5", "--resume", "--new-tokens", "0") == 0
    again = json.loads((tmp_path / "out" / "training.json").read_text())
    assert again["losses"][:4] == result["losses"] and len(again["losses"]) == 5 and again["sample"] == ""


def test_a_second_training_in_the_same_folder_needs_resume(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint.pt").write_text("")
    assert train(tmp_path / "out", text, "--steps", "1") == 2
    error = capsys.readouterr().err
    assert "go on with --resume" in error and error.strip().split("\n")[-1].startswith("speedlab: ")
    assert train(tmp_path / "none", text, "--resume") == 2
    assert "there is no checkpoint" in capsys.readouterr().err


def test_tokens_are_made_once_and_trained_on(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tokens.bin"
    assert cli.run(["tokenize", str(text), "--out", str(out), "--ranks", "1000"]) == 0
    expected = tokenize(load_corpus(text), get_tokenizer(1_000))
    assert f"{expected.num_tokens:,} tokens of file:text.txt" in capsys.readouterr().out
    # Any program can map it: two bytes an id.
    assert np.array_equal(np.fromfile(out, dtype="<u2"), expected.tokens)
    found = read_token_file(out)
    assert np.array_equal(found.tokens, expected.tokens) and not found.tokens.flags.writeable
    assert (found.corpus_sha256, found.tokenizer_ranks) == (expected.corpus_sha256, 1_000)
    assert train(tmp_path / "a", out, "--steps", "2", "--new-tokens", "0") == 0
    assert train(tmp_path / "b", text, "--steps", "2", "--new-tokens", "0") == 0
    one, two = (json.loads((tmp_path / name / "training.json").read_text()) for name in "ab")
    assert one["losses"] == two["losses"]


def test_a_disk_that_is_full_leaves_the_token_file_that_was_there(text: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "tokens.bin"
    for path, ranks in ((out, "1000"), (tmp_path / "other.bin", "500")):  # the cache has both when the disk is full
        assert cli.run(["tokenize", str(text), "--out", str(path), "--ranks", ranks]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        code = cli.run(["tokenize", str(text), "--out", str(out), "--ranks", "500"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = capsys.readouterr().err
    assert code == 2 and error.startswith(f"speedlab: cannot write {out}: ") and error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_a_folder_of_texts_is_tokenized_with_borders(text: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.md"):
        (tmp_path / "texts" / name).write_text(TEXT[:200])
    assert cli.run(["tokenize", str(tmp_path / "texts"), "--out", str(tmp_path / "t.bin"), "--ranks", "1000"]) == 0
    assert list(read_token_file(tmp_path / "t.bin").tokens).count(1_000) == 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda out: out.write_bytes(out.read_bytes()[:-1]), "its description says"),
        (lambda out: out.with_name("t.bin.json").write_text("{}"), "does not describe tokens"),
        (lambda out: out.with_name("t.bin.json").unlink(), "speedlab tokenize TEXT --out t.bin"),
        (lambda out: out.unlink(), "No such file"),
    ],
)
def test_a_token_file_that_is_damaged_is_refused(text: Path, tmp_path: Path, damage, words: str) -> None:
    out = tmp_path / "t.bin"
    assert cli.run(["tokenize", str(text), "--out", str(out), "--ranks", "1000"]) == 0
    damage(out)
    with pytest.raises(BadInput, match=words):
        read_token_file(out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tokenize", "{text}", "--out", "{folder}/tokens.npy"], "the name must end in .bin"),
        (["tokenize", "{folder}/nothing.txt", "--out", "{folder}/t.bin"], "nothing.txt"),
        (["tokenize", "{text}", "--out", "{folder}/t.bin", "--ranks", "5"], "ranks is 5"),
        (["tokenize", "{text}", "--out", "{text}/t.bin"], "cannot write into"),
        (["train", "--recipe", "nonsense", "--corpus", "{text}"], "or a rung as LADDER/RUNG"),
        (["train", "--recipe", "nine-steps/nonsense", "--corpus", "{text}"], "causal_mask"),
        (["tokenize", "{text}", "--out", "/proc/x/t.bin"], "cannot write into /proc/x"),
        (["train", "--steps", "0"], "steps is 0"),
        (["train", "--new-tokens", "-4"], "--new-tokens is -4"),
        (["train", "--corpus", ""], "--corpus is empty"),
        (["train", "--corpus", "{folder}/no.bin"], "speedlab tokenize TEXT --out no.bin"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    text: Path, tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.format(text=text, folder=tmp_path) for argument in arguments]
    assert cli.run(filled + (["--profile", "smoke", "--out", str(tmp_path / "o")] if filled[0] == "train" else [])) == 2
    error = capsys.readouterr().err
    assert error.startswith("speedlab: ") and error.count("\n") == 1 and words in error
    assert [path for path in tmp_path.rglob("*.tmp")] == []


def test_tokens_of_another_vocabulary_are_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["tokenize", str(text), "--out", str(tmp_path / "t.bin"), "--ranks", "500"]) == 0
    assert train(tmp_path / "out", tmp_path / "t.bin") == 2
    assert "was made with 500 ranks" in capsys.readouterr().err


def test_no_memory_is_one_line_that_says_what_to_do(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_, **__) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("speedlab.training.loop.train", full)
    assert train(tmp_path / "out", text) == 1
    assert "out of memory with recipe nine-steps/native_layers and profile smoke" in capsys.readouterr().err


def test_recipes_have_the_names_of_their_rungs_and_presets_may_depend_on_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert recipe_by_name("nine-steps/merged_qkv", CPU) == NINE_STEPS.recipe_at("merged_qkv")
    assert recipe_by_name("nine-steps/data_parallel", CPU).data_parallel == 1
    assert recipe_by_name("fastest", CPU).compile == "default"
    table = {"fastest": lambda machine: NINE_STEPS.recipe_at("baseline").but(micro_batch=machine.cores), "x": 1}
    monkeypatch.setattr(choose, "_presets", lambda: table)
    assert recipe_by_name("fastest", CPU).micro_batch == 2
