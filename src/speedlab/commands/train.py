"""Commands for your own model and data: train from a text, make a token file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from speedlab.commands.shared import ProfileName
from speedlab.errors import BadInput, SpeedLabError
from speedlab.progress import Progress


def train(
    recipe: Annotated[str, typer.Option(help="A rung as LADDER/RUNG, or fastest.")] = "fastest",
    corpus: Annotated[
        str, typer.Option("--corpus", help="A corpus by name, a text file, a folder, or tokens made by `tokenize`.")
    ] = "standard-library",
    steps: Annotated[int, typer.Option(help="Optimizer steps in all, those before --resume included.")] = 200,
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, losses and their drawing.")] = Path("training"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    profile: ProfileName = "auto",
    validate_every: Annotated[int, typer.Option(help="Steps between two looks at the held-out text.")] = 50,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between two checkpoints.")] = 100,
    prompt: Annotated[str, typer.Option(help="Text to continue at the end.")] = "",
    new_tokens: Annotated[int, typer.Option(help="How many tokens to continue it by; 0 for none.")] = 60,
) -> None:
    """Train a GPT from text, and continue a prompt with it.

    Stopping and --resume give the same weights as a training that never stopped. The last tenth of the text is held
    out for validation.
    """
    import torch

    from speedlab.device import adapt, capabilities
    from speedlab.profile import get_profile
    from speedlab.publishing.figure_of_training import training_figure
    from speedlab.publishing.plotting import save_svg
    from speedlab.records.store import check_writable, write_text_atomic
    from speedlab.training.choose import recipe_by_name
    from speedlab.training.loop import TrainingPlan, train

    if new_tokens < 0:
        raise BadInput(f"--new-tokens is {new_tokens}: it must be a whole number, 0 for no text")
    plan = TrainingPlan(steps=steps, validate_every=validate_every, checkpoint_every=checkpoint_every)
    machine = capabilities()
    chosen = get_profile(profile, gpu_memory_bytes=machine.gpu_memory_bytes)
    wanted, substitutions = adapt(chosen.scaled(recipe_by_name(recipe, machine)), machine)
    tokens = _tokens(corpus, chosen)
    check_writable(out)
    with Progress() as progress:
        for substitution in substitutions:
            progress.show(f"{substitution.field} runs as {substitution.used}: {substitution.reason}", 0, 0)
        try:
            trained = train(
                wanted, tokens.tokens, plan=plan, out=out, device=torch.device(machine.device_type), resume=resume,
                corpus={"name": tokens.corpus_name, "sha256": tokens.corpus_sha256}, say=progress.show,
            )  # fmt: skip
        except torch.OutOfMemoryError as error:
            raise SpeedLabError(
                f"out of memory with recipe {recipe} and profile {chosen.name}: use --profile t4, or an earlier rung"
            ) from error
    title = f"{recipe}, profile {chosen.name}, {tokens.corpus_name}"
    save_svg(training_figure(trained.losses, trained.validation, title=title), out / "loss.svg")
    text = _continuation(trained, tokens.tokenizer_ranks, prompt, new_tokens)
    result = {
        "recipe": wanted.as_dict(), "profile": chosen.name, "corpus": tokens.corpus_name, "steps": len(trained.losses),
        "losses": trained.losses, "validation": trained.validation, "tokens_per_s": trained.tokens_per_s,
        "sample": text,
    }  # fmt: skip
    write_text_atomic(out / "training.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if text:
        print(text)
    print("\n".join(str(out / name) for name in ("checkpoint.pt", "training.json", "loss.svg")))


def tokenize(
    text: Annotated[str, typer.Argument(help="A text file, a folder of texts, or a corpus by name.")],
    out: Annotated[Path, typer.Option(help="File that receives the ids; its name ends in .bin.")],
    ranks: Annotated[int, typer.Option(help="Merges of the tokenizer to use; 0 for all of GPT-2's.")] = 0,
) -> None:
    """Turn text into GPT-2 token ids, once, as a file that is mapped into memory.

    16 bits an id, and a description beside it. `speedlab train --corpus FILE.bin` trains on it.
    """
    from speedlab.data.corpus import load_corpus
    from speedlab.data.token_file import check_name, write_token_file
    from speedlab.data.tokenizer import get_tokenizer
    from speedlab.data.tokens import tokenize
    from speedlab.records.store import check_writable

    check_name(out)
    check_writable(out.parent)  # a long text takes a while
    tokens = tokenize(load_corpus(text), get_tokenizer(ranks or None))
    description = write_token_file(out, tokens)
    print(f"{tokens.num_tokens:,} tokens of {tokens.corpus_name}\n{out}\n{description}")


def _tokens(corpus: str, profile: Any) -> Any:
    """The corpus as ids of the profile's vocabulary, or a token file of that vocabulary as it is."""
    from speedlab.data.token_file import SUFFIX, read_token_file
    from speedlab.data.tokenizer import NUM_RANKS
    from speedlab.measuring.workbench import load_tokens

    if not corpus.endswith(SUFFIX):
        return load_tokens(corpus, profile)
    tokens = read_token_file(Path(corpus))
    if tokens.tokenizer_ranks != (profile.tokenizer_ranks or NUM_RANKS):
        wanted = profile.tokenizer_ranks or 0
        raise BadInput(
            f"{corpus} was made with {tokens.tokenizer_ranks} ranks, profile {profile.name} needs another vocabulary: "
            f"tokenize with --ranks {wanted}"
        )
    return tokens


def _continuation(trained: Any, ranks: int, prompt: str, new_tokens: int) -> str:
    from speedlab.data.tokenizer import get_tokenizer
    from speedlab.model.sampling import sample

    if not new_tokens:
        return ""
    tokenizer = get_tokenizer(ranks)
    ids = [tokenizer.end_of_text, *tokenizer.encode(prompt)]
    drawn = sample(trained.step.model, ids, new_tokens=new_tokens, vocab_size=tokenizer.vocab_size)
    return tokenizer.decode(drawn[1:])
