"""Tables and sentences of the lab on attention, made from the rows of its sweep. It measures nothing."""

from __future__ import annotations

from typing import Any

from speedlab.publishing import formatting as form
from speedlab.publishing.tables import Table
from speedlab.publishing.words_of_labs_inside import (
    NOTHING_TO_SAY,
    Row,
    absent,
    find,
    first,
    first_then_list,
    mebibytes,
    milliseconds,
    reason_of,
    small,
    span,
    typical,
)
from speedlab.records.experiment import Experiment

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Times of one and the same kernel, called twice, are this close.
ALIKE = 0.05
GRADIENTS = ("q_gradient_error", "k_gradient_error", "v_gradient_error")


def over_context(experiment: Experiment) -> list[Table]:
    """Time of both passes and memory, one line for each implementation, one column for each context."""
    rows = [row for row in experiment.rows if row.get("what") == "context"]
    tokens = max((row["batch"] * row["context"] for row in rows), default=0)
    size = f"{tokens:,} tokens in every call, columns: tokens of a sequence"
    time = _pivot(f"Forward and backward pass, ms; {size}", rows, "context", lambda row: milliseconds(row, "both_ms"))
    memory = _pivot(f"Memory beyond the inputs, GiB; {size}", rows, "context", _held, notes=False)
    return [time, memory] if any(row.get("extra_peak_bytes") for row in rows) else [time]


def _held(row: Row | None) -> str:
    if row is not None and row["status"] != "measured":
        return row["status"].replace("_", " ")
    return form.gib((row or {}).get("extra_peak_bytes"))


def _pivot(title: str, rows: list[Row], across: str, cell: Any, *, notes: bool = True) -> Table:
    """One line for each kind that has a measured row, one column for each value of the field `across`."""
    found = {(row["kind"], row[across]): row for row in rows}
    kinds = list(dict.fromkeys(row["kind"] for row in rows if row["status"] != "unavailable"))
    values = list(dict.fromkeys(row[across] for row in rows))
    values = sorted(values) if across == "context" else values
    heads = tuple(f"{value:,}" if isinstance(value, int) else value for value in values)
    cells = tuple((kind, *(cell(found.get((kind, value))) for value in values)) for kind in kinds)
    return Table(title, ("attention", *heads), cells, frozenset(heads), absent(rows) if notes else ())


def against_plain(experiment: Experiment) -> str:
    """What tiling in PyTorch, own kernels and PyTorch's kernels do to the plain form, over the contexts."""
    rows = {(row["kind"], row["context"]): row for row in find(experiment, what="context")}
    contexts = sorted({context for kind, context in rows if kind == "plain"})

    def ratios(slow: str, fast: str, name: str = "both_ms") -> dict[int, float]:
        pairs = {at: (typical(rows.get((slow, at)), name), typical(rows.get((fast, at)), name)) for at in contexts}
        return {at: one / two for at, (one, two) in pairs.items() if one and two}

    fused = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient")
    best = {at: min(((typical(row, "both_ms"), kind) for kind in fused if (row := rows.get((kind, at)))), default=None)
            for at in contexts}  # fmt: skip
    gains = [
        f"{form.three_digits(typical(rows['plain', at], 'both_ms') / found[0])}x at {at:,}"
        for at, found in best.items() if found
    ]  # fmt: skip
    if not gains:
        return NOTHING_TO_SAY
    names = ", ".join(dict.fromkeys(found[1] for found in best.values() if found))
    said = [f"The fastest kernel of PyTorch ({names}) against the plain form, both passes: {', '.join(gains)}."]
    if slower := ratios("tiled", "plain"):
        less = [at for at in slower if rows["tiled", at].get("extra_peak_bytes") is not None
                and rows["tiled", at]["extra_peak_bytes"] < rows["plain", at]["extra_peak_bytes"]]  # fmt: skip
        said.append(
            f"Tiles in plain PyTorch take {span(slower.values())} the time of the plain form"
            + (f", and hold less memory from a context of {min(less):,} on." if less else ".")
        )
    if compiled := ratios("plain", "plain_compiled"):
        said.append(
            f"The compiler makes the plain form faster by {span(compiled.values())}, and it still keeps scores."
        )
    if own := ratios("triton", "sdpa_flash"):
        said.append(f"The Triton kernels of this package take {span(own.values())} the time of sdpa_flash.")
    ended = [row for row in experiment.rows if row.get("what") == "context" and row["status"] == "out_of_memory"]
    if ended:
        said.append("Out of memory: " + ", ".join(f"{row['kind']} at {row['context']:,}" for row in ended) + ".")
    return first_then_list(said)


def chosen_backend(experiment: Experiment) -> str:
    """Which backend `scaled_dot_product_attention` took by itself, as time and memory show, and what it gains."""
    rows = {(row["kind"], row["context"]): row for row in find(experiment, what="context")}
    contexts = sorted(at for kind, at in rows if kind == "sdpa")
    off: dict[str, list[float]] = {}
    for kind in ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math"):
        if contexts and all((kind, at) in rows for at in contexts):
            pairs = [(rows["sdpa", at], rows[kind, at]) for at in contexts]
            if all(
                one["extra_peak_bytes"] and one["extra_peak_bytes"] == two["extra_peak_bytes"] for one, two in pairs
            ):
                off[kind] = [typical(one, "both_ms") / typical(two, "both_ms") for one, two in pairs]
    if not off:
        return NOTHING_TO_SAY
    kind = min(off, key=lambda name: max(abs(ratio - 1) for ratio in off[name]))
    worst = max(abs(ratio - 1) for ratio in off[kind])
    if worst > ALIKE:
        return "No backend has both memory and times of PyTorch's own choice: the rows do not tell which it took."
    text = (
        f"Left to itself, PyTorch's `scaled_dot_product_attention` (row *sdpa*) holds the same bytes as {kind} at "
        f"every context, and its times differ by {form.percent(worst)} at most: that is the kernel it took."
    )
    flash = [typical(rows["sdpa_flash", at], "both_ms") / typical(rows["sdpa", at], "both_ms")
             for at in contexts if ("sdpa_flash", at) in rows]  # fmt: skip
    return text + (f" sdpa_flash takes {span(flash)} as long." if flash and kind != "sdpa_flash" else "")


def causal(experiment: Experiment) -> list[Table]:
    """A full call over a causal one, for each kernel and context."""
    rows = [row for row in experiment.rows if row.get("what") == "causal"]
    full = {(row["kind"], row["context"]): row for row in rows if not row["causal"]}

    def ratio(row: Row | None) -> str:
        one, two = typical(full.get((row["kind"], row["context"])) if row else None, "both_ms"), typical(row, "both_ms")
        return f"{form.three_digits(one / two)}x" if one and two else form.NOTHING

    title = "What is_causal gains: time of a full call over that of a causal one, both passes, by tokens of a sequence"
    return [_pivot(title, [row for row in rows if row["causal"]], "context", ratio)]


def layouts(experiment: Experiment) -> list[Table]:
    """Time of both passes by how queries, keys and values lie in memory."""
    rows = [row for row in experiment.rows if row.get("what") == "layout"]
    title = "Forward and backward pass by how q, k and v lie in memory, ms"
    return [_pivot(title, rows, "layout", lambda row: milliseconds(row, "both_ms"))]


def layout_words(experiment: Experiment) -> str:
    """What the layouts change for each kernel, in time and in memory, and what copies of q, k and v take."""
    rows = {(row["kind"], row["layout"]): row for row in find(experiment, what="layout")}
    said = []
    for kind in dict.fromkeys(kind for kind, _ in rows):
        one, two = rows.get((kind, "heads first")), rows.get((kind, "tokens first"))
        if one and two and one.get("extra_peak_bytes") and two.get("extra_peak_bytes"):
            more = two["extra_peak_bytes"] - one["extra_peak_bytes"]
            memory = f"{mebibytes(abs(more))} MiB {'more' if more > 0 else 'less'}" if more else "the same memory"
            ratio = typical(two, "both_ms") / typical(one, "both_ms")
            said.append(f"{kind} {form.three_digits(ratio)}x the time and {memory}")
    if not said:
        return NOTHING_TO_SAY
    row = next(iter(rows.values()))
    tensor = row["batch"] * row["heads"] * row["context"] * row["head_width"] * BYTES[row["dtype"]]
    text = f"Tokens first against heads first takes, by kernel: {'; '.join(said)}."
    if copies := first(experiment, what="copies"):
        text += (
            f" One of q, k and v has {mebibytes(tensor)} MiB: a difference by a multiple of that is copies which the "
            f"call makes for itself. To copy all three by hand takes {milliseconds(copies, 'copy_ms')} ms."
        )
    return text


def heads(experiment: Experiment) -> list[Table]:
    """Time of both passes by the number of key heads, grouped in the kernel or repeated before it."""
    rows = [row for row in experiment.rows if row.get("what") == "heads"]
    named = [row | {"kind": f"{row['kind']}, keys repeated first"} if row["repeated"] else row for row in rows]
    sizes = {row["key_value_heads"]: row["key_value_bytes"] for row in rows}
    title = "Forward and backward pass by the number of key heads, ms"
    table = _pivot(title, named, "key_value_heads", lambda row: milliseconds(row, "both_ms"))
    held = ("MiB of keys and values", *(mebibytes(size) for size in sizes.values()))
    return [Table(table.title, table.columns, (held, *table.cells), table.numbers, table.notes)] if rows else []


def head_words(experiment: Experiment) -> str:
    """What fewer key heads change: bytes of keys and values, and time."""
    rows = find(experiment, what="heads", repeated=False)
    most = max((row["key_value_heads"] for row in rows), default=0)
    all_heads = {row["kind"]: row for row in rows if row["key_value_heads"] == most}
    fewest = [row for row in rows if row["key_value_heads"] == min(r["key_value_heads"] for r in rows) < most]
    ratios = [typical(row, "both_ms") / typical(all_heads[row["kind"]], "both_ms") for row in fewest]
    if not ratios:
        return NOTHING_TO_SAY
    few = fewest[0]["key_value_heads"]
    text = (
        f"With {few} key head{'' if few == 1 else 's'} instead of {most} a call takes {span(ratios)} the time: what is "
        "computed is the same, every query still meets every key before it. The gain is in what has to be kept."
    )
    repeated = [
        typical(row, "both_ms") / typical(same, "both_ms")
        for row in find(experiment, what="heads", repeated=True)
        if (same := first(experiment, what="heads", kind="sdpa", repeated=False,
                          key_value_heads=row["key_value_heads"]))
    ]  # fmt: skip
    return text + (f" Repeating the keys before the call takes {span(repeated)} of grouping them." if repeated else "")


def accuracy(experiment: Experiment) -> list[Table]:
    """Largest errors against float64, in 16 bits and in float32."""
    rows = [row for row in experiment.rows if row.get("what") == "accuracy"]
    formats = list(dict.fromkeys(row["dtype"] for row in rows))
    found = {(row["kind"], row["dtype"]): row for row in rows if row["status"] == "measured"}
    heads = tuple(f"{what}, {name}" for name in formats for what in ("output", "gradients"))
    cells = []
    for kind in dict.fromkeys(kind for kind, _ in found):
        line = [kind]
        for name in formats:
            row = found.get((kind, name))
            line += [small(row and row["output_error"]), small(row and max(row[name] for name in GRADIENTS))]
        cells.append(tuple(line))
    notes = tuple(
        f"{kind}, {name}: {reason_of(row)}"
        for (kind, name), row in {(r["kind"], r["dtype"]): r for r in rows if r["status"] != "measured"}.items()
        if any((kind, other) in found for other in formats)
    )
    return [Table("Largest error against float64", ("attention", *heads), tuple(cells), frozenset(heads), notes)]


def determinism(experiment: Experiment) -> list[Table]:
    """Time and whether gradients repeat, as it is, with TF32 allowed and in deterministic mode."""
    rows = [row for row in experiment.rows if row.get("what") == "deterministic"]
    found = {(row["kind"], row["setting"]): row for row in rows}
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    heads = ("ms as it is", "ms deterministic")
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows if row["status"] == "measured"):
        times = [milliseconds(found.get((kind, name)), "both_ms") for name in ("as it is", "deterministic")]
        cells.append((kind, *times, *(_repeats(found.get((kind, name))) for name in settings)))
    columns = ("attention", *heads, *(f"gradients repeat, {name}" for name in settings))
    notes = absent([row for row in rows if row["status"] != "measured"])
    title = "The same call six times: both passes in ms, and whether its gradients repeat bit by bit"
    return [Table(title, columns, tuple(cells), frozenset(heads), notes)]


def _repeats(row: Row | None) -> str:
    if row is None or "gradients_repeat" not in row:
        return form.NOTHING
    return "yes" if row["gradients_repeat"] else f"no, up to {small(row['largest_difference'])}"


def block_of_7b(experiment: Experiment) -> str:
    """One block of a 7B model with plain and with fused attention."""
    plain, fused = (first(experiment, what="layer_7b", kind=kind) for kind in ("plain", "sdpa"))
    if not plain or not fused:
        return NOTHING_TO_SAY
    one, two = typical(plain, "both_ms"), typical(fused, "both_ms")
    return (
        f"One block of a 7B model (width {plain['width']:,}), one sequence of {plain['context']:,} tokens, forward and "
        f"backward: {form.three_digits(one)} ms with plain and {form.three_digits(two)} ms with fused attention, "
        f"{form.three_digits(one / two)}x. A whole step has head and optimizer beside its blocks, which gain nothing."
    )
