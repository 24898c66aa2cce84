"""Bodzas-23: 16,027 images of normal and pathological white blood cells in, a pooled data set out.

The release has a folder for each of nine classes with files ``0.bmp``, ``1.bmp``, ... that begin anew in each. Folders
are known in any case, in the singular and plural, with or without an ``e`` at the end (``Basophile``), and by some
other names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medfl.data.datalists import Datalist
from medfl.utils.text import Say
from medfl_datasets.bloodcells.files import Listing, Release, read_tree
from medfl_datasets.bloodcells.labels import own_classes
from medfl_datasets.bloodcells.options import Cells, located
from medfl_datasets.bloodcells.pool import How, pool_cells

PUBLISHED = {
    "basophil": 1023,
    "eosinophil": 1017,
    "lymphoblast": 2557,
    "lymphocyte": 3046,
    "monocyte": 2040,
    "myeloblast": 2534,
    "neutrophil band": 99,
    "neutrophil segment": 3201,
    "normoblast": 510,
}
"""Class to its number of images."""

ALIASES = {
    "band": "neutrophil band",
    "band neutrophil": "neutrophil band",
    "banded neutrophil": "neutrophil band",
    "erythroblast": "normoblast",
    "neutrophil banded": "neutrophil band",
    "neutrophil segmented": "neutrophil segment",
    "segment": "neutrophil segment",
    "segmented neutrophil": "neutrophil segment",
}
"""Other names of classes, in small letters, without ``e`` and ``s`` at the end."""


def class_of(folder: str) -> str | None:
    """The class of a folder by its name; None if it is of none."""
    words = re.findall("[a-z]+", folder.lower())
    plain = " ".join(re.sub(r"phile$", "phil", word.removesuffix("s")) for word in words)
    name = ALIASES.get(plain, plain)
    return name if name in PUBLISHED else None


def find(source: Path) -> Listing:
    """The cells of a release.

    Args:
        source: The folder that holds the folders of classes, or the one that holds it.

    Raises:
        DataError: If there is no such folder, or as in `Release.listing`.
    """
    top = RELEASE.top(source)
    return RELEASE.listing(read_tree(top), top, lambda known, _: (known, {}))


RELEASE = Release(
    name="bodzas",
    title="Bodzas-23",
    licence="CC BY 4.0",
    citation=(
        "Bodzas, Kodytek and Zidek, A high-resolution large-scale dataset of pathological and normal white blood "
        "cells, Scientific Data 10, 466 (2023), doi:10.1038/s41597-023-02378-7"
    ),
    published=PUBLISHED,
    classes=tuple(PUBLISHED),
    class_of=class_of,
    find=find,
)


def prepare(source: Path, out: Path, how: How | None = None, *, say: Say = lambda _: None) -> Datalist:
    """Turn Bodzas-23 into a pooled data set of nine classes.

    Args:
        source: The folder that holds the folders of classes, or the one that holds it.
        out: The folder to write; it is written whole or not at all.
        how: Sizes and shares; None means the defaults.
        say: Gets licence, citation, counts, warnings and progress, a line each.

    Returns:
        The data list that was written.

    Raises:
        DataError: If the release is wrong, no image of a class is left, or `out` may not be written.
    """
    labels = own_classes(RELEASE.name, {name: name for name in PUBLISHED})
    return pool_cells(RELEASE.name, [(RELEASE, source)], labels, out, how or How(), complete=True, say=say)


class Bodzas(Cells):
    """Bodzas-23: normal and pathological white blood cells in nine classes. Nothing is downloaded."""

    dataset = "bodzas"

    source: Path
    """The folder that holds one for each class, or the one above."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """A folder of its name, or the source folder itself."""
        return located(RELEASE, top)

    def look(self) -> object:
        """The cells of the release."""
        return find(self.source)

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set."""
        return prepare(self.source, out, self.how(workers, force), say=say)
