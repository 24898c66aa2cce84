"""Find the table and the films of mini-MIAS, and read a film or a crop of one."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.mammograms import needs_mirror, to_row
from medfl.errors import DataError
from medfl_datasets.mias.pgm import read_pgm
from medfl_datasets.mias.tables import EDGE, TABLE_FILE

CROP_RADII = 1.5
"""Half the edge of a crop, in radii of the lesion. It exceeds 1, so that the crop shows the lesion's surroundings."""

MIN_HALF_EDGE = 32
"""Minimum of half a crop's edge in pixels (6.4 mm); needed because the smallest lesion has a radius of 3 pixels."""

_FILM = re.compile(r"mdb(\d{3})\.pgm", re.IGNORECASE)


@dataclass(frozen=True)
class MiasImage:
    """File of one image of the data set, and the crop to take from it.

    Attributes:
        path: File of the film.
        laterality: ``left`` or ``right``.
        circle: x, y (from the bottom) and radius of the lesion to crop, in pixels; None for the whole film.
    """

    path: Path
    laterality: str
    circle: tuple[int, int, int] | None = None

    def files(self) -> list[Path]:
        """Return the files that are read: only the file of the film."""
        return [self.path]


def find_table(source: Path) -> Path:
    """Return the file ``Info.txt`` of a release, in upper or lower case.

    Args:
        source: The folder ``all-mias``, or the one that contains it.

    Raises:
        DataError: If the file is missing.
    """
    for folder in (source, source / "all-mias"):
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.name.lower() == TABLE_FILE.lower() and path.is_file():
                    return path
    raise DataError(
        "missing_file",
        f"expected the table {TABLE_FILE} of mini-MIAS in {source}, found none. Unpack all-mias.tar.gz and give its "
        "folder as --source.",
        path=source / TABLE_FILE,
    )


def find_films(folder: Path) -> dict[int, Path]:
    """Find the films in a folder and all its subfolders.

    Returns:
        Maps the number of each film to its file.

    Raises:
        DataError: If there is no film, or a film has several files.
    """
    films: dict[int, list[Path]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if match := _FILM.fullmatch(name):
                films.setdefault(int(match[1]), []).append(Path(place, name))
    if not films:
        raise DataError(
            "no_images",
            f"expected the films mdb001.pgm, mdb002.pgm, ... of mini-MIAS below {folder}, found none. Unpack "
            "all-mias.tar.gz completely.",
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
    """Compute the square crop around a lesion.

    Its centre is the centre of the circle. Half its edge is `CROP_RADII` radii, and at least `MIN_HALF_EDGE`. At the
    border of the film the crop moves inwards. A crop larger than the film becomes the whole film.

    Args:
        circle: x, y and radius in pixels; y counts from the bottom.
        edge: Edge of the film in pixels.

    Returns:
        First row, first column and edge.
    """
    x, y, radius = circle
    half = max(MIN_HALF_EDGE, ceil(CROP_RADII * radius))
    side = min(2 * half + 1, edge)
    row, column = edge - 1 - y, x
    top, left = (min(max(middle - half, 0), edge - side) for middle in (row, column))
    return top, left, side


def read_film_or_crop(image: MiasImage, size: tuple[int, int], crop_breast: bool, align: bool) -> LoadedItem:
    """Read a film, or the crop of a lesion.

    Args:
        image: File, and the lesion to crop.
        size: Height and width of the result in pixels.
        crop_breast: Whether to crop the film to the breast.
        align: Whether to mirror right breasts, so that the chest wall is on the left.

    Returns:
        Row of the array, shape `size`, uint16; see `medfl.data.readers.mammograms`.

    Raises:
        DataError: If the file can't be read, or if a lesion is to be cropped from a film that does not have the
            official size, to which the coordinates refer.
    """
    pixels = read_pgm(image.path)
    if image.circle is not None:
        if pixels.shape != (EDGE, EDGE):
            raise DataError(
                "wrong_shape",
                f"expected a film of {EDGE} x {EDGE} pixels, on which the coordinates of lesions are, got "
                f"{pixels.shape[0]} x {pixels.shape[1]}. Take the official film, or whole films (--view full).",
                what="film",
                expected=(EDGE, EDGE),
                found=pixels.shape,
            )
        top, left, side = crop_box(image.circle)
        pixels = pixels[top : top + side, left : left + side]
    mirror = align and needs_mirror(image.laterality)
    return LoadedItem(to_row(pixels, size, crop=crop_breast, mirror=mirror))
