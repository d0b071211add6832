"""Claims about several GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from speedlab.folklore import lab_host, lab_several
from speedlab.folklore.claim import Claim, Verdict
from speedlab.folklore.source import code_lines, package_source
from speedlab.records.record import Record

# What a program gains when it becomes one for several GPUs: start, device, wrapper, mean.
DISTRIBUTED_SOURCES = ("training/distributed.py", "training/parallel.py", "training/launching.py")
ABOUT_TWENTY = 30


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


CLAIMS = (
    Claim(
        key="four_cards_communication", group=28, evidence_kind="experiments", figures=("raschka",),
        experiment=lab_several.price_of_communication,
        claim="2.95x on four cards is the price of communication.",
        expectation="Part of it is the harness: evaluation and loading are inside its window.",
    ),
    Claim(
        key="nvlink_over_90_percent", group=28, evidence_kind="records", experiment=lab_several.scaling,
        claim="With NVLink, several cards keep over 90 % of their speed each.", expectation="Yes, at this batch.",
    ),
    Claim(
        key="ddp_reduces_after_backward", group=28, evidence_kind="experiments",
        experiment=lab_several.reduces_after_backward,
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
