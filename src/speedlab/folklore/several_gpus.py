"""Claims about several GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from speedlab.folklore import lab_host
from speedlab.folklore.claim import Claim, Verdict, pending
from speedlab.folklore.source import code_lines, package_source
from speedlab.publishing import formatting as form
from speedlab.records.published import published_row
from speedlab.records.record import Record
from speedlab.records.rows import report_rows

# What a program gains when it becomes one for several GPUs: start, device, wrapper, mean.
DISTRIBUTED_SOURCES = ("training/distributed.py", "training/parallel.py", "training/launching.py")
ABOUT_TWENTY = 30
GOOD_SCALING = 0.9


def scaling(records: Sequence[Record]) -> Verdict:
    """Divide tokens/s of several GPUs by those of one in the same session, and by their number."""
    rows = [row for row in report_rows(records) if row["scaling"] is not None and row["world_size"] > 1]
    if not rows:
        return Verdict(verdict="not_decided", needs="rung data_parallel on 1, 2 and 4 GPUs joined by NVLink")
    most = max(rows, key=lambda row: row["world_size"])
    rows = [row for row in rows if (row["device"], row["ladder"]) == (most["device"], most["ladder"])]
    shares = {row["world_size"]: row["scaling"] / row["world_size"] for row in rows}
    listed = ", ".join(f"{form.percent(share)} each on {gpus}" for gpus, share in sorted(shares.items()))
    held = [share > GOOD_SCALING for share in shares.values()]
    text = f"Measured on {rows[0]['gpu']}: {listed}."
    if all(held) or not any(held):
        return Verdict(verdict="confirmed" if all(held) else "refuted", evidence=text)
    return Verdict(verdict="depends", on_what="the number of GPUs", evidence=text)


def lines_of_code(records: Sequence[Record]) -> Verdict:
    """Count the lines of our own code for several processes, without comments, docstrings and blank lines."""
    lines = sum(code_lines(package_source(name)) for name in DISTRIBUTED_SOURCES)
    return Verdict(
        verdict="confirmed" if lines <= ABOUT_TWENTY else "refuted",
        evidence=f"Counted in this package: {lines} lines of code, with starting, stopping and failing processes.",
    )


def rank_on_two_nodes(records: Sequence[Record]) -> Verdict:
    """Ask on a node's list of devices for the one that the global rank names, on two nodes of eight GPUs."""
    nodes, gpus = 2, 8
    wrong = [rank for rank in range(nodes * gpus) if rank not in range(gpus)]
    return Verdict(
        verdict="refuted" if wrong else "confirmed",
        evidence=f"By counting: on {nodes} nodes of {gpus} GPUs, ranks {wrong[0]} to {wrong[-1]} name devices that no "
        f"node has; LOCAL_RANK runs from 0 to {gpus - 1} on each.",
    )


def _published_scaling() -> str:
    four, one = (published_row("nine-steps", rung) for rung in ("data_parallel", "batch_size"))
    return f"Published, A100: {form.three_digits(four.tokens_per_s / one.tokens_per_s)}x on {four.gpus} cards."


CLAIMS = (
    Claim(
        key="four_cards_communication", group=28, evidence_kind="nothing yet", figures=("raschka",),
        experiment=pending("the published harness and ours on four cards, with and without gradient exchange",
                           _published_scaling),
        claim="2.95x on four cards is the price of communication.",
        expectation="Part of it is the harness: evaluation and loading are inside its window.",
    ),
    Claim(
        key="nvlink_over_90_percent", group=28, evidence_kind="records", experiment=scaling,
        claim="With NVLink, several cards keep over 90 % of their speed each.", expectation="Yes, at this batch.",
    ),
    Claim(
        key="ddp_reduces_after_backward", group=28, evidence_kind="nothing yet",
        experiment=pending("a timeline of two GPUs with the backward kernels and the reductions of the buckets"),
        claim="DDP reduces the gradients after the backward pass.",
        expectation="Buckets are reduced while it still runs.",
    ),
    Claim(
        key="ddp_20_lines", group=28, evidence_kind="source code", experiment=lines_of_code,
        claim="DistributedDataParallel takes about 20 lines.",
        expectation="The call does; a program that starts, ends and fails well takes more.",
    ),
    Claim(
        key="set_device_rank", group=29, evidence_kind="formula", experiment=rank_on_two_nodes,
        claim="`torch.cuda.set_device(rank)` picks the right GPU.",
        expectation="On the first node; on the second LOCAL_RANK does.",
    ),
    Claim(
        key="finished_reduction_torch_cat", group=29, evidence_kind="experiments",
        experiment=lab_host.finished_reduction,
        claim="\"Expected to have finished reduction\" comes from `torch.cat`.",
        expectation="From parameters that took no part in the loss, or from reentrant checkpointing.",
    ),
)  # fmt: skip
