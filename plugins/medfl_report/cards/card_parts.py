"""Parts of a model card that sections of the report give."""

from __future__ import annotations

from medfl.records.record import Record


class PartTable(Record):
    """A table of a card.

    Attributes:
        title: Text above the table.
        head: Headings of the columns.
        rows: Cells of each row.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class CardPart(Record):
    """Content of a section of a card, without its heading.

    Attributes:
        tables: Tables.
        texts: Paragraphs below the tables, without Markdown.
    """

    tables: tuple[PartTable, ...] = ()
    texts: tuple[str, ...] = ()
