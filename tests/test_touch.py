"""Pieces to touch: their data against the package, and their arithmetic in JavaScript against Python's, by Node."""

import json
import math
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest

from speedlab import memory_fit
from speedlab.cards import CARDS
from speedlab.errors import BadInput
from speedlab.memory_plan import KNOWN_CHECKPOINTING, KNOWN_OPTIMIZERS, MODELLED, plan_memory
from speedlab.number_formats import FORMATS, bit_pattern, round_to, step_at
from speedlab.publishing import touch
from speedlab.publishing.sources import find_chapters, find_labs
from speedlab.publishing.touch_ladder import explorer_data
from speedlab.recipe import CHOICES, Recipe
from speedlab.records.rows import report_rows
from speedlab.records.store import committed_root, read_records

ROOT = Path(__file__).resolve().parents[1]
STATIC = ROOT / "book" / "_static"
SCRIPTS = sorted(STATIC.glob("*.js"))
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


def run_script(expression: str, data: Any) -> Any:
    """What a JavaScript expression gives for `data`, with all scripts of the book loaded; as JSON."""
    program = "".join(f"require({json.dumps(str(path))});" for path in SCRIPTS)
    program += f"const data = JSON.parse(require('fs').readFileSync(0)); console.log(JSON.stringify({expression}));"
    done = subprocess.run(["node", "-e", program], input=json.dumps(data), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def data_of(text: str) -> dict[str, Any]:
    return json.loads(re.search(r'<script type="application/json">(.*)</script>', text).group(1))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_small_and_ask_nobody(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 15_000
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|\bimport\b|innerHTML|\beval\(|localStorage", text)


@pytest.mark.parametrize("name", touch.PIECES)
def test_a_piece_has_its_data_a_word_without_scripts_and_a_table(name: str) -> None:
    text = touch.piece(name)
    assert f'data-touch="{name}"' in text
    assert 'class="touch-without-script"' in text
    assert "{dropdown}" in text and "| --- |" in text
    assert any(f'pieces["{name}"]' in path.read_text(encoding="utf-8") for path in SCRIPTS)
    assert data_of(text)


def test_data_cannot_end_its_own_element() -> None:
    text = touch.section("x", "X", {"words": "</script><b>&"}, otherwise="")
    assert data_of(text) == {"words": "</script><b>&"}
    assert text.count("</script>") == 1 and "<b>" not in text and "&" not in text


def test_an_unknown_piece_is_named() -> None:
    with pytest.raises(BadInput, match="attention-stepper"):
        touch.piece("slide-rule")


def test_each_piece_stands_in_one_notebook_and_nothing_asks_for_another() -> None:
    notebooks = {**find_chapters(ROOT / "notebooks"), **find_labs(ROOT / "notebooks")}
    asked = [
        name
        for path in notebooks.values()
        for name in re.findall(r"^# <!-- touch: (.*?) -->$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    assert sorted(asked) == sorted(touch.PIECES)


def test_a_notebook_gets_its_piece_where_it_asks_for_it() -> None:
    mark = "<!-- touch: number-formats -->"
    cells = [nbformat.v4.new_markdown_cell(f"Before.\n\n{mark}\n\nAfter."), nbformat.v4.new_code_cell(f"# {mark}")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    touch.insert_pieces(notebook)
    assert notebook.cells[0].source == f"Before.\n\n{touch.piece('number-formats')}\n\nAfter."
    assert notebook.cells[1].source == f"# {mark}"


def test_the_stepper_ends_at_softmax_for_every_size_of_tiles() -> None:
    data = touch.attention_data()
    weights = [math.exp(score) for score in data["scores"]]
    plain = math.fsum(w * v for w, v in zip(weights, data["values"], strict=True)) / math.fsum(weights)
    for tile, steps in data["steps"].items():
        assert [step["first"] for step in steps] == list(range(0, len(data["scores"]), int(tile)))
        assert steps[-1]["new_output"] / steps[-1]["new_sum"] == pytest.approx(plain, rel=1e-12)
        assert steps[0]["old_max"] is None


@needs_node
def test_the_page_s_own_softmax_is_the_plain_one() -> None:
    data = touch.attention_data()
    ends = [steps[-1]["new_output"] / steps[-1]["new_sum"] for steps in data["steps"].values()]
    assert run_script("speedlab.plainAttention(data.scores, data.values)", data) == pytest.approx(ends[0], rel=1e-12)


def numbers() -> list[float]:
    """Values of every size, values between two neighbours of a format, the ends of ranges, zeros and infinities."""
    draw = random.Random(5)
    values = [draw.uniform(-1, 1) * 2.0 ** draw.randint(-160, 140) for _ in range(3000)]
    for form in FORMATS.values():
        for _ in range(200):  # exactly half way between neighbours, where ties go to the even one
            low = round_to(draw.uniform(1, 2) * 2.0 ** draw.randint(form.smallest_exponent - 2, form.bias - 1), form)
            values.append(low + step_at(low, form) / 2)
        values += [form.largest, math.nextafter(form.largest, math.inf), form.largest * 1.1, form.smallest_normal]
        values += [form.smallest_subnormal, form.smallest_subnormal / 2, form.smallest_subnormal / 2 * 1.0001]
    return [*values, *(-value for value in values), 0.0, 5e-324, 1.7976931348623157e308]


@needs_node
@pytest.mark.parametrize("name", FORMATS)
def test_rounding_and_bits_are_those_of_the_package(name: str) -> None:
    form, values = FORMATS[name], numbers()
    said = next(item for item in touch.number_format_data()["formats"] if item["name"] == name)
    expression = (
        "data.values.map((value) => { const held = speedlab.roundTo(value, data.form);"
        "return [Number.isNaN(held) ? 'nan' : String(held), speedlab.bitPattern(held, data.form).join(' ')]; })"
    )
    for value, (held, bits) in zip(values, run_script(expression, {"values": values, "form": said}), strict=True):
        expected = round_to(value, form)
        if math.isnan(expected):
            assert held == "nan"
        else:
            got = float(held.replace("Infinity", "inf"))
            assert struct.pack("d", abs(got)) == struct.pack("d", abs(expected)), value
            assert bits == bit_pattern(expected, form)


def random_recipes(count: int) -> list[Recipe]:
    draw = random.Random(11)
    known = {"optimizer": KNOWN_OPTIMIZERS, "checkpointing": KNOWN_CHECKPOINTING}
    fields = {name: known.get(name, values) for name, values in CHOICES.items() if name in MODELLED}
    recipes = []
    for _ in range(count):
        heads = draw.choice((1, 2, 3, 12, 16))
        recipes.append(
            Recipe(
                **{name: draw.choice(values) for name, values in fields.items()},
                num_layers=draw.randint(1, 25), num_heads=heads, embedding_width=heads * draw.choice((8, 50, 64)),
                context_length=draw.choice((1, 63, 256, 1024, 4096)), vocab_size=draw.choice((7, 1000, 50_257, 50_304)),
                dropout=draw.choice((0.0, 0.1)), micro_batch=draw.choice((1, 3, 8, 64)),
                accumulation=draw.choice((1, 4)), data_parallel=draw.choice((1, 2)),
            )
        )  # fmt: skip
    return recipes


@needs_node
def test_the_calculator_s_formulas_are_the_planner_s_to_the_byte() -> None:
    recipes = random_recipes(250)
    cards = [CARDS[number % len(CARDS)] for number in range(len(recipes))]
    pairs = [
        {"recipe": recipe.as_dict(), "capability": card.capability, "memory_gib": card.memory_gib}
        for recipe, card in zip(recipes, cards, strict=True)
    ]
    expression = (
        "data.pairs.map(({recipe, ...card}) => [speedlab.planMemory(recipe, card.capability, data.known),"
        "speedlab.neededBytes(recipe, card, data.known), speedlab.largestMicroBatch(recipe, card, data.known)])"
    )
    plans = run_script(expression, {"pairs": pairs, "known": touch.memory_constants()})
    moments = set()
    for recipe, card, (plan, needed, largest) in zip(recipes, cards, plans, strict=True):
        expected = plan_memory(recipe, capability=card.capability)
        assert plan["moments"] == expected.moments, recipe
        assert (plan["peakAt"], plan["peakBytes"]) == (expected.peak_at, expected.peak_allocated_bytes)
        assert abs(needed - memory_fit.needed_bytes(recipe, card)) <= 1  # halves are rounded up here, to even there
        assert largest == memory_fit.largest_micro_batch(recipe, card)
        moments.add(plan["peakAt"])
    assert len(moments) >= 3  # the recipes reach different moments, not only one


@needs_node
def test_a_page_notices_formulas_that_differ() -> None:
    data = touch.memory_data()
    assert run_script("speedlab.wrongPlans(data)", data) == []
    data["presets"][3]["peak_bytes"] += 1
    data["known"]["workspace_threads"] += 1
    assert len(run_script("speedlab.wrongPlans(data)", data)) == len(data["presets"])


def test_the_calculator_offers_what_the_formulas_know() -> None:
    offered = {choice["field"]: choice["values"] for choice in touch.memory_data()["choices"]}
    for field, values in offered.items():
        assert field in MODELLED
        assert values and set(values) <= set(CHOICES[field])
    assert set(offered["optimizer"]) == set(KNOWN_OPTIMIZERS)


def test_the_explorer_keeps_measured_and_published_apart() -> None:
    rows = report_rows(read_records(committed_root()))
    groups = explorer_data(rows)["groups"]
    measured = [group for group in groups if not group["published"]]
    assert sum(len(group["rows"]) for group in measured) == len(rows)
    assert {row["tokens_per_s"] for group in measured for row in group["rows"]} == {row["tokens_per_s"] for row in rows}
    published = [group for group in groups if group["published"]]
    assert published and all("published" in group["card"] for group in published)
    assert not {group["card"] for group in measured} & {group["card"] for group in published}
    assert json.dumps(groups, allow_nan=False)


@needs_node
def test_the_explorer_s_order() -> None:
    rows = [{"v": 2.0}, {"v": None}, {"v": 3.0}]
    orders = {
        order: run_script(f"speedlab.orderedRows(data, 'v', '{order}')", rows) for order in ("ladder", "most", "least")
    }
    assert [row["v"] for row in orders["ladder"]] == [2.0, None, 3.0]
    assert [row["v"] for row in orders["most"]] == [3.0, 2.0, None]
    assert [row["v"] for row in orders["least"]] == [2.0, 3.0, None]
