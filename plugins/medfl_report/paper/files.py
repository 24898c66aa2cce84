"""All pictures and tables of a report in a folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from medfl.errors import StoreError
from medfl.utils.files import write_atomic
from medfl.utils.formats import csv_cell
from medfl_report.paper.pictures import Picture, write_picture
from medfl_report.paper.tables import Table, to_csv, to_latex

INDEX = "index.csv"
"""What is in the folder: a line for each picture and table."""


class Part(Protocol):
    """A part of a page, with its pictures and tables."""

    @property
    def id(self) -> str:
        """Identifier that is unique on the page."""
        ...

    @property
    def pictures(self) -> Sequence[Picture]:
        """Pictures in their order."""
        ...

    @property
    def tables(self) -> Sequence[Table]:
        """Tables in their order."""
        ...


def write_files(parts: Sequence[Part], folder: Path) -> list[Path]:
    """Write every picture as SVG and PDF, every table as CSV and LaTeX, and `INDEX`.

    Args:
        parts: Parts of the page in their order.
        folder: Where to; files of the same names are replaced.

    Returns:
        The files.

    Raises:
        StoreError: If one can't be written.
    """
    written: list[Path] = []
    index = [["file", "kind", "section", "what it shows"]]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            for picture in part.pictures:
                stem = f"{part.id}-{picture.name}"
                written += write_picture(picture, folder / stem)
                index.append([stem, "picture", part.id, picture.description])
    except OSError as error:
        raise StoreError(
            "unwritable_folder",
            f"the pictures can't be written to '{folder}': {error.strerror}. Name another folder.",
            path=folder,
            reason=error.strerror,
        ) from None
    for part in parts:
        for number, table in enumerate(part.tables, start=1):
            stem = f"{part.id}-table{number}"
            texts = {"csv": to_csv(table), "tex": to_latex(table, stem)}
            for ending, text in texts.items():
                write_atomic(folder / f"{stem}.{ending}", text.encode())
                written.append(folder / f"{stem}.{ending}")
            index.append([stem, "table", part.id, " ".join(table.title.split())])
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([map(csv_cell, line) for line in index])
    write_atomic(folder / INDEX, lines.getvalue().encode())
    return [*written, folder / INDEX]
