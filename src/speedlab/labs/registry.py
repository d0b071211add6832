"""Which experiments there are. Adding one is adding one entry. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from speedlab.errors import check_choice


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One experiment: the question it answers, and where its function lies, as "module:function".

    The function takes a `Workbench` and a `say(text)` for progress, and yields one plain dictionary for each row, with
    `status` (and `reason` where it is not "measured"). It imports what it needs when it is called.
    """

    name: str
    question: str
    function: str
    gpu: bool = False  # whether it means nothing without one


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="harness_overhead", function="speedlab.labs.harness:harness_overhead",
        question="How much longer is a step because it is measured?",
    ),
    Entry(
        name="determinism", function="speedlab.labs.determinism:determinism",
        question="Which rungs and operations give the same bits twice, and what does deterministic mode cost?",
    ),
    Entry(
        name="loss_against_time", function="speedlab.labs.loss_against_time:loss_against_time",
        question="Which recipe reaches a loss first?",
    ),
    Entry(
        name="data_pipeline", function="speedlab.labs.data_pipeline:data_pipeline",
        question="How much does a step wait for its data, by source, workers, prefetch, carrying and slowness?",
    ),
    Entry(
        name="shapes_of_text", function="speedlab.labs.shapes_of_text:shapes_of_text",
        question="What does padding cost, in tokens that are trained on?",
    ),
    Entry(
        name="together", function="speedlab.labs.together:together",
        question="What do FlashAttention, checkpointing and a data pipeline give alone, together, and on a small card?",
    ),
    Entry(
        name="together_hf", function="speedlab.labs.together_hf:together_hf",
        question="What do the same levers give on Hugging Face models, by our stopwatch?",
    ),
    Entry(
        name="memory_planner",
        question="How near do formulas come to the measured peak of memory?",
        function="speedlab.labs.memory_planner:predicted_against_measured",
    ),
    Entry(
        name="folklore_micro", function="speedlab.labs.folklore_micro:folklore_micro",
        question="Optimizers, autocast, head and loss, the busy counter: what do they do one by one?",
    ),
    Entry(
        name="folklore_training", function="speedlab.labs.folklore_training:folklore_training",
        question="Must padded logits be masked, and does fused attention regularise?",
    ),
    Entry(
        name="folklore_host", function="speedlab.labs.folklore_host:folklore_host",
        question="Where does the memory of loader processes go, and what does DDP complain about?",
    ),
    Entry(
        name="batch_probe", function="speedlab.labs.batch_probe:run",
        question="How fast is a step over its micro-batch, over batch and context at equal tokens, and what fits?",
    ),
    Entry(
        name="checkpointing", function="speedlab.labs.checkpointing:run",
        question="What does each way of checkpointing cost in time and save in memory, and do the gradients stay?",
    ),
    Entry(
        name="memory_limits", function="speedlab.labs.memory_limits:run",
        question="Which batch and context does checkpointing buy on smaller cards, and how full should a card be?",
    ),
    Entry(
        name="accumulation", function="speedlab.labs.accumulation:run",
        question="What does gradient accumulation cost in speed and memory, and does it give the same gradients?",
    ),
    Entry(
        name="precision_formats", function="speedlab.labs.precision:precision_formats",
        question="Which gradients and updates of this model are lost in which number format?",
    ),
    Entry(
        name="attention_sweep", function="speedlab.labs.attention:attention_sweep",
        question="How long does attention take, and how much memory, by which kernel and at which context?",
    ),
    Entry(
        name="attention_traffic", function="speedlab.labs.dram_traffic:attention_traffic",
        question="How many bytes does attention move between memory and chip, counted and measured?",
    ),
    Entry(
        name="compile_modes", function="speedlab.labs.compiling:compile_modes",
        question="What does torch.compile fuse, where does it break or compile again, and when is it paid back?",
    ),
    Entry(
        name="beyond_parts",
        question="What does each part of the fastest step take alone, and what would other ways take?",
        function="speedlab.labs.beyond_parts:parts",
        gpu=True,
    ),
    Entry(
        name="beyond_kernels",
        question="Which kernels run in a step of the fastest recipe, and in one before its fused kernels?",
        function="speedlab.labs.beyond:kernels",
        gpu=True,
    ),
    Entry(
        name="beyond_quick",
        question="Which of the candidates for the fastest recipe wins?",
        function="speedlab.labs.beyond:quick",
        gpu=True,
    ),
    Entry(
        name="beyond_sizes",
        question="Does the fastest recipe win at 350M as well, and when is its compilation paid back?",
        function="speedlab.labs.beyond:sizes",
        gpu=True,
    ),
    Entry(
        name="beyond_curves",
        question="Does the fastest recipe train as plain autocast does?",
        function="speedlab.labs.beyond:curves",
        gpu=True,
    ),
)  # fmt: skip
EXPERIMENTS: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}


def get_entry(name: str) -> Entry:
    check_choice("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
