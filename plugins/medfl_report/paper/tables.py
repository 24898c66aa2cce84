"""Tables of a page: a template fills them, the page shows them, and files for papers have the same cells.

A cell is what the page shows of it: text, and small print below, such as an interval. In a file the small print follows
in brackets. Whatever shows a table keeps it (`keep_table`); who wants files opens `kept_tables` around that.
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
"""Spaces that don't break; the sign of numbers."""

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
class Cell:
    """A cell of a table.

    Attributes:
        shown: The number or text, None for an empty cell.
        notes: Small print below it.
        html: HTML that the page shows in place of `shown`, such as a picture.
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
        """Number or text and small print in one line, as in a file."""
        first, *small = (_single_spaced(str(text)) for text in ("" if self.shown is None else self.shown, *self.notes))
        if not first:
            return "; ".join(small)
        return " ".join([first, *(text if text.startswith("±") else f"({text})" for text in small)])

    def with_notes(self, *notes: str | None) -> Cell:
        """Return the cell with more small print; None and empty notes are left out."""
        more = tuple(note for note in notes if note)
        return Cell(self.shown, self.notes + more, self.html, self.look, self.style)


def cell(shown: Any, *notes: str | None, html: Markup | None = None, look: str = "", style: str = "") -> Cell:
    """Return a cell; arguments as the attributes of `Cell`, and a cell as `shown` is returned with the notes."""
    made = shown if isinstance(shown, Cell) else Cell(shown, (), html, look, style)
    return made.with_notes(*notes)


def _single_spaced(text: str) -> str:
    return re.sub(r"[ \t\r\n]+", " ", text).strip()


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: One for each column; the only one of a heading.
        kind: ``plain``, ``total`` for a row that sums up others, ``heading`` for a cell across all columns.
    """

    cells: list[Cell]
    kind: str = "plain"

    def add(self, *cells: Any) -> Row:
        """Add cells in place and return the row."""
        self.cells.extend(map(cell, cells))
        return self


@dataclass
class Table:
    """A table of a page.

    Attributes:
        title: Caption.
        label: Name for screen readers; by default the title.
        look: CSS class of the table.
        texts: Indices of the columns that hold text. If the first column does, its cells head their rows.
        numbers: CSS class of the cells of all other columns.
        spans: Whether the first cell of each group of rows is shown once and spans the group.
        caption: HTML of the caption in place of the title.
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
    heads: list[Cell] = field(default_factory=list)
    groups: list[list[Row]] = field(default_factory=lambda: [[]])

    def head(self, *heads: Any) -> None:
        """Add columns."""
        self.heads += map(cell, heads)

    def row(self, *cells: Any) -> Row:
        """Add a row to the last group and return it."""
        return self._added(Row(list(map(cell, cells))))

    def total(self, *cells: Any) -> Row:
        """Add a row that sums up others to the last group and return it."""
        return self._added(Row(list(map(cell, cells)), "total"))

    def heading(self, *cells: Any) -> None:
        """Add a cell across all columns to the last group."""
        self._added(Row(list(map(cell, cells)), "heading"))

    def group(self) -> None:
        """Begin a group of rows, unless the last one is empty."""
        if self.groups[-1]:
            self.groups.append([])

    @property
    def frame(self) -> pd.DataFrame:
        """Texts of all cells. A cell that spans several columns or rows is repeated in each of them."""
        import pandas as pd  # takes half a second to import

        rows = [self._texts(row) for group in self.groups for row in group]
        return pd.DataFrame(rows, columns=[head.text for head in self.heads], dtype=str)

    def _added(self, row: Row) -> Row:
        self.groups[-1].append(row)
        return row

    def _texts(self, row: Row) -> list[str]:
        cells = row.cells * len(self.heads) if row.kind == "heading" else row.cells
        return [entry.text for entry in cells]

    def _holds_numbers(self, column: int) -> bool:
        """Whether the cells of a column are aligned to the right."""
        rows = [row for group in self.groups for row in group]
        marked = bool(self.numbers) and column not in self.texts
        return bool(rows) and all(
            (marked and row.kind != "heading") or self._texts(row)[column][:1].isdigit() for row in rows
        )


_kept: ContextVar[list[Table] | None] = ContextVar("medfl_tables", default=None)


@contextmanager
def kept_tables() -> Iterator[list[Table]]:
    """Keep the tables that are shown meanwhile, in their order."""
    tables: list[Table] = []
    token = _kept.set(tables)
    try:
        yield tables
    finally:
        _kept.reset(token)


def keep_table(table: Table) -> None:
    """Keep a table if anybody wants it."""
    tables = _kept.get()
    if tables is not None:
        tables.append(table)


def to_csv(table: Table) -> str:
    """Return a table as CSV with plain spaces and signs, so that programs read the numbers. A dash becomes empty."""
    frame = table.frame.map(lambda text: "" if text == MISSING else _ascii(text))
    frame.columns = frame.columns.map(_ascii)
    return csv_table(frame)


def _ascii(text: str) -> str:
    text = re.sub(r"(?<=\d)\u202f(?=\d{3})", "", text)
    return text.translate(SPACES).replace(MINUS, "-")


def to_latex(table: Table, label: str) -> str:
    """Return a table for a paper, with rules of the package booktabs.

    Args:
        table: What to write.
        label: By which the paper refers to it.
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
    """Return a text in which no character has a special meaning for LaTeX."""
    return "".join(LATEX.get(char, char) for char in text)
