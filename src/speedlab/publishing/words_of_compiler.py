"""Tables and sentences of the lab on the compiler, made from the rows of its experiment. It measures nothing."""

from __future__ import annotations

from speedlab.publishing import formatting as form
from speedlab.publishing.tables import Table
from speedlab.publishing.words_of_labs_inside import NOTHING_TO_SAY, Row, absent, find, first, milliseconds, typical
from speedlab.recipe import Recipe
from speedlab.records import stats
from speedlab.records.experiment import Experiment

LAYERS = {"native": "native", "handwritten": "hand-written"}
LONGEST = 6  # generated kernels that the page names
BYTES_OF_BFLOAT16 = 2
# Nothing in this experiment is timed twice, so a hundredth is left to the drift of the machine.
DRIFT = 0.01


def counted(experiment: Experiment) -> list[Table]:
    """Counted bytes of the model's two passes, by operators and by generated kernels."""
    rows = [row for row in experiment.rows if row.get("what") == "bytes"]
    found = {(row["recipe"], row["mode"]): row for row in rows}
    heads = ("GiB, off", "operators", "GiB, compiled", "graphs")
    cells = []
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        off, on = found.get((recipe, "off")), found.get((recipe, "default"))
        cells.append((LAYERS.get(recipe, recipe), form.gib((off or {}).get("bytes")), _count(off, "operators"),
                      form.gib((on or {}).get("bytes")), _count(on, "graphs")))  # fmt: skip
    title = "Counted bytes of one forward and backward pass of the model"
    return [Table(title, ("layers", *heads), tuple(cells), frozenset(heads), absent(rows, "mode"))] if rows else []


def _count(row: Row | None, name: str) -> str:
    return form.NOTHING if row is None or name not in row else form.count(row[name])


def counted_words(experiment: Experiment) -> str:
    """What the counts say: how little there is to fuse in native layers, and what padding adds."""
    rows = {(row["recipe"], row["mode"]): row["bytes"] for row in find(experiment, what="bytes")}
    if not {(recipe, mode) for recipe in LAYERS for mode in ("off", "default")} <= rows.keys():
        return NOTHING_TO_SAY
    change = {recipe: rows[recipe, "default"] - rows[recipe, "off"] for recipe in LAYERS}
    text = (
        f"With hand-written layers the count changes by {change['handwritten'] / 2**30:+.1f} GiB, with native ones by "
        f"{change['native'] / 2**30:+.1f}"
    )
    tokens = next((row.get("tokens_per_step") for row in find(experiment, what="mode")), None)
    if change["native"] <= 0 or tokens is None:
        return text + "."
    logits = tokens * Recipe().vocab_size * BYTES_OF_BFLOAT16
    return (
        f"{text}: their LayerNorm and GELU were one kernel each before, so there is little left to fuse, and the "
        "compiler adds passes of its own. One copies the logits' gradient to rows of a padded length, which by formula "
        f"reads and writes {form.gib(2 * logits)} GiB. *What ran* shows what that buys."
    )


def modes(experiment: Experiment) -> list[Table]:
    """Step, compile time, break-even and memory of each mode, with the kernel time of a step where it was profiled."""
    rows = [row for row in experiment.rows if row.get("what") == "mode"]
    found = {(row["recipe"], row["mode"]): row for row in rows}
    busy = {(row["recipe"], row["mode"]): row["time_us"] / 1e3 for row in find(experiment, what="kernels")}
    heads = ("ms/step", "quartiles", "ms in kernels", "s to compile", "paid back after", "GiB reserved")
    cells = []
    for (recipe, mode), row in found.items():
        if row["status"] == "measured":
            quarters = stats.quartiles(row["step_ms"])
            after = break_even_steps(found.get((recipe, "off")), row)
            held = row.get("peak_reserved_bytes")
            cells.append((
                LAYERS.get(recipe, recipe), mode, form.three_digits(quarters.median),
                f"{form.three_digits(quarters.q1)}–{form.three_digits(quarters.q3)}",  # noqa: RUF001
                form.three_digits(busy.get((recipe, mode))), form.three_digits(row["compile_s"]),
                form.NOTHING if mode == "off" else f"{form.count(after)} steps" if after else "never", form.gib(held),
            ))  # fmt: skip
    notes = absent(rows, "mode")
    return [Table("One step of each mode", ("layers", "compile", *heads), tuple(cells), frozenset(heads), notes)]


def break_even_steps(off: Row | None, row: Row) -> float | None:
    """Steps after which compiling has paid for itself against the same recipe without it; None if never."""
    before, after = typical(off, "step_ms"), typical(row, "step_ms")
    if row.get("compile_s") is None or before is None or after is None or before <= after:
        return None
    return row["compile_s"] * 1e3 / (before - after)


def warm_words(experiment: Experiment) -> str:
    """What the cache on disk saves a new process, and how the two kinds of layers compare once compiled."""
    said = []
    cold = first(experiment, what="mode", recipe="native", mode="default")
    for row in find(experiment, what="warm"):
        against = f", where the first one took {form.three_digits(cold['compile_s'])} s" if cold else ""
        took = form.three_digits(row["first_step_s"])
        said.append(
            f"A new process that finds a {row['compile_cache']} cache on disk takes {took} s for its first step"
            f"{against}."
        )
    kernels = {row["recipe"]: row["time_us"] for row in find(experiment, what="kernels", mode="default")}
    before = {row["recipe"]: row["time_us"] for row in find(experiment, what="kernels", mode="off")}
    if len(kernels) == len(before) == len(LAYERS):
        ratios = [form.three_digits(one["handwritten"] / one["native"]) for one in (before, kernels)]
        said.append(
            f"Kernels of hand-written layers take {ratios[0]}x the time of native ones without the compiler and "
            f"{ratios[1]}x with it. What the steps differ by beyond their kernels are pauses in which the card waits."
        )
    return " ".join(said) or NOTHING_TO_SAY


def kernel_kinds(experiment: Experiment) -> list[Table]:
    """Milliseconds and launches of one step, one line for each kind of kernel."""
    rows = find(experiment, what="kernels")
    heads = tuple(f"{LAYERS.get(row['recipe'], row['recipe'])}, {row['mode']}" for row in rows)
    totals: dict[str, float] = {}
    for row in rows:
        for kind, one in row["kinds"].items():
            totals[kind] = max(totals.get(kind, 0.0), one["time_us"])
    cells = [
        (kind, *(form.three_digits(row["kinds"][kind]["time_us"] / 1e3) if kind in row["kinds"] else form.NOTHING
                 for row in rows))
        for kind in sorted(totals, key=lambda kind: -totals[kind])
    ]  # fmt: skip
    cells.append(("together", *(form.three_digits(row["time_us"] / 1e3) for row in rows)))
    cells.append(("launches", *(form.count(row["calls"]) for row in rows)))
    notes = absent([row for row in experiment.rows if row.get("what") == "kernels"], "mode")
    return [Table("Kernels of one step by kind, ms", ("kind", *heads), tuple(cells), frozenset(heads), notes)]


def longest_fused(experiment: Experiment) -> list[Table]:
    """The longest generated kernels of native layers, whose names list what they hold."""
    row = first(experiment, what="kernels", recipe="native", mode="default")
    if row is None:
        return []
    cells = tuple(
        (f"`{one['name']}`", form.count(one["calls"]), form.three_digits(one["time_us"] / 1e3))
        for one in row["longest_fused"][:LONGEST]
    )
    title = "The longest generated kernels of one step, native layers, mode default"
    return [Table(title, ("kernel", "launches", "ms"), cells, frozenset(("launches", "ms")))]


def matmul_words(experiment: Experiment) -> str:
    """What became of the matmuls and of all the rest, and what the passes cost that made the matmuls faster."""
    said = []
    for recipe, words in LAYERS.items():
        off, on = (first(experiment, what="kernels", recipe=recipe, mode=mode) for mode in ("off", "default"))
        if off and on:
            matmul, rest = ((part(off), part(on)) for part in (_matmul_ms, _rest_ms))
            said.append(
                f"With {words} layers {form.count(off['calls'])} launches become {form.count(on['calls'])}; matmuls go "
                f"from {form.three_digits(matmul[0])} to {form.three_digits(matmul[1])} ms, all the rest from "
                f"{form.three_digits(rest[0])} to {form.three_digits(rest[1])} ms."
            )
    off, on = (first(experiment, what="kernels", recipe="native", mode=mode) for mode in ("off", "default"))
    if off and on and (padding := sum(one["time_us"] for one in on["longest_fused"] if "_mm_" in one["name"]) / 1e3):
        copies = _of_kind(on, "copy") - _of_kind(off, "copy")
        said.append(
            f"Faster matmuls are no fusion. The head has {Recipe().vocab_size:,} columns, rows of an odd length, for "
            "which only slow kernels exist; the compiler pads such matmuls by itself where its own trial says that it "
            f"pays. With native layers the generated kernels with `mm` in their names, which pad, take "
            f"{form.three_digits(padding)} ms a step, and copies {copies:+.2f} ms; without both, the rest would be "
            f"{form.three_digits(_rest_ms(on) - padding - copies)} ms. Chapter 9 pads by one number in the recipe; "
            "chapter 8 finds the same among its kernels."
        )
    return " ".join(said) or NOTHING_TO_SAY


def _of_kind(row: Row, kind: str) -> float:
    """Milliseconds of a step in kernels whose kind begins with this word."""
    return sum(one["time_us"] for name, one in row["kinds"].items() if name.startswith(kind)) / 1e3


def _matmul_ms(row: Row) -> float:
    return _of_kind(row, "matmul")


def _rest_ms(row: Row) -> float:
    return row["time_us"] / 1e3 - _matmul_ms(row)


def breaks(experiment: Experiment) -> list[Table]:
    """What each interruption did: graphs, the step and its slowest one, whether it is clearly slower, and why."""
    rows = [row for row in experiment.rows if row.get("what") == "graph_break"]
    none = first(experiment, what="graph_break", interruption="nothing")
    heads = ("graphs", "ms/step", "slowest", "against nothing")
    cells = []
    for row in (row for row in rows if row["status"] == "measured"):
        slowest = max(row["step_ms"]) if row.get("step_ms") else None
        words = "; ".join(row["reasons"]) or form.NOTHING
        cells.append((row["interruption"], f"{row['graphs']}", milliseconds(row, "step_ms"), form.three_digits(slowest),
                      _against(none, row), words))  # fmt: skip
    columns = ("behind the first block", *heads, "what PyTorch says")
    title = "A model of two layers with an interruption"
    return [Table(title, columns, tuple(cells), frozenset(heads), absent(rows, "interruption"))]


def _against(none: Row | None, row: Row) -> str:
    """The ratio of two steps, or that it cannot be told from the spread."""
    if none is None or none is row or not none.get("step_ms") or not row.get("step_ms"):
        return form.NOTHING
    longer = stats.times_faster(row["step_ms"], none["step_ms"], drift=DRIFT)
    return form.ratio(longer.value, clear=longer.clear)


def recompiles(experiment: Experiment) -> list[Table]:
    """Seconds of each call with another batch, and whether a new graph was made for it."""
    rows = [row for row in experiment.rows if row.get("what") == "recompile"]
    measured = [row for row in rows if row["status"] == "measured"]
    if not measured:
        return []
    heads = tuple(f"batch {batch}" for batch in measured[0]["batches"])
    cells = []
    for row in measured:
        new = [now > was for was, now in zip([0, *row["graphs"]], row["graphs"], strict=False)]
        line = [
            f"{_seconds(second)}{', new graph' if fresh else ''}"
            for second, fresh in zip(row["call_s"], new, strict=True)
        ]
        cells.append((row["dynamic"], *line))
    notes = list(absent(rows, "dynamic"))
    generated = [row for row in measured if row.get("backend") == "inductor"]
    if any("compile_cache" not in row for row in generated):
        notes.append(
            "in this record the rows shared a cache on disk: a graph that the row above had compiled was read, not "
            "made. Only the first row's seconds, and those of graphs for any size, are all compiling"
        )
    title = "One compiled model of two layers, called with four batch sizes in turn"
    return [Table(title, ("dynamic", *heads), tuple(cells), frozenset(heads), tuple(notes))]


def _seconds(value: float) -> str:
    return f"{form.three_digits(value)} s" if value >= 0.1 else f"{form.three_digits(value * 1e3)} ms"


def losses(experiment: Experiment) -> list[Table]:
    """First and last loss of each mode, and the largest difference to the same layers without the compiler."""
    rows = find(experiment, what="mode")
    off = {row["recipe"]: row["losses"] for row in rows if row["mode"] == "off"}
    heads = ("first loss", "last loss", "largest difference to off")
    cells = []
    for row in rows:
        mine, theirs = row["losses"], off.get(row["recipe"])
        largest = max(abs(one - two) for one, two in zip(mine, theirs, strict=True)) if theirs else None
        cells.append((LAYERS.get(row["recipe"], row["recipe"]), row["mode"], f"{mine[0]:.4f}", f"{mine[-1]:.4f}",
                      form.NOTHING if row["mode"] == "off" else form.significant(largest)))  # fmt: skip
    steps = len(rows[0]["losses"]) if rows else 0
    title = f"Losses in nats over {steps} steps from the same weights on the same batches"
    return [Table(title, ("layers", "compile", *heads), tuple(cells), frozenset(heads))]
