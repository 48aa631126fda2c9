"""Tables print the same cells in every form, and keep full values underneath."""

import csv
import io
import subprocess
import sys

import numpy as np
import pytest

from vkconv.table import Column, Table, format_cell, format_number


@pytest.fixture
def table() -> Table:
    columns = (Column("node"), Column("time", unit="us"), Column("share", unit="%", digits=3), Column("fused"))
    rows = [
        ("conv|1", 1234.5678, 61.72839, True),
        ("relu <2>", 12.345678, 0.6172, None),
        ("softmax", None, 37.654, False),
    ]
    return Table("page.onnx on llvmpipe", columns, rows)


def test_plain_text_is_aligned(table: Table) -> None:
    assert str(table) == (
        "page.onnx on llvmpipe\n"
        "node      time [us]  share [%]  fused\n"
        "--------  ---------  ---------  -----\n"
        "conv|1         1235       61.7  yes\n"
        "relu <2>      12.35      0.617\n"
        "softmax                   37.7  no"
    )


def test_markdown_escapes_pipes(table: Table) -> None:
    assert table.to_markdown() == (
        "**page.onnx on llvmpipe**\n"
        "\n"
        "| node | time [us] | share [%] | fused |\n"
        "| --- | --: | --: | --- |\n"
        "| conv\\|1 | 1235 | 61.7 | yes |\n"
        "| relu &lt;2&gt; | 12.35 | 0.617 |  |\n"
        "| softmax |  | 37.7 | no |"
    )


def test_csv_keeps_every_digit(table: Table) -> None:
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert rows[0] == ["node", "time [us]", "share [%]", "fused"]
    assert float(rows[1][1]) == 1234.5678
    assert rows[3][1] == ""


def test_rows_are_dicts_of_values(table: Table) -> None:
    assert table.rows[1] == {"node": "relu <2>", "time": 12.345678, "share": 0.6172, "fused": None}


def test_html_is_escaped(table: Table) -> None:
    text = table._repr_html_()
    assert "relu &lt;2&gt;" in text
    assert '<td style="text-align: right">12.35</td>' in text


def test_rich_prints_brackets_as_they_are(table: Table) -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "time [us]" in printed
    assert "12.35" in printed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1.000"),
        (9.9996, "10.00"),
        (-12.345678, "-12.35"),
        (123456.7, "123457"),
        (0.00123456, "0.001235"),
        (0.0001, "0.0001000"),
        (0.00009999, "9.999e-05"),
        (0.000099999, "0.0001000"),
        (3.25e17, "3.250e+17"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert format_number(value) == text


def test_cells_of_numpy_and_text() -> None:
    assert format_cell(np.float32(2.5)) == "2.500"
    assert format_cell(np.int64(7)) == "7"
    assert format_cell("two\nlines") == "two lines"


def test_an_uneven_row_is_refused_with_both_counts() -> None:
    with pytest.raises(ValueError, match="row 1 of 't' has 1 cells, not 2"):
        Table("t", (Column("a"), Column("b")), [(1, 2), (3,)])


def test_a_table_without_rows_still_prints() -> None:
    assert str(Table("", (Column("a"), Column("b", "ms")), [])) == "a  b [ms]\n-  ------"


def test_importing_tables_does_not_import_rich() -> None:
    code = "import sys, vkconv.table; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
