"""Sentences and table cells of the memory labs, made from the rows of their experiments. Nothing is measured here."""

from __future__ import annotations

from statistics import median
from typing import Any

from speedlab.publishing import formatting as form
from speedlab.publishing.lab_rows import apart, middle, of, tokens_per_s
from speedlab.publishing.memory_parts import signed_percent
from speedlab.records.experiment import Experiment

Row = dict[str, Any]
NOTHING_TO_SAY = "The rows that this sentence needs were not measured."


def step_cell(row: Row) -> str:
    """Median of a step in ms."""
    return form.three_digits(median(row["step_ms"])) if "step_ms" in row else form.NOTHING


def held_cell(row: Row) -> str:
    """GiB that tensors held at the peak."""
    return form.gib(row.get("peak_allocated_bytes"))


def reserved_cell(row: Row) -> str:
    """GiB that the allocator took at the peak."""
    return form.gib(row.get("peak_reserved_bytes"))


def error_cell(row: Row) -> str:
    return f"{row['relative_error']:.1e}" if row.get("relative_error") else "0" if "relative_error" in row else "–"  # noqa: RUF001


def found_cell(row: Row) -> str:
    """What a search found: sequences or tokens, with the bound named where it ended there."""
    value = row.get("largest", row.get("longest"))
    return form.NOTHING if value is None else f"{value:,}" + (" (bound)" if row.get("bounded") else "")


def batch_sentence(experiment: Experiment) -> str:
    """From which batch on more sequences hardly help, and whether 32 beats its neighbours, in each mode."""
    eager = sorted(
        (row for row in of(experiment, "batch") if row["compile"] == "off"), key=lambda row: row["micro_batch"]
    )
    if len(eager) < 3:
        return NOTHING_TO_SAY
    fastest = max(eager, key=tokens_per_s)
    enough = next(row for row in eager if tokens_per_s(row) >= 0.95 * tokens_per_s(fastest))
    return (
        f"Without the compiler, {enough['micro_batch']} sequences reach 95 % of the best speed, which is that of "
        f"{fastest['micro_batch']}.{_neighbours(experiment)}"
    )


def _neighbours(experiment: Experiment) -> str:
    """What 32 gains over 31 and 33."""
    said = []
    for mode, name in (("off", "eager"), ("default", "compiled")):
        found = {row["micro_batch"]: row for row in of(experiment, "batch") if row["compile"] == mode}
        gains = [
            f"{signed_percent(tokens_per_s(found[32]) / tokens_per_s(found[near]) - 1)} against {near}"
            f"{'' if apart(found[32], found[near]) else ', which the spread of the steps covers'}"
            for near in (31, 33)
            if {32, near} <= found.keys()
        ]
        if gains:
            said.append(f"{name} {' and '.join(gains)}")
    return f" The power of two, 32 sequences, gains: {'; '.join(said)}." if said else ""


def grid_sentence(experiment: Experiment) -> str:
    """What a longer context costs at the same number of tokens."""
    grid = sorted(of(experiment, "grid"), key=lambda row: row["context_length"])
    if len(grid) < 2:
        return NOTHING_TO_SAY
    short, long = grid[0], grid[-1]
    text = (
        f"{short['tokens_per_step']:,} tokens as {long['micro_batch']} x {long['context_length']:,} run at "
        f"{form.three_digits(tokens_per_s(long) / tokens_per_s(short))}x the speed of {short['micro_batch']} x "
        f"{short['context_length']:,}"
    )
    held = [row["peak_allocated_bytes"] for row in grid]
    return text + (f", with {form.percent(max(held) / min(held) - 1)} more memory at most." if all(held) else ".")


def checkpointing_sentence(experiment: Experiment) -> str:
    """What checkpointing every block costs and saves in each setting, and which way holds least."""
    parts, variants = [], of(experiment, "variant")
    settings = dict.fromkeys((row["compile"], row["micro_batch"], row["context_length"]) for row in variants)
    for setting in settings:
        here = {row["way"]: row for row in variants
                if (row["compile"], row["micro_batch"], row["context_length"]) == setting}  # fmt: skip
        plain, lean = here.get("off"), here.get("every_block")
        if plain and lean and plain["peak_allocated_bytes"]:
            time = median(lean["step_ms"]) / median(plain["step_ms"])
            memory = lean["peak_allocated_bytes"] / plain["peak_allocated_bytes"]
            mode, batch, context = setting
            parts.append(
                f"{form.three_digits(time)}x the time for {form.percent(memory)} of the memory "
                f"({'eager' if mode == 'off' else 'compiled'}, {batch} x {context:,}"
                f"{'' if apart(lean, plain) else '; the spread of the steps covers the time'})"
            )
    return f"Every block checkpointed takes {'; '.join(parts)}.{_groups(variants)}" if parts else NOTHING_TO_SAY


def _groups(variants: list[Row]) -> str:
    """Which size of group holds least."""
    first = next((row for row in variants if row["way"].startswith("groups_of_")), None)
    if first is None:
        return ""
    same = [row for row in variants if row["way"].startswith("groups_of_") or row["way"] == "every_block"]
    same = [
        row for row in same if all(row[name] == first[name] for name in ("compile", "micro_batch", "context_length"))
    ]
    least, most = (pick(same, key=lambda row: row["peak_allocated_bytes"]) for pick in (min, max))
    name = {row["way"]: row["way"].replace("_", " ") for row in same}
    return (
        f" Among the sizes of group {name[least['way']]} holds least, {held_cell(least)} GiB, and "
        f"{name[most['way']]} most, {held_cell(most)}."
    )


def limits_sentence(experiment: Experiment) -> str:
    """What checkpointing every block buys on each smaller card."""
    found = {(row["kind"], row["card"], row["way"]): row for kind in ("largest", "longest")
             for row in of(experiment, kind)}  # fmt: skip
    said = []
    for card in dict.fromkeys(card for _, card, _ in found):
        bought = [
            f"{found_cell(found[kind, card, 'every_block'])} {unit} instead of {found_cell(found[kind, card, 'off'])}"
            for kind, unit in (("largest", "sequences"), ("longest", "tokens of context"))
            if {(kind, card, "every_block"), (kind, card, "off")} <= found.keys()
        ]
        if bought:
            said.append(f"on {card} (emulated) {' and '.join(bought)}")
    return f"Checkpointing every block fits {'; '.join(said)}." if said else NOTHING_TO_SAY


def fill_sentence(experiment: Experiment) -> str:
    """What a card filled to 70 to 80 % gives of the best speed on it, and what its last per cent do."""
    fills = [row for row in of(experiment, "fill") if row["peak_reserved_bytes"]]
    if not fills:
        return NOTHING_TO_SAY
    best = max(tokens_per_s(row) for row in fills)
    share = {row["micro_batch"]: row["peak_reserved_bytes"] / row["limit_bytes"] for row in fills}
    advised = [row for row in fills if 0.7 <= share[row["micro_batch"]] <= 0.8]
    fullest = max(fills, key=lambda row: share[row["micro_batch"]])
    text = (
        f"{fills[0]['card']} (emulated): the fullest that ran reserved {form.percent(share[fullest['micro_batch']])} "
        f"and gave {form.percent(tokens_per_s(fullest) / best)} of the best speed"
    )
    for row in advised:
        text += f"; {form.percent(share[row['micro_batch']])} reserved gave {form.percent(tokens_per_s(row) / best)}"
    retries = sum(row["allocation_retries"] > 0 for row in fills)
    return text + f". In {retries} of {len(fills)} rows the allocator had to give blocks back to find room."


def accumulation_sentence(experiment: Experiment) -> str:
    """What more parts for each update do to speed and memory, and from which size on parts are slow."""
    eager = sorted((row for row in of(experiment, "micro_steps") if row["compile"] == "off"),
                   key=lambda row: row["accumulation"])  # fmt: skip
    splits = of(experiment, "split")
    if len(eager) < 2 or not splits:
        return NOTHING_TO_SAY
    one, many = eager[0], eager[-1]
    text = (
        f"An update is {form.percent(median(one['update_ms']) / median(one['step_ms']))} of a step of "
        f"{one['micro_batch']} sequences; {many['accumulation']} such parts for each update run at "
        f"{form.three_digits(tokens_per_s(many) / tokens_per_s(one))}x its speed"
    )
    if not apart(one, many):
        text += ", which the spread of the steps covers"
    if one["peak_allocated_bytes"]:
        more = (eager[1]["peak_allocated_bytes"] - one["peak_allocated_bytes"]) / 2**30
        text += f", and hold {form.three_digits(more)} GiB more"
    total = max(row["total_batch"] for row in splits)
    line = {row["micro_batch"]: row for row in splits if row["total_batch"] == total}
    whole, least = line[max(line)], line[min(line)]
    good = [row for row in line.values() if row is not whole and tokens_per_s(row) >= 0.9 * tokens_per_s(whole)]
    said = [_split(row, whole) for row in ([min(good, key=lambda row: row["micro_batch"])] if good else [])]
    if least not in good:
        said.append(_split(least, whole))
    return f"{text}. Against {total} sequences in one piece: {'; '.join(said)}.{_floor(line)}"


def clipping_sentence(experiment: Experiment) -> str:
    """What clipping adds to an update, against the plain one with as many parts."""
    clipped = next((row for row in of(experiment, "extra") if row["name"] == "clipped"), None)
    plain = clipped and next(
        (row for row in of(experiment, "micro_steps")
         if all(row[name] == clipped[name] for name in ("accumulation", "micro_batch", "compile"))), None,
    )  # fmt: skip
    if not clipped or not plain:
        return NOTHING_TO_SAY
    more = median(clipped["step_ms"]) - median(plain["step_ms"])
    return (
        f"Clipping adds {form.three_digits(more)} ms to an update of {clipped['accumulation']} parts, once and not for "
        f"each part{'' if apart(clipped, plain) else ', which the spread of the steps covers'}. Half of its steps took "
        f"{middle(clipped)} ms, half of the plain ones {middle(plain)}."
    )


def _split(row: Row, whole: Row) -> str:
    share = form.percent(tokens_per_s(row) / tokens_per_s(whole))
    text = f"{row['accumulation']} x {row['micro_batch']} gives {share} of the speed"
    if whole["peak_allocated_bytes"] and row["peak_allocated_bytes"]:
        text += f" in {form.percent(row['peak_allocated_bytes'] / whole['peak_allocated_bytes'])} of the memory"
    return text


def _floor(line: dict[int, Row]) -> str:
    """Whether the smallest part takes about as long as one of twice its size."""
    small = min(line)
    if 2 * small not in line:
        return ""
    one, two = (median(line[size]["step_ms"]) / line[size]["accumulation"] for size in (small, 2 * small))
    if one < 0.8 * two:
        return ""
    return (
        f" A part of {small} takes {form.three_digits(one)} ms and one of {2 * small} {form.three_digits(two)}: half "
        "the work takes hardly less time, so it is not the GPU that sets the pace there."
    )


def enable_sentence(experiment: Experiment) -> str:
    """`gradient_checkpointing_enable` on models of Hugging Face against their plain step."""
    rows = {(row["model"], row["variant"]): row for row in experiment.measured}
    said = []
    for model in dict.fromkeys(model for model, _ in rows):
        plain, lean = rows.get((model, "baseline")), rows.get((model, "gradient checkpointing"))
        if plain and lean and plain["peak_allocated_bytes"]:
            time = median(lean["step_ms"]) / median(plain["step_ms"])
            memory = lean["peak_allocated_bytes"] / plain["peak_allocated_bytes"]
            said.append(f"{model} takes {form.three_digits(time)}x the time for {form.percent(memory)} of the memory")
    versions = next((f" (transformers {row['transformers']})" for row in rows.values() if "transformers" in row), "")
    return f"With Hugging Face's own switch{versions}, {'; '.join(said)}." if said else NOTHING_TO_SAY
