"""Read splits that a benchmark published as a table: site and split of each case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.data.ingest.columns.labels import SPLIT_WORDS
from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError


@dataclass(frozen=True)
class PublishedSplits:
    """Published table of splits; lists have one entry for each case.

    Attributes:
        table: Table that was read.
        names: Name of each case in the table, without duplicates. Names may identify patients, so no output may contain
            them.
        sites: Name of the site of each case.
        splits: ``training`` or ``test``, for each case.
    """

    table: CsvTable
    names: list[str]
    sites: list[str]
    splits: list[str]


def find_table(source: Path, name: str, option: Path | None = None, whose: str = "") -> Path:
    """Return the path of a table: the given one, or the only file of this name in the release.

    Args:
        source: Folder of the release; searched at any depth.
        name: File name of the table.
        option: File that the user gave with ``--splits``, or None.
        whose: Place where the table is published, for the message, such as `` from the authors' repository``; empty, or
            text with a leading space.

    Raises:
        DataError: If the table does not exist, or several files have its name.
    """
    files = [option] if option else sorted(path for path in source.rglob(name) if path.is_file())
    if len(files) == 1 and files[0].is_file():
        return files[0]
    if len(files) > 1:
        raise DataError(
            "ambiguous_file",
            f"expected one table {name} in {source}, found {len(files)}. Name the right one with --splits.",
            file=name,
            folder=source,
            count=len(files),
        )
    raise DataError(
        "missing_file",
        f"expected the table {option or f'{name} in {source} or a folder in it'}, not found. Copy it there{whose}, "
        "or name it with --splits.",
        file=option or name,
        folder=source,
    )


def read_splits(path: Path, name: str, site: str, split: str, sites: Sequence[str]) -> PublishedSplits:
    """Read a table of splits.

    Args:
        path: Path of the table.
        name: Column with the names of the cases.
        site: Column with the numbers of the sites, from 0.
        split: Column with the split, train or test.
        sites: Names of the sites, by number.

    Raises:
        DataError: If a column is missing, a case occurs twice, or a site number or split is unknown.
    """
    table = read_table(path)
    table.require([name, site, split])
    names, numbers, words = table.column(name), table.column(site), table.column(split)
    known = {str(number): title for number, title in enumerate(sites)}
    first: dict[str, int] = {}
    rows = list(enumerate(table.numbers))
    duplicates = [n for row, n in rows if first.setdefault(names[row], n) != n]
    _raise_if_any("duplicate_row", duplicates, path, name, f"each '{name}' once")
    unknown_sites = [n for row, n in rows if numbers[row] not in known]
    _raise_if_any("unknown_site", unknown_sites, path, site, f"0 to {len(sites) - 1} in '{site}'")
    invalid_splits = [n for row, n in rows if words[row] not in ("train", "test")]
    _raise_if_any("invalid_value", invalid_splits, path, split, f"train or test in '{split}'")
    return PublishedSplits(table, names, [known[n] for n in numbers], [SPLIT_WORDS[word] for word in words])


def unlike_published(
    sites: Sequence[str], splits: Sequence[str], official: Mapping[str, tuple[int, int]], item: str
) -> list[str]:
    """Return a sentence for each site whose size differs from the published one.

    Args:
        sites: Site of each case.
        splits: ``training`` or ``test``, for each case.
        official: Maps each site to its published numbers of training and test cases.
        item: Name of a case in the plural.
    """
    counts = Counter(zip(sites, splits, strict=True))
    return [
        f"{name}: {counts[name, 'training']} training and {counts[name, 'test']} test {item}, published are "
        f"{training} and {test}"
        for name, (training, test) in official.items()
        if (counts[name, "training"], counts[name, "test"]) != (training, test)
    ]


def _raise_if_any(code: str, wrong: Sequence[int], path: Path, column: str, expected: str) -> None:
    """Raise with the given code if there are wrong rows."""
    if wrong:
        raise DataError(
            code,
            f"expected {expected} of {path}, got other entries in {row_list(wrong)}. Use the table as published.",
            path=path,
            column=column,
            rows=wrong,
        )
