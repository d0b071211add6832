"""Markdown tables of what the program itself states: rungs, profiles, arithmetic, method, the machines of records.

Nothing here is a result. What a page says about the program is made from the program, so that it cannot fall behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from speedlab.cards import CARDS, find_card
from speedlab.ladder import Ladder
from speedlab.profile import PROFILES
from speedlab.publishing.tables import Table
from speedlab.recipe import Recipe, one_line_diff
from speedlab.records.record import METHOD, METHODS, Record
from speedlab.records.store import reading_order
from speedlab.work import matmul_parameters, nominal_flops_per_token

TIMES = "\N{MULTIPLICATION SIGN}"


def rungs_table(ladder: Ladder) -> str:
    """What each rung changes, and what must stay true."""
    rows = []
    for rung in ladder:
        before = ladder.before(rung.key)
        change = f"`{one_line_diff(ladder.recipe_at(before), ladder.recipe_at(rung.key))}`" if before else "the start"
        tolerance = f", {rung.tolerance:g} nats" if rung.contract == "rounding" else ""
        stands_alone = "" if rung.stacked else " (not kept by the next)"
        rows.append((rung.title + stands_alone, change, rung.contract + tolerance))
    return Table("", ("rung", "change", "contract"), tuple(rows)).markdown()


def profiles_table() -> str:
    """The profiles: how large, how many steps."""
    rows = tuple(
        (f"`{profile.name}`", profile.about, f"{profile.warmup_steps}", f"{profile.steps}", f"{profile.contract_steps}")
        for profile in PROFILES.values()
    )
    numbers = ("warm-up steps", "timed steps", "compared steps")
    return Table("", ("profile", "what it is", *numbers), rows, frozenset(numbers)).markdown()


def arithmetic() -> str:
    """The formula with the numbers of the baseline put in."""
    recipe = Recipe()
    weights, total = matmul_parameters(recipe), nominal_flops_per_token(recipe)
    terms = f"6 {TIMES} {weights:,} + 12 {TIMES} {recipe.num_layers} {TIMES} {recipe.embedding_width}"
    return (
        f"For the model of this book N is {weights:,}, and a token costs {terms} {TIMES} {recipe.context_length:,} = "
        f"{total / 1e9:.3f} GFLOP.\n"
    )


def method_version() -> str:
    """Each version of the method and what it brought, and which one is present."""
    changes = "".join(f"* {version}: {change}\n" for version, change in METHODS.items())
    return f"The present version of the method is {METHOD}. What each brought:\n\n{changes}"


def older_records(records: Iterable[Record]) -> str:
    """Which committed records are of an older method, as a sentence."""
    older = sorted({(record.device, record.ladder, record.method) for record in records if record.method < METHOD})
    if not older:
        return f"All committed records of ladders are of the present method, {METHOD}.\n"
    listed = "; ".join(f"{device_title(device)}, ladder {ladder} (method {method})" for device, ladder, method in older)
    return f"Not measured again under method {METHOD} yet: {listed}.\n"


def device_title(slug: str) -> str:
    """A device's slug as a reader would write it: "nvidia-h200-x4" is "4 x H200 SXM"."""
    if slug == "cpu":
        return "CPU"
    for card in CARDS:
        if slug == card.slug:
            return card.title
        if slug.startswith(f"{card.slug}-x") and slug.removeprefix(f"{card.slug}-x").isdigit():
            return f"{slug.removeprefix(f'{card.slug}-x')} x {card.title}"
    return slug


def machines(records: Iterable[Record]) -> str:
    """One section for each device and ladder: machine, software and ceilings that its records were measured with."""
    sections = []
    ordered = sorted(records, key=reading_order)
    for (device, ladder), group in groupby(ordered, key=lambda record: (record.device, record.ladder)):
        session = list(group)
        facts = tuple((name, value) for name, value in _facts(session) if value)
        table = Table("", ("what", "value"), facts)
        sections.append(f"## {device_title(device)}, ladder {ladder}\n\n{table.markdown()}")
    return "\n".join(sections)


def _facts(session: list[Record]) -> list[tuple[str, str | None]]:
    """Name and value of what is worth knowing of one session; None for what the machine does not have."""
    first = session[0]
    machine = first.machine
    measured = sorted(record.utc for record in session)
    capability = machine.get("capability")
    corpus = next((record.corpus for record in session if record.corpus), None)
    return [
        ("GPU", machine["gpu"] and f"{machine['gpus']} x {machine['gpu']}"),
        ("compute capability", capability and ".".join(map(str, capability))),
        ("GPU memory", _gib(machine.get("gpu_memory_bytes"))),
        ("memory limit set for the run", _gib(machine.get("memory_limit_bytes"))),
        ("multiprocessors", _whole(machine.get("multiprocessors"))),
        ("power limit", machine.get("power_limit_w") and f"{machine['power_limit_w']:.0f} W"),
        ("CPU", machine.get("cpu")),
        ("CPU cores", _whole(machine.get("cores"))),
        ("system", machine.get("os")),
        ("driver", machine.get("driver")),
        ("CUDA", machine.get("cuda")),
        ("cuDNN", machine.get("cudnn")),
        ("PyTorch", machine["torch"]),
        ("Triton", machine.get("triton")),
        ("Python", machine.get("python")),
        ("matmul rate, measured", _rates(first)),
        ("matmul rate, data sheet", _data_sheet(machine["gpu"])),
        ("copy bandwidth, measured", first.ceilings and f"{first.ceilings['copy_bytes_per_s'] / 1e12:.2f} TB/s"),
        ("corpus", corpus and f"{corpus['name']}, {corpus['tokens']:,} tokens, sha256 {corpus['sha256'][:12]}…"),
        ("profile", first.profile),
        ("measured", f"{measured[0]} to {measured[-1]}"),
        ("session", first.session),
        ("machine", machine["machine_id"]),
        ("method", f"{first.method}"),
        ("source", _all_of(record.source_hash[:12] for record in session)),
        ("commit", _all_of(record.commit and record.commit[:12] for record in session)),
    ]


def _gib(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**30:.1f} GiB"


def _whole(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _all_of(values: Iterable[str | None]) -> str:
    """Each value once, in order of appearance."""
    return ", ".join(dict.fromkeys(value for value in values if value))


def _rates(record: Record) -> str | None:
    if record.ceilings is None:
        return None
    return _tflops(record.ceilings["matmul_flops_per_s"])


def _data_sheet(gpu: str | None) -> str | None:
    card = find_card(gpu) if gpu else None
    return card and f"{_tflops(card.flops_per_s)} ({card.source})"


def _tflops(rates: dict[str, float]) -> str:
    def shown(rate: float) -> str:
        return f"{rate / 1e12:.0f}" if rate >= 1e13 else f"{rate / 1e12:.2g}"

    return ", ".join(f"{name} {shown(rate)}" for name, rate in rates.items()) + " TFLOP/s"
