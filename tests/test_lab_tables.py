"""Tables of a lab: rows and columns that say something, numbers to the right, long ones folded."""

from speedlab.lab import MOST_ROWS, rows_table

ROW = {"status": "measured", "reason": None}


def test_rows_without_a_name_and_columns_without_a_value_are_left_out() -> None:
    rows = [ROW | {"kind": "a", "ms": 1.5, "fused": True}, ROW | {"other": 3, "ms": 7.0}]
    rows.append({"status": "out_of_memory", "reason": "too large", "kind": "b"})
    table = rows_table(rows, {"kind": "kind", "empty": "nowhere", "fused": "fused", "ms": "ms"})
    assert table.splitlines() == [
        "| kind | fused | ms |",
        "| --- | --- | ---: |",
        "| a | yes | 1.5 |",
        "| b | – | out of memory: too large |",  # noqa: RUF001
    ]


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    columns = {
        "name": "name",
        "n": "n",
        "share": lambda row: f"{row['n']:.1f} %",
        "words": lambda row: f"{row['n']} of 9",
    }
    table = rows_table([ROW | {"name": "x", "n": 16384}, ROW | {"name": "y", "n": 2}], columns)
    assert table.splitlines()[1:3] == ["| --- | ---: | ---: | --- |", "| x | 16,384 | 16384.0 % | 16384 of 9 |"]


def test_a_table_longer_than_a_screen_is_folded_and_whole() -> None:
    short = rows_table([ROW | {"n": n} for n in range(MOST_ROWS)], {"n": "n"})
    long = rows_table([ROW | {"n": n} for n in range(MOST_ROWS + 1)], {"n": "n"})
    assert "<details>" not in short
    assert long.startswith(f"<details>\n<summary>All {MOST_ROWS + 1} rows</summary>\n\n| n |") and "| 24 |" in long
    assert long.endswith("\n\n</details>\n")
