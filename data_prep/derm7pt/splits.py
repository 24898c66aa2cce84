"""Read the index files of Derm7pt, which state the split of each case.

Each file has one column, ``indexes``, with row indices of ``meta.csv``: 0 is the first case, below the header. Together
the files name each case exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from medfl.data.datalists import SPLITS
from medfl.data.table import read_table, row_list
from medfl.errors import DataError

INDEX_FILES = dict(zip(SPLITS, ("train_indexes.csv", "valid_indexes.csv", "test_indexes.csv"), strict=True))
"""Maps each split to the name of its index file."""

UNPACK_HINT = "Take the files of release_v0.zip as they are."
"""Advice in messages about a release that was changed."""


def read_splits(folder: Path, cases: int) -> list[str]:
    """Read the split of each case.

    Args:
        folder: Folder of the index files.
        cases: Number of rows of ``meta.csv``.

    Returns:
        Split of each case, one of `SPLITS`.

    Raises:
        DataError: If a file is missing or invalid, or if the files do not name each case exactly once.
    """
    by_split = {split: _read_indexes(folder / name) for split, name in INDEX_FILES.items()}
    if sorted(index for indexes in by_split.values() for index in indexes) != list(range(cases)):
        _raise_wrong_indexes(folder, by_split, cases)
    split_of = {index: split for split, indexes in by_split.items() for index in indexes}
    return [split_of[index] for index in range(cases)]


def _read_indexes(path: Path) -> list[int]:
    """Read the indices in a file; raise DataError if the file is missing or contains anything else."""
    if not path.is_file():
        raise DataError("missing_file", f"expected the index file {path}, found none. {UNPACK_HINT}", path=path)
    table = read_table(path)
    values = table.column("indexes")
    wrong = [number for number, value in zip(table.numbers, values, strict=True) if not value.isdecimal()]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected whole numbers from 0 in {path}, {len(wrong)} of {len(values)} rows have another value: "
            f"{row_list(wrong)}. {UNPACK_HINT}",
            path=path,
            column="indexes",
            rows=wrong,
        )
    return [int(value) for value in values]


def _raise_wrong_indexes(folder: Path, by_split: Mapping[str, list[int]], cases: int) -> None:
    """Raise a DataError that explains why the index files do not name each case exactly once.

    Raises:
        DataError: Always.
    """
    shifted = _splits_counted_from_one(by_split, cases)
    if shifted:
        names = ", ".join(INDEX_FILES[split] for split in shifted)
        raise DataError(
            "indexes_from_one",
            f"expected index files in {folder} that count from 0, where 0 is the first case; {names} count"
            f"{'s' if len(shifted) == 1 else ''} from 1. {UNPACK_HINT}",
            path=folder,
            files=[INDEX_FILES[split] for split in shifted],
        )
    problems, outside_of, repeated_in = [], {}, {}
    for split, indexes in by_split.items():
        outside, duplicates = sum(index >= cases for index in indexes), len(indexes) - len(set(indexes))
        if outside:
            outside_of[INDEX_FILES[split]] = outside
            problems.append(f"{outside} of {len(indexes)} indexes of {INDEX_FILES[split]} are above {cases - 1}")
        if duplicates:
            repeated_in[INDEX_FILES[split]] = duplicates
            problems.append(
                f"{duplicates} of {len(indexes)} indexes of {INDEX_FILES[split]} repeat others of this file"
            )
    files_by_index = Counter(index for indexes in by_split.values() for index in set(indexes))
    several, none = (
        sum(count > 1 for count in files_by_index.values()),
        sum(index not in files_by_index for index in range(cases)),
    )
    if several:
        problems.append(f"{several} cases are in more than one file")
    if none:
        problems.append(f"{none} cases are in no file")
    raise DataError(
        "wrong_indexes",
        f"expected index files in {folder} that name each of the {cases} cases of meta.csv once, by a number from 0 to "
        f"{cases - 1}: {'; '.join(problems)}. {UNPACK_HINT}",
        path=folder,
        cases=cases,
        outside=outside_of,
        repeated=repeated_in,
        in_several=several,
        in_none=none,
    )


def _splits_counted_from_one(by_split: Mapping[str, list[int]], cases: int) -> list[str]:
    """Return the splits whose files count from 1 instead of 0.

    All files, or only one, are assumed to count from 1 if subtracting 1 makes the files name each case exactly once.
    """
    for shifted in (list(by_split), *([split] for split in by_split)):
        moved = [index - (split in shifted) for split, indexes in by_split.items() for index in indexes]
        if sorted(moved) == list(range(cases)):
            return shifted
    return []
