"""Test that labels of a hospital's own table join the studies of a store, without anything that identifies patients."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
from dicomweb_server import DicomwebServer, serving_dicomweb
from pacs_images import Place, content_of, plain_instance
from refusals import refused

from medfl.data.readers.series_folder import find_series
from medfl.data.table import read_table
from medfl.errors import DataError

for package in ("dicomweb_client", "dicomanonymizer"):
    pytest.importorskip(package, reason=f"needs {package}, from the extra pacs")

from medfl_pacs.image_store import open_store  # noqa: E402
from medfl_pacs.label_table import StudyRow, _explain_mismatch, join_labels  # noqa: E402
from medfl_pacs.pseudonyms import Pseudonyms, open_key  # noqa: E402

PLACES = [Place(1), Place(1, 1, 2), Place(2), Place(2, 2), Place(3)]
"""Patient 1 has two series of one study, patient 2 has two studies."""

CLINIC = """PID;finding;age
PID-7312-X1;clear;59
PID-7312-X2;nodule;61
PID-9999;clear;70
"""


@pytest.fixture
def store(medfl, tmp_path: Path) -> Path:
    """A store of five series of three patients."""
    contents = {place: content_of(plain_instance(place)) for place in PLACES}
    with serving_dicomweb(DicomwebServer(contents)) as server:
        words = ("--query", "Modality=CT", "--out", tmp_path / "s", "--key", tmp_path / "key")
        assert medfl("pacs", "dicomweb", server.url, *words)[0] == 0
    (tmp_path / "clinic.csv").write_text("\ufeff" + CLINIC, encoding="utf-8")
    return tmp_path / "s"


def label(medfl, store: Path, *options: object) -> tuple[int, str, str]:
    return medfl(
        "pacs", "labels", store, "--table", store.parent / "clinic.csv", "--key", store.parent / "key", *options
    )


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


def test_each_study_of_a_patient_gets_the_patients_labels(medfl, store: Path):
    status, out, err = label(medfl, store, "--patient-column", "PID", "--column", "finding", "--column", "age")
    assert status == 0, err
    assert "3 studies with labels, 1 without" in out
    assert "table row 4" in out
    assert "PID-" not in out + (store / "labels.csv").read_text()
    pseudonyms, _ = open_key(store.parent / "key", store)
    table = rows(store / "labels.csv")
    assert sorted((row["patient"], row["series"], row["finding"], row["age"]) for row in table) == sorted(
        (pseudonyms.patient(f"PID-7312-X{number}"), series, finding, age)
        for number, series, finding, age in (
            (1, "2", "clear", "59"),
            (2, "1", "nodule", "61"),
            (2, "1", "nodule", "61"),
        )
    )
    assert all(row["folder"] == f"images/{row['study']}" and (store / row["folder"]).is_dir() for row in table)


def test_a_study_gets_its_own_labels_in_a_folder_of_stores(medfl, store: Path):
    clinic = store.parent / "clinic.csv"
    clinic.write_text(f"study,finding\n{Place(2, 2).study_uid},late\n")
    out = store.parent / "tables" / "labels.csv"
    words = ("--study-column", "study", "--column", "finding", "--images", store.parent, "--out", out)
    assert label(medfl, store, *words)[0] == 0
    pseudonyms, _ = open_key(store.parent / "key", store)
    study = pseudonyms.uid(Place(2, 2).study_uid)
    assert [(row["folder"], row["finding"]) for row in rows(out)] == [(f"s/images/{study}", "late")]


@pytest.mark.parametrize(
    ("text", "columns", "code", "fields"),
    [
        (CLINIC, ["PID"], "identifying_column", {"column": "PID"}),
        (CLINIC, ["diagnosis"], "missing_column", {"columns": ["diagnosis"]}),
        (CLINIC.replace("PID;finding", "PID;patient"), ["patient"], "duplicate_name", {"columns": ["patient"]}),
        (CLINIC.replace("X2", "X1"), ["finding"], "duplicate_row", {"rows": [2, 3]}),
        (CLINIC.replace("PID-7312-", "07312-"), ["finding"], "no_match", {"total": 3, "cause": "unknown"}),
        (CLINIC.replace("PID-7312-X", "pid-7312-x"), ["finding"], "no_match", {"cause": "letter_case"}),
        (f"PID;finding\n{Place(1).study_uid};clear\n", ["finding"], "no_match", {"cause": "other_option"}),
    ],
)
def test_tables_that_do_not_fit(store: Path, text: str, columns: list[str], code: str, fields: dict):
    clinic = store.parent / "clinic.csv"
    clinic.write_text(text)
    pseudonyms, _ = open_key(store.parent / "key", store)
    with open_store(store, pseudonyms) as opened, refused(DataError, code, **fields) as error:
        join_labels(opened, read_table(clinic), id_column="PID", by_study=False, columns=columns, images=store)
    assert "7312" not in str(error.value)


@pytest.mark.parametrize(
    ("stored", "key", "cause"),
    [
        ("0007312", "7312", "leading_zeros"),
        ("7312", "0007312", "added_zeros"),
        ("7312", "7312.0", "decimal"),
        ("AB7312", "AB-73 12", "punctuation"),
        ("7312", "7313", "unknown"),
    ],
)
def test_the_error_names_what_an_export_changed_and_no_identifier(stored: str, key: str, cause: str):
    pseudonyms = Pseudonyms(bytes(32))
    studies = [StudyRow(pseudonyms.patient(stored), pseudonyms.uid("1.2"), "CT", 1, "")]
    code, advice = _explain_mismatch(SimpleNamespace(pseudonyms=pseudonyms), studies, ["999", key], by_study=False)
    assert code == cause
    assert "73" not in advice
    assert (
        _explain_mismatch(SimpleNamespace(pseudonyms=pseudonyms), studies, [stored], by_study=True)[0] == "other_option"
    )


def test_a_table_with_pseudonyms_is_refused_with_the_rows(medfl, store: Path):
    table, clinic = rows(store / "images.csv"), store.parent / "clinic.csv"
    for column, option in (("patient", "--patient-column"), ("study", "--study-column")):
        clinic.write_text(f"PID;finding\nPID-7312-X1;clear\n{table[0][column]};nodule\n")
        status, _, err = label(medfl, store, option, "PID", "--column", "finding")
        assert status == 2, err
        assert "table row 3" in err
        assert table[0][column] not in err
        assert "7312" not in err


def test_options_that_do_not_fit(medfl, store: Path):
    assert label(medfl, store, "--column", "finding")[0] == 2
    assert label(medfl, store, "--column", "finding", "--patient-column", "PID", "--study-column", "PID")[0] == 2
    words = ("--column", "finding", "--patient-column", "PID")
    status, _, err = label(medfl, store, *words, "--images", store / "images")
    assert (status, "--images" in err) == (2, True)
    status, _, err = label(medfl, store, *words, "--key", store.parent / "other")
    assert (status, "--key" in err, (store.parent / "other").exists()) == (2, True, False)
    assert not (store / "labels.csv").exists()


def test_a_series_that_waits_for_a_review_is_not_found_by_its_names(store: Path):
    table = rows(store / "images.csv")
    assert len(find_series(store.parent)) == len(table) == 5
    waiting = store / "quarantine" / table[0]["study"]
    waiting.parent.mkdir()
    (store / table[0]["folder"]).parent.rename(waiting)
    left = {item.study for item in find_series(store.parent)}
    assert left == {row["study"] for row in table} - {table[0]["study"]}
    assert {item.study for item in find_series(waiting)} == {table[0]["study"]}, "a person may look at it"
