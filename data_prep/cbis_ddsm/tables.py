"""The four case descriptions of CBIS-DDSM: a row for each lesion (abnormality), with all their quirks.

Columns are called differently in the tables of masses and calcifications (``breast_density``, ``breast density``), and
again in tables that others rewrote. Paths are in quotes with a line break at their end, and may have backslashes. A
path is ``<subject>/<study UID>/<series UID>/<file>``; the file is not the one on disk and is not used.

Messages number rows as a spreadsheet shows them (`medfl.data.table`).

Source: Lee et al., "A curated mammography data set for use in computer-aided detection and diagnosis research",
Scientific Data 4, 170177 (2017).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from medfl.data.table import Table, read_table, row_list
from medfl.errors import DataError
from medfl.utils.text import first_names

TABLES = {
    (kind, split): f"{kind}_case_description_{split}_set.csv"
    for kind in ("mass", "calc")
    for split in ("train", "test")
}
"""Kind of lesion and official split to the name of its table."""

OFFICIAL = {("mass", "train"): 1318, ("mass", "test"): 378, ("calc", "train"): 1546, ("calc", "test"): 326}
"""Rows of each table."""

PATHOLOGIES = ("BENIGN_WITHOUT_CALLBACK", "BENIGN", "MALIGNANT")
"""What a row may say, from harmless to bad: of several lesions in one image the worst one counts."""

KINDS = {"mass": "mass", "calc": "calcification"}
"""The beginning of a table's name to what a lesion is called in a data list."""

_NAMES = {
    "patient": ("patient_id",),
    "side": ("left or right breast", "side"),
    "view": ("image view", "view"),
    "lesion": ("abnormality id", "abn_num"),
    "density": ("breast_density", "breast density", "density"),
    "pathology": ("pathology",),
    "image": ("image file path", "od_img_path"),
    "crop": ("cropped image file path", "od_crop_path"),
    "mask": ("roi mask file path", "mask_path"),
}


class Series(NamedTuple):
    """Where a path of a table points to: names of the release, which identify nobody."""

    subject: str
    study: str
    series: str


@dataclass(frozen=True)
class Lesion:
    """A row of a table.

    Attributes:
        kind: ``mass`` or ``calc``.
        split: ``train`` or ``test``, as published.
        row: In its table.
        patient: The release's pseudonym, ``P_00001``.
        side: ``LEFT`` or ``RIGHT``.
        view: ``CC`` or ``MLO``.
        number: Of the lesion in its image.
        density: Of the breast, 1 to 4 as in BI-RADS; 0 if it was not rated.
        pathology: One of `PATHOLOGIES`.
        image: The whole image.
        crop: The lesion cut out, or its mask: both are in one series, or were exchanged.
        mask: As `crop`.
    """

    kind: str
    split: str
    row: int
    patient: str
    side: str
    view: str
    number: str
    density: int
    pathology: str
    image: Series
    crop: Series
    mask: Series

    @property
    def breast_view(self) -> tuple[str, str, str]:
        """Patient, side and view: what one film shows."""
        return self.patient, self.side, self.view

    @property
    def where(self) -> str:
        """Table and row, for messages and lists."""
        return f"{self.kind}_{self.split} {self.row}"


def read_tables(paths: Mapping[tuple[str, str], Path]) -> list[Lesion]:
    """Read tables.

    Args:
        paths: Kind and split, as in `TABLES`, to file.

    Raises:
        DataError: If columns are missing, a cell holds something unknown, or images share a UID; rows are named.
    """
    lesions = [lesion for (kind, split), path in paths.items() for lesion in _read(path, kind, split)]
    _check_series(lesions, "cropped image", lambda lesion: lesion.crop.series, lambda lesion: lesion.where)
    _check_series(lesions, "image", lambda lesion: lesion.image.series, lambda lesion: lesion.breast_view)
    return lesions


def _check_series(
    lesions: Sequence[Lesion], what: str, uid: Callable[[Lesion], str], owner: Callable[[Lesion], object]
) -> None:
    """Refuse a series UID that belongs to several lesions, or to films of several breasts."""
    owners: dict[str, set[object]] = defaultdict(set)
    for lesion in lesions:
        owners[uid(lesion)].add(owner(lesion))
    wrong = [lesion.where for lesion in lesions if len(owners[uid(lesion)]) > 1]
    if wrong:
        raise DataError(
            "duplicate_series",
            f"expected a series UID of its own in the {what} file path of each {what}, {len(wrong)} rows share one "
            f"with another row: {first_names(wrong)}. Download the tables "
            "again.",
            what=what,
            rows=wrong,
        )


def deviations(lesions: Sequence[Lesion]) -> list[str]:
    """How the tables that were read differ in size from the published ones: sentences, none if they do not."""
    counts = {key: sum((lesion.kind, lesion.split) == key for lesion in lesions) for key in OFFICIAL}
    return [
        f"{TABLES[key]}: {count} rows; the official table has {OFFICIAL[key]}"
        for key, count in counts.items()
        if count not in (0, OFFICIAL[key])
    ]


def _read(path: Path, kind: str, split: str) -> list[Lesion]:
    table = read_table(path)
    named = _columns(table)
    rows = [{key: row[column] for key, column in named.items()} for row in table.rows]
    _check(table, rows, "patient", r"P_\d{5}", "P_ and five digits")
    _check(table, rows, "side", "LEFT|RIGHT", "LEFT or RIGHT")
    _check(table, rows, "view", "CC|MLO", "CC or MLO")
    _check(table, rows, "pathology", "|".join(PATHOLOGIES), " or ".join(PATHOLOGIES))
    _check(table, rows, "density", r"[0-4]|", "a number from 0 to 4")
    for key in ("image", "crop", "mask"):
        _check(table, rows, key, r"([^/\\]+[/\\]){3}[^/\\]+", "<subject>/<study UID>/<series UID>/<file>")
    return [_lesion(row, kind, split, number) for row, number in zip(rows, table.numbers, strict=True)]


def _columns(table: Table) -> dict[str, str]:
    """What medfl calls a column to what the table does."""
    own = {column.lower(): column for column in table.columns}
    columns = {key: next((own[name] for name in names if name in own), None) for key, names in _NAMES.items()}
    missing = [_NAMES[key][0] for key, column in columns.items() if column is None]
    if missing:
        raise DataError(
            "missing_column",
            f"expected the columns {', '.join(repr(name) for name in missing)} in {table.path}, missing. Take the case "
            "descriptions that come with CBIS-DDSM on the Cancer Imaging Archive.",
            path=table.path,
            columns=missing,
        )
    return {key: column for key, column in columns.items() if column is not None}


def _check(table: Table, rows: Sequence[Mapping[str, str]], key: str, pattern: str, expected: str) -> None:
    wrong = [
        number for number, row in zip(table.numbers, rows, strict=True) if not re.fullmatch(pattern, _value(row, key))
    ]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected {expected} in the column '{_columns(table)[key]}' of {table.path}, {len(wrong)} of {len(rows)} "
            f"rows hold something else: {row_list(wrong)}. Download the table again.",
            path=table.path,
            column=_columns(table)[key],
            rows=wrong,
            total=len(rows),
        )


def _value(row: Mapping[str, str], key: str) -> str:
    """A cell; what is not known is empty."""
    return "" if key == "density" and row[key] in ("N/A", "NA") else row[key]


def _lesion(row: Mapping[str, str], kind: str, split: str, number: int) -> Lesion:
    return Lesion(
        kind,
        split,
        number,
        row["patient"],
        row["side"],
        row["view"],
        row["lesion"],
        int(_value(row, "density") or 0),
        row["pathology"],
        _series(row["image"]),
        _series(row["crop"]),
        _series(row["mask"]),
    )


def _series(path: str) -> Series:
    subject, study, series, _ = re.split(r"[/\\]", path)
    return Series(subject, study, series)
