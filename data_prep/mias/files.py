"""The films of mini-MIAS: where their files are, which part of one becomes an image, and how it is read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.mammograms import needs_mirror, to_row
from medfl.data.readers.pgm import read_pgm
from medfl.errors import DataError
from medfl_datasets.mias.tables import EDGE, FILE

CONTEXT = 1.5
"""Half the edge of a crop, in radii: what surrounds a lesion is in the image, too."""

LEAST_HALF = 32
"""Half the edge of the smallest crop in pixels, 6.4 mm: the smallest radius is 3 pixels."""

_FILM = re.compile(r"mdb(\d{3})\.pgm", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """What becomes one image.

    Attributes:
        path: The film's file.
        laterality: ``left`` or ``right``.
        circle: x, y (from the bottom) and radius of the lesion to cut out; None means the whole film.
    """

    path: Path
    laterality: str
    circle: tuple[int, int, int] | None = None

    def files(self) -> list[Path]:
        """All that is read."""
        return [self.path]


def find_table(source: Path) -> Path:
    """``Info.txt`` of a release, in small or capital letters.

    Args:
        source: The folder ``all-mias``, or the one that holds it.

    Raises:
        DataError: If it is not there.
    """
    for folder in (source, source / "all-mias"):
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.name.lower() == FILE.lower() and path.is_file():
                    return path
    raise DataError(
        "missing_file",
        f"expected the table {FILE} of mini-MIAS in {source}, there is none. Unpack all-mias.tar.gz and give its "
        "folder as --source.",
        path=source / FILE,
    )


def find_films(folder: Path) -> dict[int, Path]:
    """Number of each film to its file, anywhere below a folder.

    Raises:
        DataError: If there is none, or a film is there more than once.
    """
    films: dict[int, list[Path]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if match := _FILM.fullmatch(name):
                films.setdefault(int(match[1]), []).append(Path(place, name))
    if not films:
        raise DataError(
            "no_images",
            f"expected the films mdb001.pgm, mdb002.pgm, ... of mini-MIAS below {folder}, there are none. Unpack "
            "all-mias.tar.gz whole.",
            path=folder,
        )
    several = sum(len(paths) > 1 for paths in films.values())
    if several:
        raise DataError(
            "duplicate_image",
            f"expected each film once below {folder}, {several} of {len(films)} are there several times. Give the "
            "folder of one copy of the data set.",
            path=folder,
            count=several,
            total=len(films),
        )
    return {number: paths[0] for number, paths in films.items()}


def crop_box(circle: tuple[int, int, int], edge: int = EDGE) -> tuple[int, int, int]:
    """The square to cut out of a film around a lesion.

    It has its centre in that of the circle, and half its edge is `CONTEXT` radii and at least `LEAST_HALF`. At the
    border of the film it is moved inwards; where it is larger than the film, it is the film.

    Args:
        circle: x, y and radius in pixels, where y counts from the bottom.
        edge: Of the film in pixels.

    Returns:
        First row, first column and edge.
    """
    x, y, radius = circle
    half = max(LEAST_HALF, ceil(CONTEXT * radius))
    side = min(2 * half + 1, edge)
    row, column = edge - 1 - y, x
    top, left = (min(max(middle - half, 0), edge - side) for middle in (row, column))
    return top, left, side


def read_part(part: Part, size: tuple[int, int], crop_breast: bool, align: bool) -> LoadedItem:
    """Read a film or cut a lesion out of it.

    Args:
        part: What to read.
        size: Height and width of the result in pixels.
        crop_breast: Whether to cut out the breast.
        align: Whether to mirror right breasts, so that the chest wall is on the left.

    Returns:
        A row of the array, shape `size`, uint16; see `medfl.data.readers.mammograms`.

    Raises:
        DataError: If the file can't be read, or a lesion is to be cut out of a film of another size than the official
            one, on which the coordinates are.
    """
    pixels = read_pgm(part.path)
    if part.circle is not None:
        if pixels.shape != (EDGE, EDGE):
            raise DataError(
                "wrong_shape",
                f"expected a film of {EDGE} x {EDGE} pixels, on which the coordinates of lesions are, got "
                f"{pixels.shape[0]} x {pixels.shape[1]}. Take the official film, or whole films (--view full).",
                what="film",
                expected=(EDGE, EDGE),
                found=pixels.shape,
            )
        top, left, side = crop_box(part.circle)
        pixels = pixels[top : top + side, left : left + side]
    mirror = align and needs_mirror(part.laterality)
    return LoadedItem(to_row(pixels, size, crop=crop_breast, mirror=mirror))
