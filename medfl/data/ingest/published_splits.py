"""Splits that a benchmark published as a table: which case is at which site, and which are for its tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.data.table import Table, read_table, row_list
from medfl.errors import DataError
from medfl.ingest.labels import SPLIT_WORDS


@dataclass(frozen=True)
class PublishedSplits:
    """A table of splits that was read; lists have an entry for each case.

    Attributes:
        table: The file.
        names: What the table calls each case, each one once; they must not be written anywhere.
        sites: Names of the sites.
        splits: ``training`` or ``test``.
    """

    table: Table
    names: list[str]
    sites: list[str]
    splits: list[str]


def find_table(source: Path, name: str, option: Path | None = None, whose: str = "") -> Path:
    """A table that lies in a release, or in a folder in it, or elsewhere.

    Args:
        source: The folder of the release.
        name: Of the table's file.
        option: What the user gave instead as ``--splits``: the file.
        whose: Where the table is published, for the message.

    Raises:
        DataError: If it is not there, or several of that name are.
    """
    files = [option] if option else sorted(path for path in source.rglob(name) if path.is_file())
    if len(files) == 1 and files[0].is_file():
        return files[0]
    if len(files) > 1:
        raise DataError(
            "ambiguous_file",
            f"expected one table {name} in {source}, there are {len(files)}. Name the one with --splits.",
            file=name,
            folder=source,
            count=len(files),
        )
    raise DataError(
        "missing_file",
        f"expected the table {option or f'{name} in {source} or a folder in it'}, there is none. Copy it there{whose}, "
        "or name it with --splits.",
        file=option or name,
        folder=source,
    )


def read_splits(path: Path, name: str, site: str, split: str, sites: Sequence[str]) -> PublishedSplits:
    """Read a table of splits.

    Args:
        path: The table.
        name: Column that names the cases.
        site: Column with the numbers of sites, from 0.
        split: Column with the split, train or test.
        sites: Names of the sites, by their numbers.

    Raises:
        DataError: If a column is missing, a case is there twice, a site has no number of these, or a split is another.
    """
    table = read_table(path)
    table.require([name, site, split])
    names, numbers, words = table.column(name), table.column(site), table.column(split)
    known = {str(number): title for number, title in enumerate(sites)}
    first: dict[str, int] = {}
    rows = list(enumerate(table.numbers))
    again = [n for row, n in rows if first.setdefault(names[row], n) != n]
    _refuse("duplicate_row", again, path, name, f"each '{name}' once")
    elsewhere = [n for row, n in rows if numbers[row] not in known]
    _refuse("unknown_site", elsewhere, path, site, f"0 to {len(sites) - 1} in '{site}'")
    other = [n for row, n in rows if words[row] not in ("train", "test")]
    _refuse("invalid_value", other, path, split, f"train or test in '{split}'")
    return PublishedSplits(table, names, [known[n] for n in numbers], [SPLIT_WORDS[word] for word in words])


def unlike_published(
    sites: Sequence[str], splits: Sequence[str], official: Mapping[str, tuple[int, int]], item: str
) -> list[str]:
    """How the sizes of sites differ from those that were published: sentences, none if they do not.

    Args:
        sites: The site of each case.
        splits: ``training`` or ``test``, of each case.
        official: Site to its published numbers of training and test cases.
        item: What a case is called, several of them.
    """
    counts = Counter(zip(sites, splits, strict=True))
    return [
        f"{name}: {counts[name, 'training']} training and {counts[name, 'test']} test {item}, published are "
        f"{training} and {test}"
        for name, (training, test) in official.items()
        if (counts[name, "training"], counts[name, "test"]) != (training, test)
    ]


def _refuse(code: str, wrong: Sequence[int], path: Path, column: str, expected: str) -> None:
    if wrong:
        raise DataError(
            code,
            f"expected {expected} of {path}, not so in {row_list(wrong)}. Take the table as published.",
            path=path,
            column=column,
            rows=wrong,
        )
