"""All pictures and tables of a report in a folder."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from medfl.errors import StoreError
from medfl.utils.files import write_atomic
from medfl.utils.formats import csv_cell
from medfl_report.paper.pictures import Picture, write_picture
from medfl_report.paper.tables import read_tables, to_csv, to_latex

INDEX = "index.csv"
"""What is in the folder: a line for each picture and table."""


class Drawn(Protocol):
    """A section of a page, with the pictures that were drawn for it."""

    @property
    def id(self) -> str:
        """Of the section."""
        ...

    @property
    def pictures(self) -> Sequence[Picture]:
        """In their order."""
        ...


def write_files(html: str, sections: Sequence[Drawn], folder: Path) -> list[Path]:
    """Write every picture as SVG and PDF, every table as CSV and LaTeX, and `INDEX`.

    Args:
        html: The page.
        sections: Its sections.
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
        for section in sections:
            for picture in section.pictures:
                stem = f"{section.id}-{picture.name}"
                written += write_picture(picture, folder / stem)
                index.append([stem, "picture", section.id, picture.description])
    except OSError as error:
        raise StoreError(
            "unwritable_folder",
            f"the pictures can't be written to '{folder}': {error.strerror}. Name another folder.",
            path=folder,
            reason=error.strerror,
        ) from None
    numbers: Counter[str] = Counter()
    for table in read_tables(html):
        name = table.section or "runs"
        numbers[name] += 1
        stem = f"{name}-table{numbers[name]}"
        texts = {"csv": to_csv(table), "tex": to_latex(table, stem)}
        for ending, text in texts.items():
            write_atomic(folder / f"{stem}.{ending}", text.encode())
            written.append(folder / f"{stem}.{ending}")
        index.append([stem, "table", name, table.caption])
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([map(csv_cell, line) for line in index])
    write_atomic(folder / INDEX, lines.getvalue().encode())
    return [*written, folder / INDEX]
