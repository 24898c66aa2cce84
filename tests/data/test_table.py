"""Test tables as spreadsheets write them."""

from __future__ import annotations

import pytest
from refusals import refused

from medfl.data.table import read_table, row_list
from medfl.errors import DataError


def write(tmp_path, text: str | bytes):
    path = tmp_path / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_what_spreadsheets_write(tmp_path, mark, end, start):
    lines = [
        ("file", " note", "label"),
        ("a b.png", f'"one{mark}{end}two"', " yes "),
        ("", "", ""),
        ("c", '"7"""', "no"),
    ]
    table = read_table(write(tmp_path, start + end.join(mark.join(line) for line in lines) + end))
    assert table.columns == ["file", "note", "label"]
    assert table.rows == [
        {"file": "a b.png", "note": f"one{mark}{end}two", "label": "yes"},
        {"file": "c", "note": '7"', "label": "no"},
    ]
    assert table.numbers == [2, 4], "as a spreadsheet counts: names are row 1, an empty row counts too"


def test_commas_in_a_table_with_semicolons(tmp_path):
    table = read_table(write(tmp_path, 'file;"age, years";label\na;"1,5";x\n'))
    assert table.rows == [{"file": "a", "age, years": "1,5", "label": "x"}]


def test_strange_line_separators_are_text(tmp_path):
    assert read_table(write(tmp_path, "a,b\n1\u20282,3\n")).rows == [{"a": "1\u20282", "b": "3"}]


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("", "empty_table", {"found": 0}),
        ("\n\n,,\n", "empty_table", {"found": 0}),
        ("file,label\n", "empty_table", {"found": 1}),
        ("file,file,label\na,b,c\n", "duplicate_name", {"columns": ["file"]}),
        ("file,label\na,b\nc\nd,e\nf,g,h\n", "wrong_cell_count", {"expected": 2, "rows": [3, 5]}),
        ('file,label\n"a,b\n', "invalid_csv", {}),
        ("Größe,label\n1,2\n".encode("latin-1"), "wrong_encoding", {}),
        ("file,label\n1,2\n".encode("utf-16"), "wrong_encoding", {}),
    ],
)
def test_what_is_no_table(tmp_path, text, code, fields):
    path = write(tmp_path, text)
    with refused(DataError, code, path=str(path), **fields):
        read_table(path)
    with refused(DataError, "unreadable_file", path=str(tmp_path / "none.csv"), reason="No such file or directory"):
        read_table(tmp_path / "none.csv")


def test_missing_columns_are_named_together(tmp_path):
    table = read_table(write(tmp_path, "file,label\na,b\n"))
    with refused(DataError, "missing_column", columns=["lable", "who"]) as error:
        table.require(["lable", "file", "who"])
    assert "the table has the columns 'file', 'label'. Did you mean 'label'?" in str(error.value)


def test_empty_cells_are_counted(tmp_path):
    table = read_table(write(tmp_path, "file,label\na,x\nb,\nc, \n"))
    with refused(DataError, "missing_value", column="label", rows=[3, 4]):
        table.column("label")
    assert table.column("label", filled=False) == ["x", "", ""]


def test_long_lists_of_rows_are_cut():
    assert row_list([7]) == "table row 7"
    assert row_list([9, 2]) == "table rows 2, 9"
    assert row_list(range(2, 30)) == "table rows 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ..."


@pytest.mark.parametrize("first", ["P-7,secret.png,benign", "7,sally,benign", "north,secret.dcm,north"])
def test_a_table_without_names_of_columns_is_not_repeated(tmp_path, first):
    """Without column names, the first line is a patient's row."""
    path = write(tmp_path, f"{first}\n{first}\n")
    with refused(DataError, "missing_header", path=str(path)) as error:
        read_table(path).require(["file"])
    disclosed = f"{error.value}{error.value.fields}".replace(str(path), "")
    assert not any(cell in disclosed for cell in first.split(","))
