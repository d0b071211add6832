"""What a page makes of a notebook's code and of running text: wrapped prose, folded cells, typeset numbers."""

import ast

import pytest
from docutils import nodes
from docutils.utils import new_document

from speedlab.model import attention, layers
from speedlab.publishing.page_cells import only_lays_out, page_tags
from speedlab.publishing.source_text import source_block, wrap_prose
from speedlab.publishing.typography import typeset, typeset_page

LONG = "words that go on " * 12


@pytest.mark.parametrize(
    ("written", "set_as"),
    [
        ("from 5 ms to -0.1 %", "from 5~ms to MINUS0.1~%"),
        ("26.1 -> 13.7 GiB", "26.1 → 13.7~GiB"),
        ("(-0.5)", "(MINUS0.5)"),
        ("10-30 % on 2026-11-29", "10-30~% on 2026-11-29"),
        ("1e-5, bf16-2, x->y, a -> b", "1e-5, bf16-2, x->y, a → b"),
        ("5 msec, 5 s and 3 sequences", "5 msec, 5~s and 3 sequences"),
        ("4.24 TB/s of 4.80 TB", "4.24~TB/s of 4.80~TB"),
    ],
)
def test_running_text_is_typeset(written: str, set_as: str) -> None:
    assert typeset(written) == set_as.replace("~", "\N{NO-BREAK SPACE}").replace("MINUS", "\N{MINUS SIGN}")


def test_code_of_a_page_stays_as_it_is_written() -> None:
    page = new_document("page")
    page += nodes.paragraph("", "", nodes.Text("so 2 ms -> "), nodes.literal("", "a -> -1"), nodes.strong("", "3 ms"))
    page += nodes.literal_block("", "x -> 5 ms")
    typeset_page(None, page)  # type: ignore[arg-type]
    assert page[0].astext() == "so 2\N{NO-BREAK SPACE}ms → a -> -13\N{NO-BREAK SPACE}ms"
    assert page[1].astext() == "x -> 5 ms"


def test_prose_of_a_source_is_wrapped_and_its_code_is_not() -> None:
    source = (
        f'def f(x):\n    """{LONG.strip()}.\n\n    x: {LONG.strip()}\n    """\n    # {LONG.strip()}\n'
        f'    value = "{LONG}"  # {LONG.strip()}\n    return value\n'
    )
    wrapped = wrap_prose(source)
    too_long = [line for line in wrapped.splitlines() if len(line) > 88]
    assert len(too_long) == 1 and too_long[0].lstrip().startswith("value =")
    assert ast.dump(ast.parse(_words_only(source))) == ast.dump(ast.parse(_words_only(wrapped)))
    assert wrapped.split() != source.split() and [w for w in wrapped.split() if w != "#"] == [
        w for w in source.split() if w != "#"
    ]


def test_a_sentence_over_two_filled_lines_is_wrapped_as_one() -> None:
    filled = "word " * 20 + "end"
    source = f'def f():\n    """{filled}\n    tail.\n\n    x: {filled}\n    y: another.\n    """\n'
    lines = wrap_prose(source).splitlines()
    assert "end tail." in lines[2] and "    y: another." in lines and max(map(len, lines)) <= 88


def _words_only(source: str) -> str:
    """The source with its docstring's white space made one space, so that only the code is compared."""
    tree = ast.parse(source)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    expression = function.body[0]
    assert isinstance(expression, ast.Expr) and isinstance(expression.value, ast.Constant)
    expression.value.value = " ".join(str(expression.value.value).split())
    return ast.unparse(tree)


@pytest.mark.parametrize("thing", [attention.FusedAttention, layers.HandwrittenGELU, (attention, "MASKS")])
def test_the_shown_source_of_the_package_is_its_own(thing) -> None:
    block = source_block(thing)
    code = block.removeprefix("```python\n").removesuffix("```\n")
    name = thing[1] if isinstance(thing, tuple) else thing.__name__
    assert name in code and ast.parse(code).body
    with pytest.raises(ValueError, match="assigns no GONE"):
        source_block((attention, "GONE"))


@pytest.mark.parametrize(
    ("source", "folded"),
    [
        ('lab.show_table(\n    "x",\n    {"a": "b"},\n)\n', True),
        ('COMMON = {"a": "b"}\nlab.show_table("x", COMMON)\nlab.show_words("x", f)\nlab.show_figure("x", f)', True),
        ('lab.show_table("x", {})', False),  # short
        ("lab.show_code(\n    f,\n    g,\n)", False),
        ('for x in y:\n    lab.show_table(\n        "x",\n    )', False),
        ("%pip install x\n\n\nlab.show_table()", False),
        ('import x\n\nlab.show_table(\n    "x",\n)', False),
        ('A = {\n    "a": 1,\n    "b": 2,\n}', False),
    ],
)
def test_a_cell_that_only_lays_out_is_folded(source: str, folded: bool) -> None:
    assert only_lays_out(source) is folded
    assert page_tags(source, ["parameters"]) == ["parameters", "remove-input"] + ["hide-input"] * folded
