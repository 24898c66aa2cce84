"""Targets of a table: their kinds, values, missing values and units."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from medfl.data.ingest.columns.cells import read_numbers
from medfl.data.ingest.columns.target_option import parse_target, split_unit
from medfl.data.ingest.columns.target_values import TargetRows, read_targets
from medfl.data.table import CsvTable, read_table
from medfl.errors import DataError, SettingsError

HEAD = "diagnosis;effusion;nodule;Alter [Jahre];months;death;mask"
LINES = [
    "benign;0;yes;63,5;12;1;a_mask.png",
    "malignant;1;no;48;7,25;0;b_mask.png",
    "benign;;no;71,25;3;WAHR;c_mask.png",
    "malignant;NA;not assessed;;1;FALSCH;d_mask.png",
]


def table_of(folder: Path, lines: list[str] = LINES, head: str = HEAD) -> CsvTable:
    path = folder / "t.csv"
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return read_table(path)


def read(folder: Path, target: str, **options: object) -> TargetRows:
    return read_targets(table_of(folder), parse_target(target), **options)  # type: ignore[arg-type]


def test_a_class(tmp_path: Path) -> None:
    values = read(tmp_path, "class:diagnosis").values
    assert [entry["label"] for entry in values.entries] == [0, 1, 0, 1]
    assert (values.groups, values.objective) == (("benign", "malignant"), None)


def test_a_missing_finding_is_not_negative(tmp_path: Path) -> None:
    rows = read(tmp_path, "multilabel:effusion,nodule", skip_missing=True)
    assert [entry["target"] for entry in rows.values.entries] == [[0.0, 1.0], [1.0, 0.0], [None, 0.0]]
    assert rows.left_out == 1, "the row in which nothing was assessed"
    assert rows.values.objective == {"name": "multilabel", "num_labels": 2}
    assert rows.values.extra == {"target_names": ["effusion", "nodule"]}
    assert len(rows.values.warnings) == 1


def test_numbers_with_decimal_commas_and_their_unit(tmp_path: Path) -> None:
    rows = read(tmp_path, "number:Alter [Jahre]", skip_missing=True)
    assert [entry["target"] for entry in rows.values.entries] == [[63.5], [48.0], [71.25]]
    assert rows.values.extra == {"target_names": ["Alter [Jahre]"]}
    assert rows.values.objective == {"name": "regression", "dimensions": 1}


def test_survival_times_and_events(tmp_path: Path) -> None:
    values = read(tmp_path, "survival:months[mo],death").values
    assert [entry["target"] for entry in values.entries] == [[12.0, 1.0], [7.25, 0.0], [3.0, 1.0], [1.0, 0.0]]
    assert (values.groups, values.objective) == (("no death", "death"), {"name": "survival"})
    assert values.extra == {"target_names": ["risk of death (months [mo])"]}


@pytest.mark.parametrize(("target", "kind"), [("diagnosis", "class"), ("months,death", None), ("months", None)])
def test_the_kind_that_the_table_makes_clear(target: str, kind: str | None, tmp_path: Path) -> None:
    if kind is not None:
        assert read(tmp_path, target).values.kind == kind
        return
    with refused(DataError, "ambiguous_target", columns=target.split(",")) as caught:
        read(tmp_path, target)
    assert "number:COLUMN" in str(caught.value)


def test_several_columns_of_yes_and_no_are_findings_and_files_are_masks(tmp_path: Path) -> None:
    assert read(tmp_path, "effusion,nodule", skip_missing=True).values.kind == "multilabel"
    values = read(tmp_path, "mask").values
    assert (values.kind, values.masks) == ("mask", ["a_mask.png", "b_mask.png", "c_mask.png", "d_mask.png"])


@pytest.mark.parametrize(
    ("target", "code", "fields"),
    [
        ("multilabel:effusion,nodule", "missing_value", {"columns": ["effusion", "nodule"], "rows": [5]}),
        ("number:Alter [Jahre]", "missing_value", {"rows": [5]}),
        ("number:diagnosis", "invalid_number", {"column": "diagnosis", "rows": [2, 3, 4, 5]}),
        ("multilabel:months,death", "invalid_answer", {"column": "months", "rows": [2, 3, 4]}),
        ("class:stage", "missing_column", {"columns": ["stage"]}),
    ],
)
def test_cells_that_do_not_fit(target: str, code: str, fields: dict[str, object], tmp_path: Path) -> None:
    with refused(DataError, code, **fields) as caught:
        read(tmp_path, target)
    assert "malignant" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "target", "code"),
    [
        (["1;0", "2;0"], "survival:a,b", "no_event"),
        (["0;1", "2;0"], "survival:a,b", "invalid_time"),
        (["1;1", "0;1"], "multilabel:a,b", "constant_finding"),
        (["3;1", "3;0"], "number:a", "constant_target"),
        (["1,250;1", "2,500;0"], "number:a", "ambiguous_number"),
        (["1.250,5;1", "2,5;0"], "number:a", "invalid_number"),
        (["<0.5;1", "2.5;0"], "number:a", "invalid_number"),
        (["inf;1", "2.5;0"], "number:a", "invalid_number"),
        ([";1", ";0"], "number:a", "missing_value"),
    ],
)
def test_targets_that_nothing_can_be_learned_from(lines: list[str], target: str, code: str, tmp_path: Path) -> None:
    with refused(DataError, code):
        read_targets(table_of(tmp_path, lines, "a;b"), parse_target(target), skip_missing=True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("stages:a", "unknown_choice"),
        ("survival:a", "wrong_target_columns"),
        ("class:a,b", "wrong_target_columns"),
        ("class:", "wrong_target_columns"),
        ("multilabel:a,a", "wrong_target_columns"),
    ],
)
def test_spellings_that_are_refused(text: str, code: str) -> None:
    with refused(SettingsError, code):
        parse_target(text)


def test_words_for_missing_values_are_the_users(tmp_path: Path) -> None:
    cells = ["1", "k.A.", "3"]
    assert read_numbers("a", cells, [2, 3, 4], ["K.A."]) == [1.0, None, 3.0]
    with refused(DataError, "invalid_number", rows=[3]):
        read_numbers("a", cells, [2, 3, 4])


def test_a_unit_belongs_to_the_columns_name_or_to_the_option(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    inside, added = split_unit("Alter [Jahre]", table), split_unit("months[mo]", table)
    assert (inside.name, inside.unit, inside.title) == ("Alter [Jahre]", "Jahre", "Alter [Jahre]")
    assert (added.name, added.unit, added.title) == ("months", "mo", "months [mo]")
    assert parse_target('class:"a, b"').words == ("a, b",)
