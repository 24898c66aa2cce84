"""Content that sections of the report contribute to a model card."""

from __future__ import annotations

from medfl.records.record import Record


class SectionTable(Record):
    """Table in a section of a model card.

    Attributes:
        title: Caption above the table.
        head: Headings of the columns.
        rows: Cells of each row, as many as `head` has.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class SectionContent(Record):
    """Content of a section of a model card: tables and paragraphs, without the heading.

    Attributes:
        tables: Tables, in order.
        texts: Paragraphs below the tables. They are plain text; Markdown in them is escaped.
    """

    tables: tuple[SectionTable, ...] = ()
    texts: tuple[str, ...] = ()
