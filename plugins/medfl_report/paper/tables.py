"""Tables of a page as CSV and LaTeX: what stands in a cell is what stands in the file.

A page is read as a browser reads it, so a table of any section, also of a plugin's, comes out. Small print in a cell,
such as an interval, follows in brackets; pictures in cells are left out.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

from medfl.utils.formats import csv_cell

SPACES, MINUS, MISSING = str.maketrans("\u202f\u00a0", "  "), "\u2212", "\u2013"
"""Spaces that don't break; the sign of numbers; what stands where there is no number."""

VOID = ("br", "img", "meta", "link")
"""Tags without an end."""

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
"""Character to how LaTeX writes it."""


@dataclass
class Cell:
    """A cell.

    Attributes:
        columns: How many it takes.
        rows: How many it takes.
        number: Whether it stands to the right.
        texts: What stands in it, and then each piece of small print.
    """

    columns: int = 1
    rows: int = 1
    number: bool = False
    texts: list[str] = field(default_factory=lambda: [""])

    @property
    def text(self) -> str:
        """All of it, in a line."""
        first, *small = (" ".join(text.split(" ")).strip() for text in map(_spaced, self.texts))
        small = [text for text in small if text]
        if not first:
            return "; ".join(small)
        return " ".join([first, *(text if text.startswith("±") else f"({text})" for text in small)])


def _spaced(text: str) -> str:
    return re.sub(r"[ \t\r\n]+", " ", text)


@dataclass
class Table:
    """A table.

    Attributes:
        section: Id of the section it stands in; empty before the first one.
        caption: Of the table.
        heads: Rows of the head.
        groups: Rows of the body, in their groups.
    """

    section: str
    caption: str = ""
    heads: list[list[Cell]] = field(default_factory=list)
    groups: list[list[list[Cell]]] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """The head, a text for each column."""
        grid = _grid(self.heads)
        return [
            " ".join(dict.fromkeys(filter(None, (cell.text for cell in column)))) for column in zip(*grid, strict=True)
        ]

    @property
    def bodies(self) -> list[list[list[str]]]:
        """The rows of each group; a cell that takes several places stands in each of them."""
        return [[[cell.text for cell in row] for row in _grid(group)] for group in self.groups if group]

    def numeric(self, column: int) -> bool:
        """Whether the cells of a column stand to the right, as numbers do."""
        cells = [row[column] for group in self.groups for row in _grid(group) if column < len(row)]
        return bool(cells) and all(cell.number or cell.text[:1].isdigit() for cell in cells)


def _grid(rows: list[list[Cell]]) -> list[list[Cell]]:
    """Rows in which every cell takes one place."""
    grid: list[list[Cell]] = [[] for _ in rows]
    waiting: dict[tuple[int, int], Cell] = {}
    for place, row in enumerate(rows):
        cells = iter(row)
        while True:
            column = len(grid[place])
            if (place, column) in waiting:
                grid[place].append(waiting.pop((place, column)))
                continue
            cell = next(cells, None)
            if cell is None:
                break
            for across in range(cell.columns):
                grid[place].append(cell)
                waiting |= {(place + down, column + across): cell for down in range(1, cell.rows)}
    return grid


class _Reader(HTMLParser):
    """Finds the tables of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self._section, self._open = "", list[str]()
        self._cell: Cell | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "section":
            self._section = attributes.get("id") or ""
        elif tag == "table":
            self.tables.append(Table(self._section))
        elif tag == "tbody":
            self.tables[-1].groups.append([])
        elif tag == "tr":
            self._rows().append([])
        elif tag in ("td", "th"):
            columns, rows = (int(attributes.get(name) or 1) for name in ("colspan", "rowspan"))
            self._cell = Cell(columns, rows, "n" in (attributes.get("class") or "").split())
            self._rows()[-1].append(self._cell)
        elif tag == "br":
            self.handle_data(" ")
        elif tag == "small" and self._cell is not None:
            self._cell.texts.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Only pictures have such tags."""

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag in ("td", "th"):
            self._cell = None
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        if "svg" in self._open:
            return
        if self._cell is not None:
            place = -1 if "small" in self._open else 0
            self._cell.texts[place] += data
        elif "caption" in self._open:
            self.tables[-1].caption += data

    def _rows(self) -> list[list[Cell]]:
        table = self.tables[-1]
        if "thead" in self._open:
            return table.heads
        if not table.groups:
            table.groups.append([])
        return table.groups[-1]


def read_tables(html: str) -> list[Table]:
    """The tables of a page that have a head, in their order.

    Args:
        html: A page of medfl's, whose tables are not nested.
    """
    reader = _Reader()
    reader.feed(html)
    reader.close()
    for table in reader.tables:
        table.caption = " ".join(_spaced(table.caption).split())
    return [table for table in reader.tables if table.heads]


def to_csv(table: Table) -> str:
    """A table as CSV: plain spaces and signs, so that programs read the numbers; nothing where the page has a dash."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_cell(_ascii(name)) for name in table.columns])
    for group in table.bodies:
        writer.writerows([["" if cell == MISSING else csv_cell(_ascii(cell)) for cell in row] for row in group])
    return text.getvalue()


def _ascii(text: str) -> str:
    text = re.sub(r"(?<=\d)\u202f(?=\d{3})", "", text)
    return text.translate(SPACES).replace(MINUS, "-")


def to_latex(table: Table, label: str) -> str:
    """A table for a paper, with rules of the package booktabs.

    Args:
        table: What to write.
        label: By which the paper refers to it.
    """
    places = "".join("r" if table.numeric(column) else "l" for column in range(len(table.columns)))
    groups = ["\n".join(map(_line, group)) for group in table.bodies]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{latex(table.caption)}}}",
            f"\\label{{tab:{label}}}",
            f"\\begin{{tabular}}{{{places}}}",
            "\\toprule",
            _line(table.columns),
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
    """A text in which nothing means more than itself."""
    return "".join(LATEX.get(char, char) for char in text)
