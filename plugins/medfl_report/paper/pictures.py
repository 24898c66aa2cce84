"""Pictures of a page, kept while it is made, and written as SVG and PDF.

Whatever draws a picture for a page says so here (`keep`); who wants files opens `kept_pictures` around that. The same
pictures give the same bytes: without dates, without names of programs, with the same ids.
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
"""Ending of a file to metadata, all left out."""

PLAIN: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "medfl",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "savefig.transparent": True,
}
"""Text stays text in both: TrueType in a PDF, as publishers ask for."""


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Attributes:
        name: Letters and digits, unlike that of any other of its section.
        description: What it shows.
        draw: Draws it.
    """

    name: str
    description: str
    draw: Callable[[], Figure]


_kept: ContextVar[list[Picture] | None] = ContextVar("medfl_pictures", default=None)


@contextmanager
def kept_pictures() -> Iterator[list[Picture]]:
    """Keep the pictures that are drawn meanwhile, in their order."""
    pictures: list[Picture] = []
    token = _kept.set(pictures)
    try:
        yield pictures
    finally:
        _kept.reset(token)


def keep(name: str, description: str, draw: Callable[[], Figure]) -> None:
    """Keep a picture if anybody wants it; arguments as in `Picture`, but that one without a name gets a number."""
    pictures = _kept.get()
    if pictures is not None:
        pictures.append(Picture(name or f"image{len(pictures)}", description, draw))


def write_picture(picture: Picture, stem: Path) -> list[Path]:
    """Write a picture in each of `FORMATS`; returns the files.

    Args:
        picture: What to draw.
        stem: The files without their endings.
    """
    figure, written = picture.draw(), []
    with matplotlib.rc_context(PLAIN):
        for ending, metadata in FORMATS.items():
            path = stem.with_name(f"{stem.name}.{ending}")
            figure.savefig(path, format=ending, metadata=metadata)
            written.append(path)
    return written
