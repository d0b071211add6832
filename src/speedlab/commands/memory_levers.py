"""Commands about memory that try things out on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from speedlab.commands.shared import AsJson, CorpusName, ProfileName, print_plain_rows
from speedlab.errors import BadInput
from speedlab.progress import Progress


def probe_batch(
    recipe: Annotated[str, typer.Option(help="LADDER/RUNG, such as nine-steps/flash_attention.")],
    card_memory: Annotated[
        float | None, typer.Option(help="Emulate a card with this much memory, in GiB for the allocator.")
    ] = None,
    at_most: Annotated[
        int, typer.Option(min=0, help="Upper bound of the search; 0: 1024, or 8 in the toy profile.")
    ] = 0,
    start: Annotated[
        int, typer.Option(min=0, help="Where to begin; 0: where the memory plan says that the card is full.")
    ] = 0,
    compile_mode: Annotated[
        str | None, typer.Option("--compile", help="Instead of the rung's own mode; off: a search of seconds.")
    ] = None,
    profile: ProfileName = "auto",
    corpus: CorpusName = "standard-library",
    as_json: AsJson = False,
) -> None:
    """Find the largest micro-batch that a whole training step of a rung can take here."""
    from speedlab.measuring.probe_rung import probe_rung

    if recipe.count("/") != 1:
        raise BadInput(f"recipe {recipe!r} names no rung: write LADDER/RUNG, such as nine-steps/flash_attention")
    with Progress() as progress:
        found = probe_rung(
            *recipe.split("/"), card_gib=card_memory, at_most=at_most, guess=start, profile=profile, corpus=corpus,
            compile_mode=compile_mode, say=lambda text: progress.show(text, 0, 0),
            warn=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    if as_json:
        print(json.dumps(found.as_dict(), indent=1))
        return
    print_plain_rows(found.rows())
    print(found.sentence())
