"""Figures of a page, recorded while the page is made, and written as SVG and PDF.

Code that draws a figure records it with `record_figure`; code that writes files collects the recorded figures with
`recorded_figures`. The same figures give the same bytes: files have no dates and no program names, and ids are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

FORMATS: dict[str, Any] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}
"""Mapping from each file ending to the metadata that matplotlib must leave out, so that the files don't change."""

PLAIN: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "medfl",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "savefig.transparent": True,
}
"""Matplotlib settings of files: text remains text, with TrueType fonts in a PDF as publishers require."""


@dataclass(frozen=True)
class PageFigure:
    """Figure of a page.

    Attributes:
        name: Name of letters and digits, unique within the section.
        description: Content of the figure in words.
        draw: Function that draws the figure.
    """

    name: str
    description: str
    draw: Callable[[], Figure]


_recorded: ContextVar[list[PageFigure] | None] = ContextVar("medfl_figures", default=None)


@contextmanager
def recorded_figures() -> Iterator[list[PageFigure]]:
    """Yield a list that collects the figures recorded within the ``with`` block, in their order."""
    figures: list[PageFigure] = []
    token = _recorded.set(figures)
    try:
        yield figures
    finally:
        _recorded.reset(token)


def record_figure(name: str, description: str, draw: Callable[[], Figure]) -> None:
    """Record a figure for files if a block of `recorded_figures` is open.

    Args:
        name: Name of letters and digits, unique within the section; an empty name becomes ``image<n>``.
        description: Content of the figure in words.
        draw: Function that draws the figure.
    """
    figures = _recorded.get()
    if figures is not None:
        figures.append(PageFigure(name or f"image{len(figures)}", description, draw))


def write_figure(page_figure: PageFigure, stem: Path) -> list[Path]:
    """Write a figure in each of `FORMATS` and return the paths of the files.

    Args:
        page_figure: The figure.
        stem: Path of the files without ending.
    """
    figure, written = page_figure.draw(), []
    with matplotlib.rc_context(PLAIN):
        for ending, metadata in FORMATS.items():
            path = stem.with_name(f"{stem.name}.{ending}")
            figure.savefig(path, format=ending, metadata=metadata)
            written.append(path)
    return written
