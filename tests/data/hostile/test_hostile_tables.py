"""Hostile and odd tables of labels for ``medfl prep folder`` and tables of numbers for inference.

Further classes of input are in `tests/data/test_table.py` (delimiters, byte order mark, other encodings, duplicate
names, wrong numbers of cells, data in place of names) and in `tests/data/ingest/test_own_images.py` (missing cells,
paths that lead out of the folder, identifiers as labels).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile_checks import bounded, check_discreet, silent
from image_makers import picture
from own_cohort import SOME, prepare
from refusals import refused

from medfl.data.inference import load_rows
from medfl.data.table import MAX_TABLE_BYTES, read_table
from medfl.errors import DataError
from medfl.objectives import Multiclass

ROWS = "1.png,a\n2.png,b\n3.png,a\n4.png,b\n"
HEAD = "file,diagnosis\n"
LONG = "x" * 200_000
MANY = ",".join(f"gene{number}" for number in range(300_000))


def table(content: str | bytes) -> Callable[[Path], Path]:
    """Return a function that writes a table."""

    def make(folder: Path) -> Path:
        path = folder / "labels.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "labels.csv")
    return folder / "labels.csv"


def listening(folder: Path) -> Path:
    """Write a socket; its path is short, since a socket's path is limited to about 100 characters."""
    place = os.getcwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("labels.csv")
    finally:
        os.chdir(place)
    return folder / "labels.csv"


def link(target: str) -> Callable[[Path], Path]:
    """Return a function that writes a link as table."""

    def make(folder: Path) -> Path:
        (folder / "labels.csv").symlink_to(target)
        return folder / "labels.csv"

    return make


def sparse(folder: Path) -> Path:
    with (folder / "labels.csv").open("wb") as file:
        file.truncate(MAX_TABLE_BYTES + 1)
    return folder / "labels.csv"


REFUSED = {
    "a named pipe": (pipe, "not_a_file", {}),
    "a socket": (listening, "not_a_file", {}),
    "a device that never ends": (link("/dev/zero"), "not_a_file", {}),
    "a link to itself": (link("labels.csv"), "unreadable_file", {}),
    "a folder": (lambda folder: folder, "unreadable_file", {"reason": "Is a directory"}),
    "a file beyond the limit": (sparse, "file_too_large", {"found": MAX_TABLE_BYTES + 1}),
    "a workbook": (table(b"PK\3\4\x14\0\6\0\x08\0\0\0!\0Secret Sally\xff"), "wrong_encoding", {}),
    "a byte order mark only": (table("\ufeff"), "empty_table", {"found": 0}),
    "NUL bytes only": (table(bytes(1000)), "control_characters", {"rows": [1]}),
    "a NUL byte in a path": (
        table(HEAD + ROWS.replace("2.png", "Secret\0Sally.png")),
        "control_characters",
        {"rows": [3]},
    ),
    "codes of a terminal in a label": (
        table(HEAD + ROWS.replace("1.png,a", "1.png,\x1b]0;Sally\x07")),
        "control_characters",
        {"rows": [2]},
    ),
    "UTF-16 without a mark": (table((HEAD + ROWS).encode("utf-16-le")), "control_characters", {}),
    "a quote that never ends": (table(HEAD + ROWS + '"Secret Sally' + ROWS * 1000), "invalid_csv", {}),
    "a cell of 200,000 letters": (table(HEAD + ROWS + f"{LONG},a\n"), "invalid_csv", {}),
    "a first line of 200,000 letters": (table(f"{LONG},diagnosis\n{ROWS}"), "invalid_csv", {}),
    "300,000 columns": (table(f"file,diagnosis,{MANY}\n{ROWS}"), "too_many_columns", {"found": 300_002}),
    "90,000 equal columns": (table("a," * 90_000 + "b\n" + ROWS), "duplicate_name", {"columns": ["a"]}),
    "90,000 columns and not the one": (
        table(f"{MANY[:900_000]}\n" + "," * (MANY[:900_000].count(",") - 1) + "1\n"),
        "missing_column",
        {"columns": ["file", "diagnosis"]},
    ),
    "one column": (table("Secret Sally\n" + "1.png\n" * 4), "missing_column", {"columns": ["file", "diagnosis"]}),
    "a web page": (table("<html><body>Secret Sally</body></html>"), "empty_table", {"found": 1}),
    "a path of 5,000 letters": (table(HEAD + ROWS.replace("2.png", "Sally/" * 900)), "missing_image", {"rows": [3]}),
    "a web address as path": (table(HEAD + ROWS.replace("2.png", "http://host/sally.png")), "missing_image", {}),
    "a home folder as path": (table(HEAD + ROWS.replace("2.png", "~/sally.png")), "missing_image", {"rows": [3]}),
    "a pattern as path": (table(HEAD + ROWS.replace("2.png", "*")), "missing_image", {"rows": [3]}),
    "a formula as path": (
        table(HEAD + ROWS.replace("2.png", "=cmd|'/c calc Sally'!A1")),
        "missing_image",
        {"rows": [3]},
    ),
    "a path with a quoted line break": (
        table(HEAD + ROWS.replace("2.png", '"Secret\nSally.png"')),
        "missing_image",
        {"rows": [3]},
    ),
    "labels that differ in the form of a letter's case": (
        table(HEAD + "1.png,Ⅷ\n2.png,ⅷ\n3.png,Ⅷ\n4.png,ⅷ\n"),
        "ambiguous_labels",
        {},
    ),
}


@pytest.fixture
def images(tmp_path):
    """Write four images."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(1, 5):
        picture(folder / f"{number}.png", np.full((4, 4), number, np.uint8))
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_is_refused(images, tmp_path, case):
    make, code, fields = REFUSED[case]
    path = make(tmp_path)
    before = sorted(os.listdir(tmp_path))
    with silent(), bounded(tmp_path), refused(DataError, code, **fields) as error:
        prepare(images, path, SOME, (4, 4), tmp_path / "P")
    if code != "missing_column":  # names of columns may be shown
        check_discreet(error.value, tmp_path)
    assert len(str(error.value)) < 2000
    assert sorted(os.listdir(tmp_path)) == before, "nothing is left behind"


READ = {
    "semicolons, a mark and decimal commas, from Excel": (
        "\ufefffile;diagnosis;weight\r\n1.png;0,5 cm;70,5\r\n2.png;1,5 cm;\r\n3.png;0,5 cm;1\r\n4.png;1,5 cm;2\r\n",
        ["0,5 cm", "1,5 cm"],
    ),
    "the line of Excel that names the delimiter": ("sep=;\r\n" + (HEAD + ROWS).replace(",", ";"), ["a", "b"]),
    "line ends of an old Macintosh": ((HEAD + ROWS).replace("\n", "\r"), ["a", "b"]),
    "right-to-left labels": (HEAD + ROWS.replace(",a", ",سليم").replace(",b", ",חולה"), ["חולה", "سليم"]),
    "emoji as labels": (HEAD + ROWS.replace(",a", ",🫁").replace(",b", ",🦠"), ["🦠", "🫁"]),
    "formulas as labels": (
        HEAD + ROWS.replace(",a", ",=cmd|' /c calc'!A1").replace(",b", ",-b"),
        ["-b", "=cmd|' /c calc'!A1"],
    ),
    "quotes in quotes": (HEAD + ROWS.replace(",a", ',"the ""a"", or so"'), ['the "a", or so', "b"][::-1]),
    "line breaks in a cell": ("file,diagnosis,notes\n" + ROWS.replace("\n", ',"x\ny"\n'), ["a", "b"]),
    "line breaks of a database in a cell": ("file,diagnosis,notes\n" + ROWS.replace("\n", ",x\x0by\n"), ["a", "b"]),
    "spaces and empty columns": (
        "file , diagnosis,,\n" + ROWS.replace(",", " , ").replace("\n", ",,\n") + ",,,\n",
        ["a", "b"],
    ),
    "20,000 columns": (
        f"file,diagnosis,{MANY[:180_000]}\n" + ROWS.replace("\n", "," * (MANY[:180_000].count(",") + 1) + "\n"),
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("case", READ)
def test_an_odd_table_is_read(images, tmp_path, case):
    text, classes = READ[case]
    with silent(), bounded(tmp_path):
        datalist = prepare(images, table(text)(tmp_path), SOME, (4, 4), tmp_path / "P")
    assert list(datalist.labels.values()) == sorted(classes)
    assert sorted(record["label"] for record in datalist.splits["training"]) == [0, 0, 1, 1]


NUMBERS = {
    "decimal commas": ("a;b\n1,5;2\n", "not_finite", {"rows": [2]}),
    "digits with underscores": ("a,b\n1_000,2\n", "not_finite", {"rows": [2]}),
    "a number beyond float32": ("a,b\n1,1e39\n", "not_finite", {"rows": [2]}),
    "a number beyond float64": ("a,b\n1,1e999\n", "not_finite", {"rows": [2]}),
    "infinity": ("a,b\n1,inf\n", "not_finite", {"rows": [2]}),
    "hexadecimal digits": ("a,b\n1,0x10\n", "not_finite", {"rows": [2]}),
    "a date": ("a,b\n1,2024-01-02\n", "not_finite", {"rows": [2]}),
    "a formula": ("a,b\n1,=A1\n", "not_finite", {"rows": [2]}),
    "a name": ("a,b\n1,Secret Sally\n", "not_finite", {"rows": [2]}),
    "too few columns": ("a\n1\n", "wrong_column_count", {"found": 1}),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_a_table_of_other_cells_than_numbers_is_refused(tmp_path, case):
    text, code, fields = NUMBERS[case]
    path = table(text)(tmp_path)
    with silent(), refused(DataError, code, **fields) as error:
        load_rows(path, 2, Multiclass(2))
    check_discreet(error.value, tmp_path)


def test_numbers_in_the_digits_of_another_alphabet_are_read(tmp_path):
    rows = load_rows(table("a,b\n١٢,-3.5e2\n")(tmp_path), 2, Multiclass(2))
    assert rows[0]["image"].tolist() == [12, -350]


def test_rows_are_numbered_as_a_spreadsheet_shows_them(tmp_path):
    path = table('sep=;\na;b\n"x\ny";1\n\n2;3\n')(tmp_path)
    assert read_table(path).numbers == [2, 4]
