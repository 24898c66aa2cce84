"""Files of ``medfl report --figures``: the tables and figures of a page that a paper would use.

Each table of the page names its files (`ReportTable.file`). The tables of single seeds and sites,
of settings and of runs are on the page only; ``sites.csv`` contains the comparison of all sites in long form.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from medfl.errors import StoreError
from medfl.utils.files import write_atomic
from medfl.utils.formats import csv_cell
from medfl_report.paper.page_figures import PageFigure, write_figure
from medfl_report.paper.page_tables import ReportTable, to_csv, to_latex

INDEX = "index.csv"
"""Name of the file that lists the tables and figures of the folder."""


class PagePart(Protocol):
    """Part of a page with its figures and tables."""

    @property
    def id(self) -> str:
        """Identifier of the part, unique on the page; prefix of the names of the files."""
        ...

    @property
    def figures(self) -> Sequence[PageFigure]:
        """Figures in their order."""
        ...

    @property
    def tables(self) -> Sequence[ReportTable]:
        """Tables in their order."""
        ...


def write_files(parts: Sequence[PagePart], folder: Path) -> list[Path]:
    """Write each figure as SVG and PDF, each table as CSV and LaTeX (`ReportTable.latex`), and `INDEX`.

    Args:
        parts: Parts of the page in their order.
        folder: Folder of the files; files of the same names are replaced.

    Returns:
        Paths of the files.

    Raises:
        StoreError: If a file can't be written.
    """
    written: list[Path] = []
    index = [["file", "kind", "section", "content"]]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            for figure in part.figures:
                stem = part.id if figure.name == part.id else f"{part.id}-{figure.name}"
                written += write_figure(figure, folder / stem)
                index.append([stem, "figure", part.id, figure.description])
    except OSError as error:
        raise StoreError(
            "unwritable_folder",
            f"the figures can't be written to '{folder}': {error.strerror}. Name another folder.",
            path=folder,
            reason=error.strerror,
        ) from None
    for part in parts:
        for number, table in enumerate(part.tables, start=1):
            if table.file == "":
                continue
            stem = table.file or f"{part.id}-table{number}"
            texts = {"csv": to_csv(table)} | ({"tex": to_latex(table, stem)} if table.latex else {})
            for ending, text in texts.items():
                write_atomic(folder / f"{stem}.{ending}", text.encode())
                written.append(folder / f"{stem}.{ending}")
            index.append([stem, "table", part.id, " ".join(table.title.split())])
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([map(csv_cell, line) for line in index])
    write_atomic(folder / INDEX, lines.getvalue().encode())
    return [*written, folder / INDEX]
