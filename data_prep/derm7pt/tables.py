"""Read and check a Derm7pt release: the folder ``release_v0`` with its table, index files and images.

Layout, with case-sensitive names and images that end in ``.jpg`` or ``.JPG``::

    release_v0/meta/{meta.csv, train_indexes.csv, valid_indexes.csv, test_indexes.csv}
    release_v0/images/<folder>/<file>

``meta.csv`` has a row for each of 1011 cases. The index files contain its row indices, from 0 without the header;
together they name each case once. Messages number rows as a spreadsheet shows them (`medfl.data.table`).

Source: Kawahara et al., "Seven-Point Checklist and Skin Lesion Classification Using Multitask Multimodal Neural Nets",
IEEE Journal of Biomedical and Health Informatics 23(2), 538-546 (2019). The groups of diagnoses are those of its
authors' code.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError, did_you_mean
from medfl_datasets.derm7pt.splits import UNPACK_HINT, read_splits

HEADER = (
    "case_num,diagnosis,seven_point_score,pigment_network,streaks,pigmentation,regression_structures,dots_and_globules,"
    "blue_whitish_veil,vascular_structures,level_of_diagnostic_difficulty,elevation,location,sex,management,clinic,derm,"
    "case_id,notes"
)
"""First line of ``meta.csv``."""

DIAGNOSIS_GROUPS = {
    "BCC": ("basal cell carcinoma",),
    "MEL": (
        "melanoma",
        "melanoma (in situ)",
        "melanoma (less than 0.76 mm)",
        "melanoma (0.76 to 1.5 mm)",
        "melanoma (more than 1.5 mm)",
        "melanoma metastasis",
    ),
    "MISC": ("dermatofibroma", "lentigo", "melanosis", "miscellaneous", "vascular lesion"),
    "NEV": (
        "blue nevus",
        "clark nevus",
        "combined nevus",
        "congenital nevus",
        "dermal nevus",
        "recurrent nevus",
        "reed or spitz nevus",
    ),
    "SK": ("seborrheic keratosis",),
}
"""Maps each group of diagnoses (a class), in the order of the labels, to the diagnoses in it."""

OFFICIAL_COUNTS = {
    "training": {"BCC": 19, "MEL": 90, "MISC": 32, "NEV": 256, "SK": 16},
    "validation": {"BCC": 7, "MEL": 61, "MISC": 25, "NEV": 100, "SK": 10},
    "test": {"BCC": 16, "MEL": 101, "MISC": 40, "NEV": 219, "SK": 19},
}
"""Maps each split to a mapping from group to number of cases in the release: 413, 203 and 395 cases in all."""

DOUBLED_CASES = 9
"""Number of cases in the release for which the table names the dermoscopic image also as the clinical one."""

SEXES = ("female", "male")
"""Values of the column ``sex``."""

_GROUP_OF = {diagnosis: group for group, diagnoses in DIAGNOSIS_GROUPS.items() for diagnosis in diagnoses}


@dataclass(frozen=True)
class Derm7ptRelease:
    """Content of a release's tables; all lists have one entry for each case, in the order of ``meta.csv``.

    Attributes:
        images: Folder of the images.
        table: Content of ``meta.csv``.
        groups: Group of each case's diagnosis, a key of `DIAGNOSIS_GROUPS`.
        splits: Split of each case: ``training``, ``validation`` or ``test``.
        doubled: For each case, True if the table names the dermoscopic image also as the clinical one.
    """

    images: Path
    table: CsvTable
    groups: list[str]
    splits: list[str]
    doubled: list[bool]

    def check_images(self, view: str, places: Sequence[int]) -> None:
        """Raise DataError if required images are missing.

        Args:
            view: Column that names the images, ``derm`` or ``clinic``.
            places: Indices of the cases whose image is required.

        Raises:
            DataError: If an image is missing, or exists only with other capitals in its name.
        """
        names = {place: self.table.rows[place][view] for place in places}
        missing = [place for place, name in names.items() if not (self.images / name).is_file()]
        if not missing:
            return
        folded = _casefolded_paths(self.images)
        other_case = [place for place in missing if Path(names[place]).as_posix().casefold() in folded]
        text = f"{len(missing)} of {len(names)} images are not in the folder {self.images}: {self._rows(missing)}. "
        if other_case:
            text += (
                f"{len(other_case)} of them are there with other capitals: names count as in meta.csv, where some "
                "end in .jpg and some in .JPG. "
            )
        raise DataError(
            "missing_image",
            f"{text}Unpack release_v0.zip again, whole and without renaming.",
            path=self.images,
            rows=[self.table.numbers[place] for place in missing],
            total=len(names),
            other_capitals=len(other_case),
        )

    def deviations(self) -> list[str]:
        """Describe the differences from the official release, one sentence each."""
        sentences = []
        pairs = Counter(zip(self.splits, self.groups, strict=True))
        for split, official in OFFICIAL_COUNTS.items():
            counts = {group: pairs[split, group] for group in DIAGNOSIS_GROUPS}
            if counts != official:
                sentences.append(
                    f"{split}: {_describe_group_counts(counts)}; the official release has "
                    f"{_describe_group_counts(official)}"
                )
        if sum(self.doubled) != DOUBLED_CASES:
            sentences.append(
                f"{sum(self.doubled)} cases have the dermoscopic image as clinical image, the official release has "
                f"{DOUBLED_CASES} of them"
            )
        return sentences

    def _rows(self, places: Sequence[int]) -> str:
        """Format the row numbers of cases for a message."""
        return row_list([self.table.numbers[place] for place in places])


def read_release(source: Path) -> Derm7ptRelease:
    """Read the table and the index files of a release, without looking at its images.

    Args:
        source: The folder ``release_v0``, or the one that contains it.

    Raises:
        DataError: If a file or column is missing, a diagnosis is unknown, or the index files do not name each case
            once.
    """
    folder = _find_folder(source)
    table = read_table(folder / "meta" / "meta.csv")
    _check_columns(table)
    _check_cells(table)
    rows = table.rows
    return Derm7ptRelease(
        images=folder / "images",
        table=table,
        groups=group_diagnoses(table),
        splits=read_splits(folder / "meta", len(rows)),
        doubled=[row["clinic"] == row["derm"] for row in rows],
    )


def group_diagnoses(table: CsvTable) -> list[str]:
    """Return the group of each case's diagnosis, a key of `DIAGNOSIS_GROUPS`.

    Raises:
        DataError: If a diagnosis belongs to no group.
    """
    diagnoses = [row["diagnosis"] for row in table.rows]
    unknown = [place for place, diagnosis in enumerate(diagnoses) if diagnosis not in _GROUP_OF]
    if unknown:
        first = diagnoses[unknown[0]]
        alike = [table.numbers[place] for place in unknown if diagnoses[place] == first]
        shown = f" '{first}'" if re.fullmatch("[a-z ]{0,40}", first) else ""  # any other text may identify a case
        others = len({diagnoses[place] for place in unknown}) - 1
        raise DataError(
            "wrong_label",
            f"unknown diagnosis{shown} in the column 'diagnosis' of {table.path} ({row_list(alike)})"
            f"{f', and {others} other unknown ones' if others else ''}. {did_you_mean(first, _GROUP_OF)}",
            path=table.path,
            column="diagnosis",
            rows=alike,
            label=first if shown else None,
            others=others,
        )
    return [_GROUP_OF[diagnosis] for diagnosis in diagnoses]


def _find_folder(source: Path) -> Path:
    """Return the folder ``release_v0``; raise DataError if its table is missing."""
    for folder in (source, source / "release_v0"):
        if (folder / "meta" / "meta.csv").is_file():
            return folder
    raise DataError(
        "missing_file",
        f"expected the table meta/meta.csv of Derm7pt in {source}, found none. Unpack release_v0.zip and give the "
        "folder release_v0 as --source.",
        path=source / "meta" / "meta.csv",
    )


def _check_columns(table: CsvTable) -> None:
    """Raise DataError if a column of `HEADER` is missing."""
    columns = HEADER.split(",")
    missing = [column for column in columns if column not in table.columns]
    if missing:
        names = ", ".join(f"'{column}'" for column in missing)
        raise DataError(
            "missing_column",
            f"expected the {len(columns)} columns of Derm7pt's own table in {table.path}, missing: {names}. Tables "
            "that others made of it, with fewer columns, can't be used: take meta/meta.csv of release_v0.zip.",
            path=table.path,
            columns=missing,
        )


def _check_cells(table: CsvTable) -> None:
    """Raise DataError for a repeated case number, a missing image name or an unknown sex."""
    for column in ("clinic", "derm"):
        table.column(column)
    counts = Counter(table.column("case_num"))
    duplicates = [number for number, row in zip(table.numbers, table.rows, strict=True) if counts[row["case_num"]] > 1]
    if duplicates:
        raise DataError(
            "duplicate_row",
            f"expected each case once in {table.path}, {len(duplicates)} rows share their case_num with another: "
            f"{row_list(duplicates)}. {UNPACK_HINT}",
            path=table.path,
            column="case_num",
            rows=duplicates,
        )
    wrong = [number for number, row in zip(table.numbers, table.rows, strict=True) if row["sex"] not in SEXES]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected {' or '.join(SEXES)} in the column 'sex' of {table.path}, {len(wrong)} of {len(table.rows)} "
            f"rows have another value: {row_list(wrong)}. {UNPACK_HINT}",
            path=table.path,
            column="sex",
            rows=wrong,
        )


def _casefolded_paths(folder: Path) -> set[str]:
    """Return the case-folded paths of all files below a folder."""
    paths = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return {path.relative_to(folder).as_posix().casefold() for path in paths}


def _describe_group_counts(counts: Mapping[str, int]) -> str:
    """Describe the total number of cases and the number of each group."""
    return f"{sum(counts.values())} cases ({', '.join(f'{group} {count}' for group, count in counts.items())})"
