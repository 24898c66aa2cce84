"""Join the labels of a hospital's own table with the studies of a store.

The table names patients or studies as the hospital does. The result names them by their pseudonyms and contains the
chosen columns only.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.data.ingest.columns.identifier_guard import refuse_identifiers
from medfl.data.table import CsvTable, row_list
from medfl.errors import DataError
from medfl_pacs.image_store import IMAGES, ImageStore


@dataclass(frozen=True)
class LabelCounts:
    """Result of joining labels.

    Attributes:
        labelled: Number of studies with labels, which are the rows of the result.
        unlabelled: Number of usable studies without a row in the hospital's table.
        unmatched: Spreadsheet numbers of the rows in the hospital's table without a usable study.
    """

    labelled: int
    unlabelled: int
    unmatched: tuple[int, ...]


@dataclass(frozen=True)
class StudyRow:
    """Study of a store, with at least one usable series.

    Attributes:
        patient: Pseudonym of the patient.
        study: Pseudonym of the study.
        modalities: Modalities of its usable series, separated by spaces.
        series: Number of its usable series.
        date: Shifted date.
    """

    patient: str
    study: str
    modalities: str
    series: int
    date: str


_STUDY_COLUMNS = ("folder", "patient", "study", "modalities", "series", "date")
"""Columns of the result before the labels."""


def join_labels(
    store: ImageStore, table: CsvTable, *, id_column: str, by_study: bool, columns: Sequence[str], images: Path
) -> tuple[bytes, LabelCounts]:
    """Return a table with one row for each labelled study, as CSV, and its counts.

    Args:
        store: The opened store.
        table: The hospital's table.
        id_column: Column with the PatientID, or with the StudyInstanceUID.
        by_study: Whether `id_column` contains studies.
        columns: Columns with labels.
        images: Folder to which the paths in the result are relative. It contains the store.

    Raises:
        DataError: If a column is missing or looks like identifiers, two rows name the same patient or study, the
            table contains pseudonyms, no row fits, or the store is outside of `images`.
    """
    keys = table.column(id_column)
    _check_unique(table, id_column, keys)
    for column in columns:
        table.require([column])
        if column in _STUDY_COLUMNS:
            raise DataError(
                "duplicate_name",
                f"the result has a column '{column}' already. Rename it in {table.path}.",
                path=table.path,
                columns=[column],
            )
        known = [(row[column], key) for row, key in zip(table.rows, keys, strict=True) if row[column]]
        refuse_identifiers(column, [cell for cell, _ in known], [key for _, key in known])
    studies = _usable_studies(store)
    _refuse_pseudonyms(store, table, id_column, keys)
    pseudonym: Callable[[str], str] = store.pseudonyms.uid if by_study else store.pseudonyms.patient
    places = {pseudonym(key): place for place, key in enumerate(keys)}
    named = {row.study: places.get(row.study if by_study else row.patient) for row in studies}
    matched = {place for place in named.values() if place is not None}
    if not matched:
        cause, advice = _explain_mismatch(store, studies, keys, by_study)
        raise DataError(
            "no_match",
            f"none of the {len(keys)} rows of {table.path} names a {'study' if by_study else 'patient'} of the store "
            f"'{store.folder}' in '{id_column}'. {advice}",
            path=table.path,
            column=id_column,
            total=len(keys),
            cause=cause,
        )
    counts = LabelCounts(
        labelled=sum(place is not None for place in named.values()),
        unlabelled=sum(place is None for place in named.values()),
        unmatched=tuple(table.numbers[place] for place in range(len(keys)) if place not in matched),
    )
    return _csv(store, studies, table, named, columns, images), counts


def _check_unique(table: CsvTable, id_column: str, keys: Sequence[str]) -> None:
    """Raise if two rows have the same key."""
    counts = Counter(keys)
    repeated = [number for number, key in zip(table.numbers, keys, strict=True) if counts[key] > 1]
    if repeated:
        raise DataError(
            "duplicate_row",
            f"expected one row for each value of '{id_column}' in {table.path}, several rows have the same: "
            f"{row_list(repeated)}. Keep one of them, or name studies with --study-column.",
            path=table.path,
            column=id_column,
            rows=repeated,
        )


def _refuse_pseudonyms(store: ImageStore, table: CsvTable, id_column: str, keys: Sequence[str]) -> None:
    """Raise if a column of original identifiers contains pseudonyms of the store."""
    known = {name for record in store.journal.series.values() for name in (record.patient, record.study)}
    rows = [number for number, key in zip(table.numbers, keys, strict=True) if key.strip() in known]
    if rows:
        raise DataError(
            "pseudonyms_as_identifiers",
            f"'{id_column}' in {table.path} contains pseudonyms of the store '{store.folder}' in {row_list(rows)}, "
            "expected the hospital's own PatientID or StudyInstanceUID, from which the pseudonyms are computed. Give "
            "the hospital's table. A table that has the pseudonyms already needs no join: give it to medfl prep folder "
            "with the column 'folder' of images.csv.",
            path=table.path,
            column=id_column,
            rows=rows,
        )


MAX_ZEROS = 12
"""Largest number of zeros that are added to a number to find out whether a spreadsheet removed them."""


def _explain_mismatch(
    store: ImageStore, studies: Sequence[StudyRow], keys: Sequence[str], by_study: bool
) -> tuple[str, str]:
    """Return why no key names a study or patient of a store, as a code and as advice that contains no key.

    Each likely difference is tried: a column of the other kind, and PatientIDs that a spreadsheet or an export changed.
    """
    patients, names = {row.patient for row in studies}, {row.study for row in studies}
    to_patient, to_study = store.pseudonyms.patient, store.pseudonyms.uid
    if any((to_patient(key) in patients) if by_study else (to_study(key) in names) for key in keys):
        option, wrong = ("--patient-column", "--study-column") if by_study else ("--study-column", "--patient-column")
        kind = "patients" if by_study else "studies"
        return "other_option", f"The column names {kind}: give it with {option} instead of {wrong}."
    if by_study:
        return "unknown", "Check that the column contains the StudyInstanceUID as in the PACS."
    changes: dict[str, tuple[str, Callable[[str], list[str]]]] = {
        "leading_zeros": (
            "With leading zeros they would, so a spreadsheet has removed these. Export the column as text.",
            lambda key: [key.zfill(len(key) + zeros) for zeros in range(1, MAX_ZEROS + 1)] if key.isdigit() else [],
        ),
        "added_zeros": (
            "Without leading zeros they would. Export the PatientID as it is in the PACS.",
            lambda key: [key.lstrip("0")],
        ),
        "decimal": (
            "Without '.0' they would, so a program has read them as decimal numbers. Export the column as text.",
            lambda key: [key.removesuffix(".0")],
        ),
        "letter_case": (
            "With letters of another case they would. Export the PatientID as it is in the PACS.",
            lambda key: [key.upper(), key.lower()],
        ),
        "punctuation": (
            "Without spaces and signs they would. Export the PatientID as it is in the PACS.",
            lambda key: ["".join(letter for letter in key if letter.isalnum())],
        ),
    }
    for cause, (advice, changed) in changes.items():
        if any(to_patient(text) in patients for key in keys for text in changed(key.strip())):
            return cause, advice
    return (
        "unknown",
        "Check that the column contains the PatientID, with all zeros and signs, as in the PACS, and that the table "
        "and the store are of the same hospital.",
    )


def _usable_studies(store: ImageStore) -> list[StudyRow]:
    """Return the studies with series in ``images``, sorted by patient and study."""
    usable = [record for record in store.journal.series.values() if record.images and record.place == IMAGES]
    rows = []
    for study in {record.study for record in usable}:
        series = [record for record in usable if record.study == study]
        rows.append(
            StudyRow(
                patient=series[0].patient,
                study=study,
                modalities=" ".join(sorted({record.modality for record in series})),
                series=len(series),
                date=min(record.date for record in series),
            )
        )
    return sorted(rows, key=lambda row: (row.patient, row.study))


def _csv(
    store: ImageStore,
    studies: Sequence[StudyRow],
    table: CsvTable,
    named: Mapping[str, int | None],
    columns: Sequence[str],
    images: Path,
) -> bytes:
    """Return the content of the result."""
    top = os.path.relpath(store.folder.resolve(), images.resolve())
    if top.startswith(".."):
        raise DataError(
            "path_outside_folder",
            f"expected a folder that contains the store '{store.folder}' as --images, got '{images}'.",
            path=images,
        )
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*_STUDY_COLUMNS, *columns])
    for row in studies:
        place = named[row.study]
        if place is not None:
            folder = Path(top, IMAGES, row.study).as_posix()
            labels = [table.rows[place][column] for column in columns]
            writer.writerow([folder, row.patient, row.study, row.modalities, row.series, row.date, *labels])
    return buffer.getvalue().encode("utf-8")
