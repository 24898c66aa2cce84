"""Read and check the tables of CelebA, in the authors' form (txt, separated by blanks) or Kaggle's form (csv).

::

    list_attr_celeba.txt          202599                             number of images
                                  5_o_Clock_Shadow Arched_Eyebrows ...      40 names
                                  000001.jpg -1  1  1 -1 ...         1: has the attribute, -1: has it not
    list_attr_celeba.csv          image_id,5_o_Clock_Shadow,...      and rows 000001.jpg,-1,1,1,-1,...
    list_eval_partition.txt       000001.jpg 0                       0 training, 1 validation, 2 test
    list_eval_partition.csv       image_id,partition                 and rows as above
    identity_CelebA.txt           000001.jpg 2880                    number of the person

Images are identified by their names without ending. Messages number the lines of the file from 1, and contain no name
of an image or person. Source: Liu, Luo, Wang and Tang, Deep Learning Face Attributes in the Wild, ICCV 2015.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from medfl.data.datalists import SPLITS
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.utils.text import first_names

T = TypeVar("T")
"""Type of the values of a table."""


@dataclass(frozen=True)
class AttributeColumn:
    """One attribute of all images; the lists have an entry for each image.

    Attributes:
        name: Name of the attribute, as the table writes it.
        images: Image names without ending.
        present: 1 for images that have the attribute, otherwise 0.
        lines: Line number of each image in the table.
        known: Number of attributes in the table.
    """

    name: str
    images: list[str]
    present: list[int]
    lines: list[int]
    known: int


@dataclass(frozen=True)
class _TableColumn:
    """One column of a table; the lists have an entry for each row.

    Attributes:
        path: The table.
        columns: Names of all columns but the first; empty if the table has no header.
        names: First cell of each row, the file name of an image.
        values: Cell of the chosen column.
        lines: Line number of each row.
    """

    path: Path
    columns: list[str]
    names: list[str]
    values: list[str]
    lines: list[int]


def read_attribute(path: Path, attribute: str) -> AttributeColumn:
    """Read one attribute of all images.

    Args:
        path: ``list_attr_celeba.txt`` or ``.csv``.
        attribute: Name of the attribute, in upper or lower case.

    Raises:
        DataError: If the table is truncated or damaged, names an image twice, or has a value other than -1 and 1.
        SettingsError: If the table has no such attribute.
    """
    lines = _read_lines(path)
    count = _pop_image_count(path, lines) if path.suffix.lower() == ".txt" else None
    rows = _read_column(path, lines, attribute)
    if count is not None and count != len(rows.names):
        raise DataError(
            "wrong_row_count",
            f"expected {count} images in {path}, as its first line says, got {len(rows.names)}. Download it again.",
            path=path,
            expected=count,
            found=len(rows.names),
        )
    name = rows.columns[_column_number(rows.columns, attribute) - 1]
    present = _translate_cells(rows, {"1": 1, "-1": 0}, f"1 or -1 for the attribute '{name}'")
    return AttributeColumn(name, _image_names(rows), present, rows.lines, len(rows.columns))


def read_splits(path: Path) -> dict[str, str]:
    """Read the official split.

    Args:
        path: ``list_eval_partition.txt`` or ``.csv``.

    Returns:
        Maps each image to one of `medfl.data.datalists.SPLITS`.

    Raises:
        DataError: If the table is damaged, names an image twice, or has a value other than 0, 1 and 2.
    """
    rows = _read_pairs(path)
    known = {str(number): split for number, split in enumerate(SPLITS)}
    return dict(
        zip(
            _image_names(rows), _translate_cells(rows, known, "0, 1 or 2 for training, validation or test"), strict=True
        )
    )


def read_identities(path: Path) -> dict[str, str]:
    """Read the person in each image.

    Args:
        path: ``identity_CelebA.txt`` or ``.csv``.

    Returns:
        Maps each image to the number of its person.

    Raises:
        DataError: If the table is damaged or names an image twice.
    """
    rows = _read_pairs(path)
    wrong = [line for line, number in zip(rows.lines, rows.values, strict=True) if not number.isdecimal()]
    _raise_lines(rows.path, "invalid_value", wrong, len(rows.names), "the number of a person")
    return dict(zip(_image_names(rows), rows.values, strict=True))


def lookup_images(table: dict[str, T], images: Sequence[str], path: Path) -> list[T]:
    """Return the value of a table for each image, in the order of `images`.

    Args:
        table: Maps each image name to its value.
        images: Image names, from the attribute table.
        path: File of the table, for messages.

    Raises:
        DataError: If an image is not in the table.
    """
    missing = sum(image not in table for image in images)
    if missing:
        raise DataError(
            "missing_row",
            f"{missing} of {len(images)} images of the attribute table are not in {path}. The files do not belong "
            "together: take all of one release.",
            path=path,
            count=missing,
            total=len(images),
        )
    return [table[image] for image in images]


def _read_lines(path: Path) -> list[tuple[int, str]]:
    """Read the non-empty lines of a file as (line number, text); raise DataError if the file can't be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(
            "unreadable_file",
            f"the table {path} can't be read: {error.strerror}. Download it again.",
            path=path,
            reason=error.strerror,
        ) from None
    except UnicodeDecodeError:
        raise DataError(
            "wrong_encoding", f"expected a table in UTF-8, {path} is not. Download it again.", path=path
        ) from None
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _pop_image_count(path: Path, lines: list[tuple[int, str]]) -> int:
    """Parse the number of images in the first line and remove that line from `lines`, in place."""
    first = lines.pop(0)[1].strip() if lines else ""
    if not first.isdecimal():
        raise DataError(
            "missing_row_count",
            f"expected the number of images in the first line of {path}, it is not a number. Download again.",
            path=path,
        )
    return int(first)


def _read_pairs(path: Path) -> _TableColumn:
    """Read a table of two columns; only the csv form has a header."""
    return _read_column(path, _read_lines(path), None)


def _read_column(path: Path, lines: list[tuple[int, str]], attribute: str | None) -> _TableColumn:
    """Read one column of a table and remove the header from `lines`, in place.

    Args:
        path: The table. In txt form the header has no name for the first column.
        lines: Lines of the table as (line number, text).
        attribute: Name of the column; None for the second of two columns.

    Raises:
        DataError: If a row has the wrong number of cells, or there are no rows.
    """
    is_csv = path.suffix.lower() == ".csv"
    split: Callable[[str], list[str]] = (lambda line: next(csv.reader([line]))) if is_csv else str.split
    header = is_csv or attribute is not None
    columns = [name.strip() for name in split(lines.pop(0)[1])[is_csv:]] if header and lines else []
    place, width = (1, 2) if attribute is None else (_column_number(columns, attribute), 1 + len(columns))
    names, values, wrong = [], [], []
    for number, line in lines:
        cells = split(line)
        if len(cells) == width:
            names.append(cells[0].strip())
            values.append(cells[place].strip())
        else:
            wrong.append(number)
    _raise_lines(path, "wrong_cell_count", wrong, len(lines), f"{width} cells", expected=width)
    if not names:
        raise DataError("empty_table", f"expected rows of images in {path}, found none. Download it again.", path=path)
    return _TableColumn(path, columns, names, values, [number for number, _ in lines])


def _column_number(columns: Sequence[str], attribute: str) -> int:
    """Return the column index of an attribute, from 1; raise SettingsError if it is unknown."""
    places = {name.lower(): place for place, name in enumerate(columns, 1)}
    if attribute.lower() not in places:
        raise SettingsError(
            "unknown_choice",
            f"unknown attribute '{attribute}'. {did_you_mean(attribute, columns)}",
            what="attribute",
            choice=attribute,
        )
    return places[attribute.lower()]


def _image_names(rows: _TableColumn) -> list[str]:
    """Return the image names without ending; raise DataError if one occurs twice."""
    images = [PurePosixPath(name).stem for name in rows.names]
    counts = Counter(images)
    duplicates = [line for line, image in zip(rows.lines, images, strict=True) if counts[image] > 1]
    _raise_lines(rows.path, "duplicate_row", duplicates, len(images), "another image than in all other rows")
    return images


def _translate_cells(rows: _TableColumn, known: dict[str, T], what: str) -> list[T]:
    """Translate the cells by the mapping `known`; raise DataError for an unknown cell."""
    wrong = [line for line, value in zip(rows.lines, rows.values, strict=True) if value not in known]
    _raise_lines(rows.path, "invalid_value", wrong, len(rows.values), what, expected=list(known))
    return [known[value] for value in rows.values]


def _raise_lines(path: Path, code: str, wrong: Sequence[int], rows: int, what: str, **fields: Any) -> None:
    """Raise a DataError that names the line numbers `wrong`, if there are any."""
    if wrong:
        raise DataError(
            code,
            f"expected {what} in each row of {path}, {len(wrong)} of {rows} rows have something else: "
            f"line{'s' if len(wrong) > 1 else ''} {first_names(wrong)}. Correct them, or download the table again.",
            path=path,
            lines=wrong,
            total=rows,
            **fields,
        )
