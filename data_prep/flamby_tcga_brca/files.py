"""FLamby's two files: ``brca.csv``, a row for each patient, and ``train_test_split.csv``, who is in which fold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.table import Table, read_table, row_list
from medfl.errors import DataError

REGIONS = ("northeast", "south", "west", "midwest", "europe", "canada")
"""In the order of FLamby's numbers, by the sites where the tissue was taken (its ``centers.csv``)."""

TABLE, SPLIT = "brca.csv", "train_test_split.csv"
"""The files."""

FEATURES = 39
"""Columns of features; the first column names the patient, the last two say event and time."""

PARTS = {"train": "training", "test": "test"}
"""What FLamby calls a split, and the split that it is."""

AGAIN = "Take the files of flamby/datasets/fed_tcga_brca and its dataset_creation_scripts as they are."
"""What to do about a file that was changed."""


@dataclass(frozen=True)
class Patients:
    """The patients that are in a fold, in the order of the table.

    Attributes:
        names: As the table has them; they must not be written anywhere.
        columns: Names of the features.
        features: (n, 39), float32.
        times: (n,), float64: days under observation, >= 0.
        events: (n,), int64: 1 where the patient died, 0 where the time is cut short.
        regions: Of `REGIONS`.
        splits: ``training`` or ``test``.
        unused: Rows of the table that are in no fold.
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
    """The table and the split, which may lie in FLamby's subfolder ``dataset_creation_scripts``.

    Raises:
        DataError: If one is missing.
    """
    table = source / TABLE
    split = next((path for path in source.glob(f"**/{SPLIT}") if path.is_file()), source / SPLIT)
    missing = [path.name for path in (table, split) if not path.is_file()]
    if missing:
        raise DataError(
            "missing_file",
            f"expected {' and '.join(missing)} in {source}, missing. {AGAIN}",
            folder=source,
            files=missing,
        )
    return table, split


def read_patients(source: Path) -> Patients:
    """Read both files.

    Raises:
        DataError: If a file is missing or wrong.
    """
    path, split = find_files(source)
    table, folds = read_table(path), _folds(read_table(split))
    if table.columns[:1] != ["pid"] or table.columns[-2:] != ["E", "T"] or len(table.columns) != FEATURES + 3:
        raise DataError(
            "wrong_columns",
            f"expected pid, {FEATURES} features, E and T as columns of {path}, got others. {AGAIN}",
            path=path,
            features=FEATURES,
        )
    names = table.column("pid")
    if len(set(names)) < len(names) or not folds.keys() <= set(names):
        raise DataError(
            "unmatched_patients",
            f"expected each patient of {split} once in {path}, some are missing or there twice. {AGAIN}",
            path=path,
            split=split,
        )
    kept = [place for place, name in enumerate(names) if name in folds]
    numbers = np.array([_numbers(table, place) for place in kept], dtype=np.float64)
    events, times = numbers[:, -2], numbers[:, -1]
    wrong = [table.numbers[kept[i]] for i in np.flatnonzero(~(np.isin(events, (0, 1)) & (times >= 0)))]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected 0 or 1 as E and T >= 0 in {path}, not so in {row_list(wrong)}. {AGAIN}",
            path=path,
            columns=("E", "T"),
            rows=wrong,
        )
    places = [folds[names[place]] for place in kept]
    return Patients(
        [names[place] for place in kept],
        table.columns[1:-2],
        numbers[:, :-2].astype(np.float32),
        times,
        events.astype(np.int64),
        [region for _, region in places],
        [part for part, _ in places],
        len(names) - len(kept),
    )


def _folds(table: Table) -> dict[str, tuple[str, str]]:
    """Patient to split and region, from words such as ``train_0``."""
    known = {f"{word}_{k}": (part, name) for word, part in PARTS.items() for k, name in enumerate(REGIONS)}
    words = table.column("fold2")
    wrong = [number for number, word in zip(table.numbers, words, strict=True) if word not in known]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected train_0 to test_5 in 'fold2' of {table.path}, not so in {row_list(wrong)}. {AGAIN}",
            path=table.path,
            column="fold2",
            rows=wrong,
        )
    names = table.column("pid")
    if len(set(names)) < len(names):
        raise DataError(
            "duplicate_row",
            f"expected each patient once in {table.path}, some are there twice. {AGAIN}",
            path=table.path,
            column="pid",
        )
    return {name: known[word] for name, word in zip(names, words, strict=True)}


def _numbers(table: Table, place: int) -> list[float]:
    """All cells of a row but the first one."""
    try:
        numbers = [float(table.rows[place][column]) for column in table.columns[1:]]
    except ValueError:
        numbers = [np.nan]
    if not np.isfinite(numbers).all():
        raise DataError(
            "not_finite",
            f"expected finite numbers in {table.path}, not so in {row_list([table.numbers[place]])}. {AGAIN}",
            path=table.path,
            row=table.numbers[place],
        )
    return numbers
