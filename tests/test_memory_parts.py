"""What held the memory along a ladder: figure, table and sentences say what the plan and the records say."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from records_helper import make_record, skipped_record

from speedlab.errors import BadInput
from speedlab.memory_plan import plan_memory
from speedlab.publishing import generated, memory_parts
from speedlab.publishing.plotting import alt_text, svg_text
from speedlab.recipe import Recipe
from speedlab.records.record import Record
from speedlab.records.store import write_record

RUNGS = ("baseline", "causal_mask", "bfloat16", "flash_attention")


def peak(record: Record) -> int:
    return plan_memory(Recipe.from_dict(record.recipe)).peak_allocated_bytes


def measured(rung: str, factor: float = 1.0, **changes) -> Record:
    """A record whose measured peak is `factor` times what is predicted."""
    plain = make_record(rung, **changes)
    bytes_ = round(factor * peak(plain))
    return make_record(rung, peak_allocated_bytes=bytes_, peak_reserved_bytes=2 * bytes_, **changes)


@pytest.fixture
def records() -> list[Record]:
    return [*(measured(rung, 1.02) for rung in RUNGS), skipped_record("padded_vocab")]


def test_the_bars_are_the_parts_and_the_lines_the_measured_peaks(records: list[Record]) -> None:
    figure = memory_parts.memory_parts(records)
    (axis,) = figure.axes
    ends = {}
    for bar in axis.patches:
        ends[round(bar.get_y() + bar.get_height() / 2)] = bar.get_x() + bar.get_width()
    predicted = [peak(record) / 2**30 for record in records[:4]]
    assert [ends[place] for place in range(4)] == pytest.approx(predicted)
    assert [line.get_xdata()[0] for line in axis.lines] == pytest.approx([1.02 * value for value in predicted])
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "activations" in legend and "buffers" in legend and "gradients" not in legend
    assert "peak allocated, measured" in legend
    assert svg_text(figure) == svg_text(memory_parts.memory_parts(records))


def test_the_description_names_rungs_parts_and_numbers(records: list[Record]) -> None:
    words = alt_text(memory_parts.memory_parts(records))
    for expected in ("ladder nine-steps", "Baseline 26.4 measured", "activations 19.4", "FlashAttention"):
        assert expected in words
    assert "Padded" not in words


def test_the_table_holds_the_same_and_the_error(records: list[Record]) -> None:
    table = memory_parts.parts_table(memory_parts.parts_of(records))
    assert table.columns[-3:] == ("predicted", "measured", "error")
    assert [line[0] for line in table.cells] == ["Baseline", "Causal mask on the fly", "bfloat16", "FlashAttention"]
    assert {line[-1] for line in table.cells} == {"\N{MINUS SIGN}2.0 %"}
    assert any("no gradient exists yet" in note for note in table.notes)


def test_sentences_name_the_rung_and_what_it_saved(records: list[Record]) -> None:
    whole = [measured(rung) for rung in (*RUNGS[:3], "native_layers", "flash_attention", "batch_size")]
    sentences = memory_parts.savings(memory_parts.parts_of(whole), "nine-steps")
    starts = [sentence.partition(";")[0] for sentence in sentences]
    assert starts[-1].startswith("**FlashAttention** saved 5.6")
    assert "activations \N{MINUS SIGN}5.6" in sentences[-1]
    # The stored mask is too little for a sentence, and a rung whose neighbour is missing has nothing to compare with.
    assert not any("Causal mask" in start or "bfloat16" in start or "Larger" in start for start in starts)


def test_what_grows_is_said_to_grow() -> None:
    pair = [measured("padded_vocab"), measured("batch_size")]
    (sentence,) = memory_parts.savings(memory_parts.parts_of(pair), "nine-steps")
    assert sentence.startswith("**Larger batch** added 14.")
    assert "activations +" in sentence and "logits +" in sentence


def test_where_cuda_graphs_replay_no_error_is_claimed() -> None:
    pair = [
        measured("torch_compile", ladder="six-steps"),
        measured("torch_compile_max_autotune", 0.4, ladder="six-steps"),
    ]
    found = memory_parts.parts_of(pair)
    table = memory_parts.parts_table(found)
    assert [line[-1] for line in table.cells] == ["0.0 %", "CUDA graphs"]
    assert memory_parts.GRAPHS_NOTE in table.notes
    assert memory_parts.savings(found, "six-steps") == []


def test_records_of_two_places_or_without_a_peak_are_refused() -> None:
    with pytest.raises(BadInput, match="2"):
        memory_parts.parts_of([make_record(), make_record(ladder="six-steps")])
    with pytest.raises(BadInput, match="none"):
        memory_parts.memory_parts([make_record(device="cpu", step_ms=20.0)])


def test_the_section_of_a_page(records: list[Record]) -> None:
    drawn: list[str] = []

    def draw(name: str, figure: matplotlib.figure.Figure, caption: str) -> str:
        drawn.append(name)
        return f"[{caption}]\n\n"

    words = memory_parts.memory_section([*records, measured("baseline", ladder="alone")], draw)
    assert drawn == ["nine-steps-nvidia-h200-memory-parts"]
    assert "### H200 SXM, ladder nine-steps" in words and "largest error" in words
    assert memory_parts.memory_section([], draw) == "No record with a peak of GPU memory is committed yet.\n"


def test_the_results_page_includes_it(tmp_path: Path, records: list[Record]) -> None:
    book = tmp_path / "book"
    book.mkdir()
    real = Path(__file__).resolve().parents[1] / "book"
    (book / "_config.yml").write_text((real / "_config.yml").read_text())
    for record in records:
        write_record(tmp_path / "records", record)
    written = generated.generate(book, records=tmp_path / "records")
    names = {path.name for path in written}
    assert {"memory_parts.md", "nine-steps-nvidia-h200-memory-parts.svg"} <= names
    assert "_generated/memory_parts.md" in (real / "results.md").read_text()


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0069, "+0.7 %"), (-0.0069, "\N{MINUS SIGN}0.7 %"), (-0.0001, "0.0 %"), (0.0, "0.0 %")],
)
def test_a_share_with_its_sign(share: float, words: str) -> None:
    assert memory_parts.signed_percent(share) == words
