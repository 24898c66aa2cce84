"""Bodzas-23: 16,027 images of normal and pathological white blood cells in, a pooled data set out.

The release has a folder for each of nine classes with files ``0.bmp``, ``1.bmp``, ... that begin anew in each. Folders
are known in any case, in the singular and plural, with or without an ``e`` at the end (``Basophile``), and by some
other names.
"""

from __future__ import annotations

import re
from pathlib import Path

from medfl_datasets.bloodcells.files import Listing, Release, read_tree
from medfl_datasets.bloodcells.labels import LabelMap, own_classes
from medfl_datasets.bloodcells.pool import OneRelease

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


class Bodzas(OneRelease):
    """Bodzas-23: normal and pathological white blood cells in nine classes. Nothing is downloaded."""

    dataset = "bodzas"
    terms = RELEASE.licence
    citation = RELEASE.citation
    release = RELEASE

    source: Path
    """The folder that holds one for each class, or the one above."""

    def class_map(self) -> LabelMap:
        """Each folder is a class."""
        return own_classes(RELEASE.name, {name: name for name in PUBLISHED})
