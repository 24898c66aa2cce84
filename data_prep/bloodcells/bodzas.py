"""Spec of Bodzas-23: 16,027 images of normal and pathological white blood cells.

The release has a folder for each of nine classes; the files of each are numbered from ``0.bmp``. Folder names are
matched in upper or lower case, in singular or plural, with or without a final ``e`` (``Basophile``), and by the aliases
below.

Prepared data set: see `medfl_datasets.bloodcells.cell_spec`.
"""

from __future__ import annotations

import re
from pathlib import Path

from medfl_datasets.bloodcells.cell_spec import SingleReleaseSpec
from medfl_datasets.bloodcells.files import CellListing, CellRelease, read_tree
from medfl_datasets.bloodcells.labels import LabelMap, single_release_map

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
"""Maps each class to its published number of images."""

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
"""Maps other folder names, in lower case, without a final ``e`` or ``s``, to the class."""


def class_of(folder: str) -> str | None:
    """Return the class (a key of `PUBLISHED`) that a folder's name states; None if the folder is not a class folder."""
    words = re.findall("[a-z]+", folder.lower())
    plain = " ".join(re.sub(r"phile$", "phil", word.removesuffix("s")) for word in words)
    name = ALIASES.get(plain, plain)
    return name if name in PUBLISHED else None


def find(source: Path) -> CellListing:
    """Find the class folders of Bodzas-23 and list the cells.

    Args:
        source: The folder that contains the class folders, or its parent.

    Raises:
        DataError: If there is no such folder, or a class folder is missing, empty or unknown.
    """
    top = RELEASE.top(source)
    return RELEASE.listing(read_tree(top), top, lambda known, _: (known, {}))


RELEASE = CellRelease(
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
"""Description of Bodzas-23: names, licence, published numbers, and the function that lists its images."""


class Bodzas(SingleReleaseSpec):
    """Bodzas-23: normal and pathological white blood cells in nine classes. Nothing is downloaded.

    Source: Bodzas et al., Scientific Data 10, 466 (2023). Licence: CC BY 4.0.
    """

    dataset = "bodzas"
    """Name of the data set, as users type it."""
    terms = RELEASE.licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = RELEASE.citation
    """Publications to cite, which the user sees before reading starts and the data list states."""
    release = RELEASE
    """Description of the release: names, licence, published numbers, and the function that lists its images."""

    source: Path
    """The folder that contains the nine class folders, or its parent."""

    def class_map(self) -> LabelMap:
        """Return the label map (class of each cell type); each of the nine folders is a class."""
        return single_release_map(RELEASE.name, {name: name for name in PUBLISHED})
