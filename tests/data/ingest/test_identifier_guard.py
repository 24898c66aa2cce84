"""Guard against identifiers, on tables as hospitals export them: names, dates and record numbers are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from medfl.data.ingest.columns.identifier_guard import refuse_identifiers
from medfl.data.ingest.columns.labels import TableColumns, read_rows
from medfl.data.ingest.columns.target_option import parse_target
from medfl.data.ingest.columns.target_values import read_targets
from medfl.data.table import CsvTable, read_table
from medfl.errors import DataError

SURNAMES = ["Adler", "Busch", "Conrad", "Dietz", "Ebert", "Franke", "Graf", "Huber", "Iwan", "Jung", "Kern", "Lang"]
HEBREW = ["כהן", "לוי", "מזרחי", "פרץ", "ביטון", "דהן", "אברהם", "פרידמן", "מלכה", "אזולאי", "כץ", "יוסף"]
ARABIC = ["محمد", "أحمد", "فاطمة", "علي", "مريم", "حسن", "ليلى", "عمر", "سارة", "خالد", "نور", "زينب"]
ROWS = range(12)

COLUMNS: dict[str, list[str]] = {
    "Patient_ID": [f"P-{row:04d}" for row in ROWS],
    "MRN": [str(88123450 + 7 * row) for row in ROWS],
    "Fallnummer": [str(4000 + row) for row in ROWS],
    "geburtsdatum": [f"{row + 1:02d}.03.19{50 + row}" for row in ROWS],
    "DOB": [f"19{50 + row}-0{row % 9 + 1}-12" for row in ROWS],
    "Untersuchung": [f"{row + 1}/{row + 2}/2021" for row in ROWS],
    "visit": [f"202103{row + 10}" for row in ROWS],
    "Nachname": SURNAMES,
    "last name": SURNAMES,
    "reader": [f"{name}, Eva" for name in SURNAMES],
    "שם": HEBREW,
    "מטופל": HEBREW,
    "الاسم": ARABIC,
    "مريض": ARABIC,
    "accession number": [str(100 + row) for row in ROWS],
    "key": [str(9912345678 - 31 * row) for row in ROWS],
    "barcode": [f"00{731 + 13 * row}" for row in ROWS],
    "line": [str(row + 1) for row in ROWS],
    "PatientName": ["Adler^Eva", "Busch^Jan"] * 6,
    "export": ["12-Mar-2020", "12MAR2020", "12. März 2020", "March 12, 2020"] * 3,
    "seen": ["Mar-20", "April 2020", "mars 2020"] * 4,
    "died": ["alive", "alive", "alive", "03.04.2021"] * 3,
    "doctor": ["Dr. Adler", "Dr. Busch"] * 6,
    "who": ["Adler^Eva", "Busch^Jan"] * 6,
    "postcode": ["10115", "10117", "10119"] * 4,
}
"""Maps each identifying column to its cells."""

HARMLESS: dict[str, list[str]] = {
    "age": [str(40 + row) for row in ROWS],
    "Alter [Jahre]": [f"{40 + 2 * row},5" for row in ROWS],
    "survival_months": [f"{row + 0.5:.1f}" for row in ROWS],
    "follow_up_days": [str(3650 - 17 * row) for row in ROWS],
    "platelets": [str(150000 + 997 * row) for row in ROWS],
    "number_of_nodes": ["0", "1", "2"] * 4,
    "birth_weight": [str(2500 + 50 * row) for row in ROWS],
    "scanner_id": ["A", "B"] * 6,
    "diagnosis": ["Ductal Carcinoma", "Lobular Carcinoma", "Fibroadenoma"] * 4,
    "תוצאה": ["חיובי", "שלילי"] * 6,
    "النتيجة": ["إيجابي", "سلبي"] * 6,
    "sex": ["f", "m"] * 6,
    "software": ["5.2.12", "syngo MR E11", "VB20A"] * 4,
    "stage": ["T1 N0", "T2 N1", "May be T3"] * 4,
    "season": ["march", "may", "juin"] * 4,
    "marker": ["Mar 1", "Dec-1", "Sept-9"] * 4,
    "drug": ["drotaverine", "profen", "DR"] * 4,
    "retinopathy": ["DR mild", "no DR", "dr moderate"] * 4,
    "group": ["decile 10", "Marker 2020", "juvenile 12"] * 4,
}
"""Maps each column that may be used to its cells."""


def write(folder: Path, columns: dict[str, list[str]], mark: str = ";") -> CsvTable:
    """Write a table as Excel does: with a byte order mark and line ends of two characters."""
    lines = [mark.join(columns), *(mark.join(cells) for cells in zip(*columns.values(), strict=True))]
    path = folder / "table.csv"
    path.write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    return read_table(path)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_that_identifies_patients_is_refused_without_its_cells(column: str, tmp_path: Path) -> None:
    table = write(tmp_path, {column: COLUMNS[column], **HARMLESS})
    cells = table.column(column)
    with refused(DataError, "identifying_column", column=column) as caught:
        refuse_identifiers(column, cells)
    assert not any(cell in str(caught.value) for cell in cells if len(cell) > 3)


@pytest.mark.parametrize("column", HARMLESS)
def test_ages_times_and_diagnoses_pass(column: str, tmp_path: Path) -> None:
    refuse_identifiers(column, write(tmp_path, HARMLESS).column(column))


@pytest.mark.parametrize("kind", ["class", "number", "multilabel"])
@pytest.mark.parametrize("column", ["MRN", "geburtsdatum", "Nachname"])
def test_an_identifier_is_no_target_of_any_kind(kind: str, column: str, tmp_path: Path) -> None:
    table = write(tmp_path, {column: COLUMNS[column], **HARMLESS})
    with refused(DataError, "identifying_column", column=column):
        read_targets(table, parse_target(f"{kind}:{column}"))


@pytest.mark.parametrize("option", [{"keep": ("Nachname",)}, {"site": "Nachname"}, {"site": "geburtsdatum"}])
def test_an_identifier_is_neither_kept_nor_a_site(option: dict[str, str], tmp_path: Path) -> None:
    table = write(tmp_path, COLUMNS | HARMLESS)
    with refused(DataError, "identifying_column"):
        read_rows(table, TableColumns(None, "class:diagnosis", **option))


def test_classes_that_name_the_patients_are_refused(tmp_path: Path) -> None:
    columns = {"who": ["a", "a", "a", "b", "b", "b", "c", "c", "c"] + ["d"] * 3, "alias": ["x"] * 3 + ["y"] * 3}
    columns["alias"] += ["z"] * 3 + ["w"] * 3
    table = write(tmp_path, columns)
    with refused(DataError, "identifying_column", column="alias"):
        read_targets(table, parse_target("class:alias"), group_column="who")
    assert read_targets(table, parse_target("class:alias")).values.groups == ("w", "x", "y", "z")
