"""What a chapter says about records and recipes, as Markdown: every number and every judgement comes from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speedlab.cards import CARDS
from speedlab.device import Capabilities, adapt
from speedlab.ladder import NINE_STEPS, Rung
from speedlab.publishing import formatting as form
from speedlab.publishing.facts import device_title
from speedlab.publishing.figures_of_records import milliseconds_by_kind
from speedlab.publishing.tables import Table
from speedlab.recipe import one_line_diff
from speedlab.records import stats
from speedlab.records.record import Record

LADDER = NINE_STEPS.name
# The cards that readers are most likely to have, each with what decides which recipe it can run.
COMMON_CARDS = ("tesla-t4", "nvidia-rtx-3090", "nvidia-l4", "nvidia-a100-40gb", "nvidia-h200")
NAME_LETTERS = 70
MULTIPROCESSORS = {"tesla-t4": 40, "nvidia-rtx-3090": 82, "nvidia-l4": 58, "nvidia-a100-40gb": 108, "nvidia-h200": 132}


def change_table(rungs: Sequence[Rung]) -> str:
    """The one-line diff of each rung of a chapter, with its contract and why it should help."""
    cells = []
    for rung in rungs:
        before = NINE_STEPS.before(rung.key)
        assert before is not None, "a chapter never starts at the baseline"
        diff = one_line_diff(NINE_STEPS.recipe_at(before), NINE_STEPS.recipe_at(rung.key))
        cells.append((rung.title, f"`{diff}`", contract_words(rung), rung.expectation))
    return Table("", ("optimization", "the recipe changes", "promise", "because"), tuple(cells)).markdown()


def contract_words(rung: Rung) -> str:
    if rung.contract == "identical":
        return "the same losses, bit for bit"
    if rung.contract == "rounding":
        return f"the same losses within {rung.tolerance:g} nats"
    return "another optimization: its losses are shown"


def prediction_table(records: Sequence[Record]) -> str:
    """Predicted milliseconds per step by part, a column for each record, and the ceiling that binds it."""
    predicted = [(_title(record.rung), record.predicted) for record in records if record.predicted]
    parts = dict.fromkeys(part for _, values in predicted for part in values["parts_ms"])
    cells = [
        (part, *(form.three_digits(values["parts_ms"].get(part)) for _, values in predicted))
        for part in parts
        if any(values["parts_ms"].get(part) for _, values in predicted)
    ]
    cells.append(("sum", *(form.three_digits(values["step_ms"]) for _, values in predicted)))
    cells.append(("bound by", *(values["bound_by"] for _, values in predicted)))
    titles = tuple(title for title, _ in predicted)
    return Table("", ("predicted ms per step", *titles), tuple(cells), numbers=frozenset(titles)).markdown()


def kernel_kind_table(records: Sequence[Record]) -> str:
    """Calls and milliseconds of one step by kind of kernel, a pair of columns for each record."""
    times = [milliseconds_by_kind(record) for record in records]
    calls = [_calls_by_kind(record) for record in records]
    kinds = sorted({kind for time in times for kind in time}, key=lambda kind: -max(t.get(kind, 0.0) for t in times))
    columns: list[str] = ["kind of kernel"]
    for record in records:
        columns += [f"{_title(record.rung)}: calls", f"{_title(record.rung)}: ms"]
    cells = []
    for kind in kinds:
        line = [kind]
        for time, call in zip(times, calls, strict=True):
            line += [f"{call.get(kind, 0):,.0f}", form.three_digits(time.get(kind, 0.0))]
        cells.append(tuple(line))
    return Table("", tuple(columns), tuple(cells), numbers=frozenset(columns[1:])).markdown()


def longest_kernels(record: Record, count: int = 5) -> str:
    """The kernels of one step that take the most time, by name."""
    cells = tuple(
        (
            f"`{_short(kernel['name'])}`",
            kernel["kind"],
            f"{kernel['calls']:,.0f}",
            form.three_digits(kernel["time_us"] / 1e3),
        )
        for kernel in record.kernels[:count]
    )
    columns = (f"longest kernels: {_title(record.rung)}", "kind", "calls", "ms")
    return Table("", columns, cells, numbers=frozenset(("calls", "ms"))).markdown()


def _short(name: str) -> str:
    """A kernel's name, which can take a page, with a mark where it was cut."""
    return name if len(name) <= NAME_LETTERS else f"{name[: NAME_LETTERS - 1]}…"


def evidence_sentence(record: Record) -> str:
    """Whether Tensor Cores ran and which attention kernel, said from the kernel table alone."""
    kinds = milliseconds_by_kind(record)
    tensor, ordinary = kinds.get("matmul, Tensor Cores", 0.0), kinds.get("matmul, ordinary", 0.0)
    attention = [kind.split(", ")[1] for kind in kinds if kind.startswith("attention")]
    words = [f"*{_title(record.rung)}* on {device_title(record.device)}:"]
    if record.on_cpu:
        words.append("a CPU, so no Tensor Cores")
    elif tensor:
        words.append(f"Tensor Cores took {form.percent(tensor / (tensor + ordinary))} of the matmul time")
    else:
        words.append("no matmul ran on Tensor Cores")
    words.append(f"; attention kernel: {', '.join(attention)}." if attention else "; no fused attention kernel.")
    return " ".join(words).replace(" ;", ";")


def kernel_total(record: Record) -> str:
    """How many kernels one step launches, and how much of the step they fill; a GPU that waits shows here."""
    calls = sum(kernel["calls"] for kernel in record.kernels)
    kernels_ms = sum(kernel["time_us"] for kernel in record.kernels) / 1e3
    what = "operators" if record.on_cpu else "kernels"
    words = f"*{_title(record.rung)}* on {device_title(record.device)}: {calls:,.0f} {what}"
    if record.on_cpu or not record.step_ms:
        return f"{words} in one step."
    step_ms = stats.quartiles(record.step_ms).median
    return f"{words}, {form.three_digits(kernels_ms)} ms of them in a step of {form.three_digits(step_ms)} ms."


def break_even(row: dict[str, Any], before: dict[str, Any]) -> str:
    """After how many steps the compile time of a rung is earned back, from the report rows of it and `before`."""
    where = f"{device_title(row['device'])}, profile {row['profile']}"
    if None in (row["compile_s"], before["step_ms_median"], row["step_ms_median"]):
        return f"{where}: nothing to compare ({row['reason'] or before['reason']})."
    compiled = f"{where}: compiling took {form.three_digits(row['compile_s'])} s ({row['compile_cache']} cache)"
    saved_ms = before["step_ms_median"] - row["step_ms_median"]
    if not row["speedup_step_clear"] or saved_ms <= 0:
        return f"{compiled}, and it is not earned back."
    return f"{compiled}, earned back after {1e3 * row['compile_s'] / saved_ms:,.0f} steps."


def contract_sentence(record: Record) -> str:
    """The verdict of one record's contract in words."""
    title, detail = f"*{_title(record.rung)}* on {device_title(record.device)}", record.contract_detail or {}
    if record.contract_verdict is None:
        return f"{title}: not compared ({record.reason})."
    if record.contract_verdict in ("reference", "differs"):
        words = f"{title}: {detail.get('note') or 'the start that the others are compared with'}."
        if "gap" in detail:
            seen, before = detail["curve"]["tokens"][-1], _title(detail["before"])
            words += (
                f" After {seen:,} tokens of the same text its loss stands {detail['gap']:+.3f} nats from that of "
                f"*{before}* (mean over the last tenth)."
            )
        return words
    if record.contract_verdict == "failed":
        return f"{title}: **failed**. {detail.get('note')}."
    before, steps = _title(detail["before"]), len(record.losses)
    if record.contract == "identical":
        return f"{title}: passed. All {steps} losses equal those of *{before}* bit for bit."
    return (
        f"{title}: passed. Over {steps} steps from the same weights and batches, dropout off, the loss differs from "
        f"*{before}* by at most {detail['largest_difference']:.2g} nats; {detail['tolerance']:g} is allowed."
    )


def lesson(row: dict[str, Any], before: dict[str, Any] | None) -> str:
    """One sentence on what a rung did to speed and memory on one device, from the report rows of it and `before`."""
    where = device_title(row["device"])
    title = _title(row["rung"])
    if row["status"] != "measured":
        return f"**{title}** on {where}: {row['status'].replace('_', ' ')}, {row['reason']}."
    if row["speedup_step"] is None or before is None:
        return f"**{title}** on {where}: {form.words_of(row, 'tokens_per_s')}; nothing to compare it with."
    words = f"**{title}** on {where}: {form.words_of(row, 'verdict_step')} than *{_title(before['rung'])}*"
    if not row["speedup_step_clear"]:
        words = f"**{title}** on {where}: no clear difference in speed to *{_title(before['rung'])}*"
    if row["peak_reserved_bytes"] and before["peak_reserved_bytes"]:
        was, now = form.gib(before["peak_reserved_bytes"]), form.gib(row["peak_reserved_bytes"])
        memory = f"still {now} GiB" if now == was else f"from {was} to {now} GiB"
        words += f"; peak reserved memory {memory}"
    if row["compile_s"]:
        words += f"; compiling took {form.three_digits(row['compile_s'])} s ({row['compile_cache']} cache)"
    return words + "."


def cards_table(rungs: Sequence[Rung]) -> str:
    """What becomes of each rung on common cards, by the rules that the program itself follows."""
    machines = [(card.title, machine_of(card.slug)) for card in CARDS if card.slug in COMMON_CARDS]
    machines.append(("CPU", Capabilities(device_type="cpu", cores=2)))
    cells = []
    several = len(rungs) > 1  # otherwise the page has named the one that it is about
    for rung in rungs:
        for title, machine in machines:
            recipe, substitutions = adapt(NINE_STEPS.recipe_at(rung.key), machine)
            below, _ = adapt(NINE_STEPS.recipe_at(NINE_STEPS.before(rung.key) or rung.key), machine)
            own = [s for s in substitutions if s.field in rung.change]
            kept = [f"{s.field}: {s.asked} -> {s.used}" for s in substitutions if s.field not in rung.change]
            state = "as written" if not own else "not available" if recipe == below else f"runs with {own[0].used}"
            named = rung.title if several else ""
            cells.append((named, title, state, own[0].reason if own else "", "; ".join(kept)))
    columns = ("optimization", "card", "this change", "reason", "earlier changes replaced")
    return Table("", columns, tuple(cells)).without_empty_columns().markdown()


def machine_of(slug: str) -> Capabilities:
    card = next(card for card in CARDS if card.slug == slug)
    return Capabilities(
        device_type="cuda", capability=card.capability, gpu_name=card.title, gpus=8, cores=8,
        gpu_memory_bytes=int(card.memory_gib * 2**30), multiprocessors=MULTIPROCESSORS[slug],
    )  # fmt: skip


def _calls_by_kind(record: Record) -> dict[str, float]:
    calls: dict[str, float] = {}
    for kernel in record.kernels:
        calls[kernel["kind"]] = calls.get(kernel["kind"], 0.0) + kernel["calls"]
    return calls


def _title(rung: str) -> str:
    return NINE_STEPS.rung(rung).title
