"""Read FLamby's two files: ``brca.csv``, the clinical table, and ``train_test_split.csv``, the splits (folds)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError

REGIONS = ("northeast", "south", "west", "midwest", "europe", "canada")
"""Regions in the order of FLamby's numbers, by the tissue source site (FLamby's ``centers.csv``)."""

CLINICAL_TABLE, FOLD_TABLE = "brca.csv", "train_test_split.csv"
"""File names: `CLINICAL_TABLE` of the clinical table, `FOLD_TABLE` of the table that states each patient's split."""

FEATURE_COUNT = 39
"""Number of feature columns. The first column of the table is the patient; the last two are event and time."""

SPLIT_BY_WORD = {"train": "training", "test": "test"}
"""Maps FLamby's name of a split to medfl's."""

FILES_HINT = "Take the files of flamby/datasets/fed_tcga_brca and its dataset_creation_scripts as they are."
"""Advice in messages about a file that was changed."""


@dataclass(frozen=True)
class BrcaPatients:
    """Patients that are in a fold (training or test), in the order of the table.

    Attributes:
        names: Name of each patient in the table; names must not be written anywhere.
        columns: Names of the features.
        features: Feature values, shape (n, 39), float32.
        times: Days under observation, >= 0, shape (n,), float64.
        events: 1 if the patient died, 0 if the time is censored, shape (n,), int64.
        regions: Region of each patient, one of `REGIONS`.
        splits: Split of each patient, ``training`` or ``test``.
        unused: Number of rows of the table that are in no fold.
    """

    names: list[str]
    columns: list[str]
    features: np.ndarray
    times: np.ndarray
    events: np.ndarray
    regions: list[str]
    splits: list[str]
    unused: int


def find_files(source: Path) -> tuple[Path, Path]:
    """Return the clinical table and the table of folds; the latter may be in a subfolder, as in FLamby's repository.

    Raises:
        DataError: If one is missing.
    """
    table = source / CLINICAL_TABLE
    split = next((path for path in source.glob(f"**/{FOLD_TABLE}") if path.is_file()), source / FOLD_TABLE)
    missing = [path.name for path in (table, split) if not path.is_file()]
    if missing:
        raise DataError(
            "missing_file",
            f"expected {' and '.join(missing)} in {source}, missing. {FILES_HINT}",
            folder=source,
            files=missing,
        )
    return table, split


def read_patients(source: Path) -> BrcaPatients:
    """Read both files.

    Raises:
        DataError: If a file is missing, or its content is not as published.
    """
    path, split = find_files(source)
    table, folds = read_table(path), _read_folds(read_table(split))
    if table.columns[:1] != ["pid"] or table.columns[-2:] != ["E", "T"] or len(table.columns) != FEATURE_COUNT + 3:
        raise DataError(
            "wrong_columns",
            f"expected pid, {FEATURE_COUNT} features, E and T as columns of {path}, got others. {FILES_HINT}",
            path=path,
            features=FEATURE_COUNT,
        )
    names = table.column("pid")
    if len(set(names)) < len(names) or not folds.keys() <= set(names):
        raise DataError(
            "unmatched_patients",
            f"expected each patient of {split} once in {path}, some are missing or there twice. {FILES_HINT}",
            path=path,
            split=split,
        )
    kept = [place for place, name in enumerate(names) if name in folds]
    numbers = np.array([_parse_numbers(table, place) for place in kept], dtype=np.float64)
    events, times = numbers[:, -2], numbers[:, -1]
    wrong = [table.numbers[kept[i]] for i in np.flatnonzero(~(np.isin(events, (0, 1)) & (times >= 0)))]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected 0 or 1 as E and T >= 0 in {path}, found other values in {row_list(wrong)}. {FILES_HINT}",
            path=path,
            columns=("E", "T"),
            rows=wrong,
        )
    places = [folds[names[place]] for place in kept]
    return BrcaPatients(
        [names[place] for place in kept],
        table.columns[1:-2],
        numbers[:, :-2].astype(np.float32),
        times,
        events.astype(np.int64),
        [region for _, region in places],
        [part for part, _ in places],
        len(names) - len(kept),
    )


def _read_folds(table: CsvTable) -> dict[str, tuple[str, str]]:
    """Read the table of folds.

    Returns:
        Maps each patient to split and region, parsed from words such as ``train_0``.

    Raises:
        DataError: If a word is unknown, or a patient has several rows.
    """
    known = {f"{word}_{k}": (part, name) for word, part in SPLIT_BY_WORD.items() for k, name in enumerate(REGIONS)}
    words = table.column("fold2")
    wrong = [number for number, word in zip(table.numbers, words, strict=True) if word not in known]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected train_0 to test_5 in 'fold2' of {table.path}, found other values in {row_list(wrong)}. "
            f"{FILES_HINT}",
            path=table.path,
            column="fold2",
            rows=wrong,
        )
    names = table.column("pid")
    if len(set(names)) < len(names):
        raise DataError(
            "duplicate_row",
            f"expected each patient once in {table.path}, some are there twice. {FILES_HINT}",
            path=table.path,
            column="pid",
        )
    return {name: known[word] for name, word in zip(names, words, strict=True)}


def _parse_numbers(table: CsvTable, place: int) -> list[float]:
    """Parse all cells of a row except the first; raise DataError if one is not a finite number."""
    try:
        numbers = [float(table.rows[place][column]) for column in table.columns[1:]]
    except ValueError:
        numbers = [np.nan]
    if not np.isfinite(numbers).all():
        raise DataError(
            "not_finite",
            f"expected finite numbers in {table.path}, found other values in {row_list([table.numbers[place]])}. "
            f"{FILES_HINT}",
            path=table.path,
            row=table.numbers[place],
        )
    return numbers
