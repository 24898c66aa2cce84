"""Tables of a page, and their export as CSV and LaTeX with the same cells.

A cell contains text and notes below it, such as an interval. In a file the notes follow the text in parentheses. Code
that shows a table records it with `record_table`; code that writes files collects the tables with `recorded_tables`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from medfl.utils.formats import MISSING, csv_table

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup

SPACES, MINUS = str.maketrans("\u202f\u00a0", "  "), "\u2212"
"""`SPACES`: translation table from non-breaking to plain spaces. `MINUS`: the minus sign of negative numbers."""

LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    MINUS: "$-$",
    MISSING: "--",
    "±": r"$\pm$",
    "²": r"$^2$",
    "³": r"$^3$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "×": r"$\times$",
    "←": r"$\leftarrow$",
    "→": r"$\rightarrow$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
    "\u202f": r"\,",
    "\u00a0": "~",
}
"""Maps a character to its LaTeX code."""


@dataclass(frozen=True)
class TableCell:
    """Cell of a table.

    Attributes:
        shown: Number or text; None for an empty cell.
        notes: Notes in small print below `shown`.
        html: HTML that the page shows in place of `shown`, such as a figure; None to show `shown`.
        look: CSS class.
        style: Inline CSS.
    """

    shown: Any = None
    notes: tuple[str, ...] = ()
    html: Markup | None = None
    look: str = ""
    style: str = ""

    @property
    def text(self) -> str:
        """Text and notes in one line, as in a file."""
        first, *small = (_single_spaced(str(text)) for text in ("" if self.shown is None else self.shown, *self.notes))
        if not first:
            return "; ".join(small)
        return " ".join([first, *(text if text.startswith("±") else f"({text})" for text in small)])

    def with_notes(self, *notes: str | None) -> TableCell:
        """Return a copy of the cell with additional notes; None and empty notes are left out."""
        more = tuple(note for note in notes if note)
        return TableCell(self.shown, self.notes + more, self.html, self.look, self.style)


def cell(shown: Any, *notes: str | None, html: Markup | None = None, look: str = "", style: str = "") -> TableCell:
    """Return a cell with the given attributes of `TableCell`; if `shown` is a cell, return it with additional notes."""
    made = shown if isinstance(shown, TableCell) else TableCell(shown, (), html, look, style)
    return made.with_notes(*notes)


def _single_spaced(text: str) -> str:
    return re.sub(r"[ \t\r\n]+", " ", text).strip()


@dataclass(frozen=True)
class TableRow:
    """Row of a table.

    Attributes:
        cells: One cell for each column; a single cell for a heading.
        kind: ``plain``, ``total`` for a summary of other rows, or ``heading`` for one cell across all columns.
    """

    cells: list[TableCell]
    kind: str = "plain"

    def add(self, *cells: Any) -> TableRow:
        """Add cells in place and return the row."""
        self.cells.extend(map(cell, cells))
        return self


@dataclass
class ReportTable:
    """Table of a page.

    Attributes:
        title: Caption.
        label: Name for screen readers; by default the title.
        look: CSS class of the table.
        texts: Indices of the columns with text. If the first column has text, its cells are row headers.
        numbers: CSS class of the cells in the columns that are not in `texts`.
        spans: True to show the first cell of each group of rows once, spanning the group.
        caption: HTML of the caption in place of the title; None to show the title.
        file: Name of the table's files without ending. None for ``<section>-table<n>``; empty for no files.
        latex: True to write the table as LaTeX besides CSV.
        heads: Heads of the columns.
        groups: Groups of rows.
    """

    title: str
    label: str = ""
    look: str = ""
    texts: Collection[int] = (0,)
    numbers: str = "n"
    spans: bool = False
    caption: Markup | None = None
    file: str | None = None
    latex: bool = True
    heads: list[TableCell] = field(default_factory=list)
    groups: list[list[TableRow]] = field(default_factory=lambda: [[]])

    def head(self, *heads: Any) -> None:
        """Add columns with the given heads, in place."""
        self.heads += map(cell, heads)

    def row(self, *cells: Any) -> TableRow:
        """Add a row to the last group and return it."""
        return self._added(TableRow(list(map(cell, cells))))

    def total(self, *cells: Any) -> TableRow:
        """Add a summary row to the last group and return it."""
        return self._added(TableRow(list(map(cell, cells)), "total"))

    def heading(self, *cells: Any) -> None:
        """Add a cell across all columns to the last group."""
        self._added(TableRow(list(map(cell, cells)), "heading"))

    def group(self) -> None:
        """Begin a new group of rows, unless the last group is empty."""
        if self.groups[-1]:
            self.groups.append([])

    @property
    def frame(self) -> pd.DataFrame:
        """Data frame with the texts of all cells. A cell that spans columns or rows is repeated in each of them."""
        import pandas as pd  # takes half a second to import

        rows = [self._texts(row) for group in self.groups for row in group]
        return pd.DataFrame(rows, columns=[head.text for head in self.heads], dtype=str)

    def _added(self, row: TableRow) -> TableRow:
        self.groups[-1].append(row)
        return row

    def _texts(self, row: TableRow) -> list[str]:
        cells = row.cells * len(self.heads) if row.kind == "heading" else row.cells
        return [entry.text for entry in cells]

    def _holds_numbers(self, column: int) -> bool:
        """Return whether the cells of a column are aligned to the right."""
        rows = [row for group in self.groups for row in group]
        marked = bool(self.numbers) and column not in self.texts
        return bool(rows) and all(
            (marked and row.kind != "heading") or self._texts(row)[column][:1].isdigit() for row in rows
        )


_recorded: ContextVar[list[ReportTable] | None] = ContextVar("medfl_tables", default=None)


@contextmanager
def recorded_tables() -> Iterator[list[ReportTable]]:
    """Yield a list that collects the tables recorded within the ``with`` block, in their order."""
    tables: list[ReportTable] = []
    token = _recorded.set(tables)
    try:
        yield tables
    finally:
        _recorded.reset(token)


def record_table(table: ReportTable) -> None:
    """Record a table if a block of `recorded_tables` is open."""
    tables = _recorded.get()
    if tables is not None:
        tables.append(table)


def to_csv(table: ReportTable) -> str:
    """Return a table as CSV with plain spaces and signs, so that programs read the numbers; a dash becomes empty."""
    frame = table.frame.map(lambda text: "" if text == MISSING else _ascii(text))
    frame.columns = frame.columns.map(_ascii)
    return csv_table(frame)


def _ascii(text: str) -> str:
    text = re.sub(r"(?<=\d)\u202f(?=\d{3})", "", text)
    return text.translate(SPACES).replace(MINUS, "-")


def to_latex(table: ReportTable, label: str) -> str:
    """Return a table as LaTeX with rules of the package booktabs.

    Args:
        table: The table.
        label: Label for references, without the prefix ``tab:``.
    """
    places = "".join("r" if table._holds_numbers(column) else "l" for column in range(len(table.heads)))
    groups = ["\n".join(_line(table._texts(row)) for row in group) for group in table.groups if group]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{latex(' '.join(table.title.split()))}}}",
            f"\\label{{tab:{label}}}",
            f"\\begin{{tabular}}{{{places}}}",
            "\\toprule",
            _line(list(table.frame.columns)),
            "\\midrule",
            "\n\\midrule\n".join(groups),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def _line(cells: list[str]) -> str:
    return " & ".join(map(latex, cells)) + r" \\"


def latex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(LATEX.get(char, char) for char in text)
