"""Read and check the four case descriptions of CBIS-DDSM, which have a row for each lesion (abnormality).

The tables of masses and calcifications have different column names (``breast_density``, ``breast density``), and so
have tables that others rewrote. Paths are quoted, with a line break at the end, and may contain backslashes. A path is
``<subject>/<study UID>/<series UID>/<file>``; its file name differs from that on disk and is ignored.

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

from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError
from medfl.utils.text import first_names

TABLES = {
    (kind, split): f"{kind}_case_description_{split}_set.csv"
    for kind in ("mass", "calc")
    for split in ("train", "test")
}
"""Maps each kind of lesion and official split to the name of its table."""

OFFICIAL_ROWS = {("mass", "train"): 1318, ("mass", "test"): 378, ("calc", "train"): 1546, ("calc", "test"): 326}
"""Published number of rows of each table."""

PATHOLOGIES = ("BENIGN_WITHOUT_CALLBACK", "BENIGN", "MALIGNANT")
"""Values of the column pathology, in ascending order of severity; of several lesions in one image the worst counts."""

LESION_KINDS = {"mass": "mass", "calc": "calcification"}
"""Maps the prefix of a table's name to the kind of lesion in the data list."""

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
"""Maps each field of `Lesion` to its possible column names in lower case."""


class Series(NamedTuple):
    """Series to which a path of a table points. Its names come from the release and identify no one.

    Attributes:
        subject: Name of the patient and image, the first part of the path.
        study: UID of the study.
        series: UID of the series.
    """

    subject: str
    study: str
    series: str


@dataclass(frozen=True)
class Lesion:
    """Row of a table.

    Attributes:
        kind: ``mass`` or ``calc``.
        split: ``train`` or ``test``, as published.
        row: Row number in its table.
        patient: The release's pseudonym, ``P_00001``.
        side: ``LEFT`` or ``RIGHT``.
        view: ``CC`` or ``MLO``.
        number: Number of the lesion in its image.
        density: Breast density, 1 to 4 as in BI-RADS; 0 if not rated.
        pathology: One of `PATHOLOGIES`.
        image: Series of the whole mammogram.
        crop: Series of the lesion's crop. Crop and mask may be in one series, or swapped.
        mask: Series of the lesion's mask.
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
        """Patient, side and view, which together identify a film (one mammogram)."""
        return self.patient, self.side, self.view

    @property
    def where(self) -> str:
        """Table and row number of the lesion, for messages and lists."""
        return f"{self.kind}_{self.split} {self.row}"


def read_tables(paths: Mapping[tuple[str, str], Path]) -> list[Lesion]:
    """Read and check tables of lesions.

    Returns:
        All rows, table by table.

    Args:
        paths: Maps kind and split, as in `TABLES`, to the file.

    Raises:
        DataError: If columns are missing, a cell has an unknown value, or images share a series UID. The message names
            the rows.
    """
    lesions = [lesion for (kind, split), path in paths.items() for lesion in _read(path, kind, split)]
    _check_series(lesions, "cropped image", lambda lesion: lesion.crop.series, lambda lesion: lesion.where)
    _check_series(lesions, "image", lambda lesion: lesion.image.series, lambda lesion: lesion.breast_view)
    return lesions


def _check_series(
    lesions: Sequence[Lesion], what: str, uid: Callable[[Lesion], str], owner: Callable[[Lesion], object]
) -> None:
    """Raise DataError if a series UID belongs to several lesions, or to films of several breasts."""
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
    """Describe the differences from the published numbers of rows, one sentence for each table."""
    counts = {key: sum((lesion.kind, lesion.split) == key for lesion in lesions) for key in OFFICIAL_ROWS}
    return [
        f"{TABLES[key]}: {count} rows; the official table has {OFFICIAL_ROWS[key]}"
        for key, count in counts.items()
        if count not in (0, OFFICIAL_ROWS[key])
    ]


def _read(path: Path, kind: str, split: str) -> list[Lesion]:
    """Read and check one table."""
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


def _columns(table: CsvTable) -> dict[str, str]:
    """Return the table's column for each field; raise DataError if one is missing."""
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


def _check(table: CsvTable, rows: Sequence[Mapping[str, str]], key: str, pattern: str, expected: str) -> None:
    """Raise DataError if a cell of a column does not match a pattern."""
    wrong = [
        number for number, row in zip(table.numbers, rows, strict=True) if not re.fullmatch(pattern, _value(row, key))
    ]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected {expected} in the column '{_columns(table)[key]}' of {table.path}, {len(wrong)} of {len(rows)} "
            f"rows have another value: {row_list(wrong)}. Download the table again.",
            path=table.path,
            column=_columns(table)[key],
            rows=wrong,
            total=len(rows),
        )


def _value(row: Mapping[str, str], key: str) -> str:
    """Return a cell; an unknown density is empty."""
    return "" if key == "density" and row[key] in ("N/A", "NA") else row[key]


def _lesion(row: Mapping[str, str], kind: str, split: str, number: int) -> Lesion:
    """Build a lesion from the cells of a row."""
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
    """Parse a path of a table."""
    subject, study, series, _ = re.split(r"[/\\]", path)
    return Series(subject, study, series)
