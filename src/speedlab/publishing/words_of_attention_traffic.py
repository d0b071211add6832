"""Words on the bytes that attention moves, by formula and by the card's counters. It measures nothing."""

from __future__ import annotations

import re

from speedlab.publishing import formatting as form
from speedlab.publishing.tables import Table
from speedlab.publishing.words_of_labs_inside import NOTHING_TO_SAY, absent, find, first, mebibytes
from speedlab.records.experiment import Experiment

# How the kernels of the plain form are called in words, by a piece of their names.
PLAIN_KERNELS = (
    (r"nvjet|gemm|cutlass", "matmul"), (r"softmax", "softmax"), (r"masked_fill", "masked fill"),
    (r"BUnary|MulFunctor|DivFunctor", "scaling"), (r"triu|FillFunctor", "making the mask"),
)  # fmt: skip


def traffic(experiment: Experiment) -> list[Table]:
    """Bytes of one forward pass by formula and measured, and those of each kernel of the plain form."""
    formula = {row["kind"]: row["bytes"] for row in find(experiment, what="formula")}
    heads = ("by formula", "measured", "read", "written", "kernels")
    cells = [("plain" if kind == "plain" else "any tiled kernel", mebibytes(count), *(form.NOTHING,) * 4)
             for kind, count in formula.items()] if not find(experiment, what="measured") else []  # fmt: skip
    for row in find(experiment, what="measured"):
        expected = formula["plain" if row["kind"] == "plain" else "tiled"]
        moved = (row["bytes"], row["read_bytes"], row["written_bytes"])
        cells.append((row["kind"], mebibytes(expected), *map(mebibytes, moved), f"{len(row['kernels'])}"))
    notes = absent([row for row in experiment.rows if row.get("what") == "measured"])
    title = "Memory traffic of the forward pass of one layer of GPT-2, MiB"
    return [Table(title, ("attention", *heads), tuple(cells), frozenset(heads), notes)]


def plain_kernels(experiment: Experiment) -> list[Table]:
    """What each kernel of the plain form read and wrote."""
    row = first(experiment, what="measured", kind="plain")
    if row is None:
        return []
    cells = [
        (_in_words(one["name"]), mebibytes(one["read_bytes"]), mebibytes(one["written_bytes"]))
        for one in row["kernels"]
    ]
    title = f"The {len(cells)} kernels of the plain form, in order, MiB"
    return [Table(title, ("kernel", "read", "written"), tuple(cells), frozenset(("read", "written")))]


def _in_words(name: str) -> str:
    return next((words for piece, words in PLAIN_KERNELS if re.search(piece, name)), name[:40])


def traffic_words(experiment: Experiment) -> str:
    """Why the measured traffic is below the formula of a tiled kernel and above that of the plain form."""
    tiled = [row for row in find(experiment, what="measured") if row["kind"] != "plain"]
    plain = first(experiment, what="measured", kind="plain")
    formula = first(experiment, what="formula", kind="tiled")
    if not tiled or plain is None or formula is None:
        return NOTHING_TO_SAY
    parts = formula["parts"]
    tensor = parts["queries and output"] / 2  # one of q, k, v, output
    scores = 2 * plain["batch"] * plain["heads"] * plain["context"] ** 2
    reads, writes = ([row[name] / 2**20 for row in tiled] for name in ("read_bytes", "written_bytes"))
    passes = sum(row["read_bytes"] + row["written_bytes"] for row in plain["kernels"]) / scores
    text = (
        f"The tiled kernels read {min(reads):.1f} to {max(reads):.1f} MiB, and q, k and v together have "
        f"{mebibytes(3 * tensor)}: each byte came from memory once. The {mebibytes(parts['keys and values, again'])} "
        "MiB that the formula counts for keys and values read again were answered by the cache on the chip. They wrote "
        f"{min(writes):.1f} to {max(writes):.1f} of {mebibytes(tensor + parts['log-sum-exp'])} MiB; the rest still lay "
        "in that cache when the kernel ended. The plain form moves "
        f"{form.three_digits(passes)} times its {mebibytes(scores)} MiB of scores. The formula has four such passes "
        "(scores written and read, probabilities written and read); masking and scaling are kernels of their own, "
        "which read and write all of it again."
    )
    names = " ".join(kernel["name"] for row in tiled for kernel in row["kernels"])
    if "wgmma" in names and "flash_fwd_kernel" in names:
        text += (
            " The names of the kernels tell their age: PyTorch's `flash_fwd_kernel` is FlashAttention-2; cuDNN's holds "
            "`wgmma`, the matmul instruction of Hopper, which version 2 does not use."
        )
    return text
