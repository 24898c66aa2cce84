"""The index files of Derm7pt: which case is in training, validation and test.

Each file has one column, ``indexes``, of rows of ``meta.csv``: 0 is the first case, below the line of names. Together
the files name each case once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from medfl.data.datalists import SPLITS
from medfl.data.table import read_table, row_list
from medfl.errors import DataError

INDEX_FILES = dict(zip(SPLITS, ("train_indexes.csv", "valid_indexes.csv", "test_indexes.csv"), strict=True))
"""Split to the file that names its cases."""

WHOLE = "Take the files of release_v0.zip as they are."
"""What to do about a release that was changed."""


def read_splits(folder: Path, cases: int) -> list[str]:
    """The split of each case.

    Args:
        folder: The folder of the index files.
        cases: Rows of ``meta.csv``.

    Returns:
        One of `SPLITS` for each case.

    Raises:
        DataError: If a file is missing or wrong, or they do not name each case once.
    """
    by_split = {split: _read_indexes(folder / name) for split, name in INDEX_FILES.items()}
    if sorted(index for indexes in by_split.values() for index in indexes) != list(range(cases)):
        _explain(folder, by_split, cases)
    split_of = {index: split for split, indexes in by_split.items() for index in indexes}
    return [split_of[index] for index in range(cases)]


def _read_indexes(path: Path) -> list[int]:
    if not path.is_file():
        raise DataError("missing_file", f"expected the index file {path}, there is none. {WHOLE}", path=path)
    table = read_table(path)
    values = table.column("indexes")
    wrong = [number for number, value in zip(table.numbers, values, strict=True) if not value.isdecimal()]
    if wrong:
        raise DataError(
            "invalid_value",
            f"expected whole numbers from 0 in {path}, {len(wrong)} of {len(values)} rows hold something else: "
            f"{row_list(wrong)}. {WHOLE}",
            path=path,
            column="indexes",
            rows=wrong,
        )
    return [int(value) for value in values]


def _explain(folder: Path, by_split: Mapping[str, list[int]], cases: int) -> None:
    """Say why index files do not name each case once.

    Raises:
        DataError: Always.
    """
    shifted = _counting_from_one(by_split, cases)
    if shifted:
        names = ", ".join(INDEX_FILES[split] for split in shifted)
        raise DataError(
            "indexes_from_one",
            f"expected index files in {folder} that count from 0, where 0 is the first case; {names} count"
            f"{'s' if len(shifted) == 1 else ''} from 1. {WHOLE}",
            path=folder,
            files=[INDEX_FILES[split] for split in shifted],
        )
    problems, outside_of, repeated_in = [], {}, {}
    for split, indexes in by_split.items():
        outside, twice = sum(index >= cases for index in indexes), len(indexes) - len(set(indexes))
        if outside:
            outside_of[INDEX_FILES[split]] = outside
            problems.append(f"{outside} of {len(indexes)} indexes of {INDEX_FILES[split]} are above {cases - 1}")
        if twice:
            repeated_in[INDEX_FILES[split]] = twice
            problems.append(f"{twice} of {len(indexes)} indexes of {INDEX_FILES[split]} repeat others of this file")
    held = Counter(index for indexes in by_split.values() for index in set(indexes))
    several, none = sum(count > 1 for count in held.values()), sum(index not in held for index in range(cases))
    if several:
        problems.append(f"{several} cases are in more than one file")
    if none:
        problems.append(f"{none} cases are in no file")
    raise DataError(
        "wrong_indexes",
        f"expected index files in {folder} that name each of the {cases} cases of meta.csv once, by a number from 0 to "
        f"{cases - 1}: {'; '.join(problems)}. {WHOLE}",
        path=folder,
        cases=cases,
        outside=outside_of,
        repeated=repeated_in,
        in_several=several,
        in_none=none,
    )


def _counting_from_one(by_split: Mapping[str, list[int]], cases: int) -> list[str]:
    """The splits whose files count from 1: all of them or one, if each case is named once when these are shifted."""
    for shifted in (list(by_split), *([split] for split in by_split)):
        moved = [index - (split in shifted) for split, indexes in by_split.items() for index in indexes]
        if sorted(moved) == list(range(cases)):
            return shifted
    return []
