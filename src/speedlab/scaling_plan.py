"""What a session with several GPUs measures, as data: recipes, rows and their order. It imports no torch.

The first rows are those that the book needs; a session whose time runs out loses the last ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from speedlab import beyond
from speedlab.errors import BadInput, check_choice
from speedlab.ladder import NINE_STEPS, get_ladder
from speedlab.recipe import Recipe
from speedlab.rung import BFLOAT16_TOLERANCE, Ladder, Rung

# The last row of the published table before it adds cards.
PUBLISHED = NINE_STEPS.recipe_at("batch_size")
# The composition that most programs use today; its exchange is of float32 gradients.
PLAIN = PUBLISHED.but(dropout=0.0, output_head="tied", precision="bfloat16_autocast")
# What the sweep of one machine with two H200 suggested; each of the three is a row of the sweep too.
TUNED_EXCHANGE = {"gradient_bucket_mb": 100, "bucket_view": True, "static_graph": True}
# Gradients and weights in 16 bits with float32 masters, a larger batch: what PyTorch alone composes.
MASTERS = PLAIN.but(precision="bfloat16_master", micro_batch=64, **TUNED_EXCHANGE)
# The preset of that name, the top of ladder beyond: the same with fused kernels.
FASTEST = beyond.FASTEST.but(**TUNED_EXCHANGE)

FIXED, TOTAL = "fixed_per_gpu", "fixed_total"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One recipe on 1, 2, 4 ... GPUs, as records `data_parallel_<n>` of the ladder `name`.

    batch: whether each GPU keeps its sequences or all share them. checked: whether losses are compared, which costs
    another compilation where the recipe has dropout.
    """

    name: str
    title: str
    recipe: Recipe
    batch: str = FIXED
    checked: bool = False

    def recipe_on(self, gpus: int) -> Recipe:
        recipe = self.recipe.but(data_parallel=gpus)
        if self.batch == FIXED:
            return recipe
        if recipe.micro_batch % gpus:
            raise BadInput(
                f"micro_batch {recipe.micro_batch} cannot be shared by {gpus} GPUs: choose a number that divides it"
            )
        return recipe.but(micro_batch=recipe.micro_batch // gpus)

    def ladder(self, worlds: tuple[int, ...]) -> Ladder:
        """The rungs of this series. With the total batch fixed all of them are the same training, up to rounding."""
        same = self.batch == TOTAL and self.checked
        return Ladder(
            name=self.name,
            title=self.title,
            start=self.recipe_on(worlds[0]),
            rungs=tuple(
                Rung(
                    key=f"data_parallel_{gpus}",
                    title="One GPU" if gpus == 1 else f"{gpus} GPUs",
                    contract="reference" if gpus == worlds[0] else "rounding" if same else "training",
                    tolerance=BFLOAT16_TOLERANCE if same and gpus != worlds[0] else None,
                )
                for gpus in worlds
            ),
        )


# The first belongs to the ladder of the chapters; the sweeps vary the second.
PUBLISHED_SERIES, PLAIN_SERIES = "nine-steps", "scaling-plain"
SERIES = (
    Series(name=PUBLISHED_SERIES, title="The published configuration, 32 sequences a GPU", recipe=PUBLISHED),
    Series(name=PLAIN_SERIES, title="Tied head, no dropout, autocast, 32 sequences a GPU", recipe=PLAIN),
    # Records carry this name since it was the fastest; a record keeps the name of its ladder.
    Series(name="scaling-fastest", title="bfloat16 with float32 masters, 64 sequences a GPU", recipe=MASTERS),
    Series(name="scaling-fused", title="The fastest recipe, fused kernels, 64 sequences a GPU", recipe=FASTEST),
    Series(name="scaling-total", title="Autocast, 32 sequences in all", recipe=PLAIN, batch=TOTAL, checked=True),
)


@dataclass(frozen=True, kw_only=True)
class Variation:
    """One row of a sweep: fields of the exchange changed on the plain recipe."""

    key: str
    title: str
    change: dict[str, Any] = field(default_factory=dict)


# Rows that take the exchange apart come first: each leaves out one more of its costs.
SWEEP = (
    Variation(key="defaults", title="DDP as it comes"),
    Variation(key="independent", title="a program on each GPU, no DDP", change={"sharding": "independent"}),
    Variation(key="nothing_sent", title="DDP that sends nothing", change={"gradient_exchange": "off"}),
    Variation(key="tuned", title="buckets of 100 MiB, views, static graph", change=TUNED_EXCHANGE),
    Variation(
        key="bfloat16_sent", title="tuned, gradients sent in bfloat16",
        change=TUNED_EXCHANGE | {"gradient_exchange": "bfloat16"},
    ),
    Variation(
        key="whole_graph", title="tuned, the graph not cut at buckets", change=TUNED_EXCHANGE | {"optimize_ddp": False}
    ),
    Variation(
        key="few_blocks", title="tuned, at most 8 blocks for NCCL",
        change=TUNED_EXCHANGE | {"communication_blocks": 8},
    ),
    Variation(key="bucket_view", title="gradients as views of the buckets", change={"bucket_view": True}),
    Variation(key="static_graph", title="static graph", change={"static_graph": True}),
    Variation(key="buckets_50", title="buckets of 50 MiB", change={"gradient_bucket_mb": 50}),
    Variation(key="buckets_200", title="buckets of 200 MiB", change={"gradient_bucket_mb": 200}),
    Variation(key="compiled_inside", title="DDP(compile(model))", change={"compile_order": "before_ddp"}),
    Variation(
        key="very_few_blocks", title="tuned, at most 4 blocks for NCCL",
        change=TUNED_EXCHANGE | {"communication_blocks": 4},
    ),
)  # fmt: skip

SHARDINGS = (
    Variation(key="replicated", title="DDP"),
    Variation(key="fsdp2", title="FSDP2", change={"sharding": "fsdp2"}),
)

# Keys of the experiments that the variations and the stopwatch become.
SWEEP_NAME, SHARDING_NAME, STOPWATCH_NAME = "data_parallel_sweep", "data_parallel_sharding", "data_parallel_stopwatch"
EXPERIMENT_NAMES = (SWEEP_NAME, SHARDING_NAME, STOPWATCH_NAME)
PARTS = ("series", "sweep", "sharding", "stopwatch", "timelines")
# Rows of the sweep whose steps are drawn on a line of time; those of the series with a fixed batch are too.
TIMELINES = ("tuned", "whole_graph")


def base_recipe(name: str) -> Recipe:
    """A recipe by name: published, plain, masters, fastest, or LADDER/RUNG such as nine-steps/batch_size."""
    named = {"published": PUBLISHED, "plain": PLAIN, "masters": MASTERS, "fastest": FASTEST}
    if name in named:
        return named[name]
    ladder, slash, rung = name.partition("/")
    if not slash:
        raise BadInput(f"unknown recipe {name!r}: choose one of {', '.join(named)}, or LADDER/RUNG")
    return get_ladder(ladder).recipe_at(rung)


def check_worlds(worlds: tuple[int, ...], *, at_most: int) -> None:
    """Numbers of GPUs in rising order from 1, none above what there is."""
    if not worlds or worlds[0] != 1 or list(worlds) != sorted(set(worlds)):
        listed = ",".join(map(str, worlds))
        raise BadInput(f"worlds is {listed!r}: give numbers of GPUs in rising order that begin with 1, such as 1,2")
    if worlds[-1] > at_most:
        raise BadInput(f"worlds asks for {worlds[-1]} processes: choose at most {at_most} on this machine")


def check_parts(parts: tuple[str, ...]) -> None:
    for part in parts:
        check_choice("part of a scaling session", part, PARTS)
