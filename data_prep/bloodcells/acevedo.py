"""Acevedo-20: 17,092 images of normal white blood cells and platelets in, a pooled data set out.

The release has a folder for each of eight classes; the names of the files begin with the kind of cell, of which the
immature granulocytes (``ig``) and the neutrophils have several. It has 17 pairs of byte-identical files, one of them in
two classes, and a stray dot file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from medfl.ingest.options import Choose

from medfl_datasets.bloodcells.files import Listing, Release, Tree, read_tree
from medfl_datasets.bloodcells.labels import LabelMap, own_classes
from medfl_datasets.bloodcells.pool import OneRelease

FOLDERS: dict[str, tuple[str, ...]] = {
    "basophil": ("BA",),
    "eosinophil": ("EO",),
    "erythroblast": ("ERB",),
    "ig": ("IG", "MMY", "MY", "PMY"),
    "lymphocyte": ("LY",),
    "monocyte": ("MO",),
    "neutrophil": ("BNE", "SNE", "NEUTROPHIL"),
    "platelet": ("PLATELET",),
}
"""Class to what the names of its files begin with."""

SUBCLASSES = {
    "BA": "basophil",
    "EO": "eosinophil",
    "ERB": "erythroblast",
    "LY": "lymphocyte",
    "MO": "monocyte",
    "MMY": "metamyelocyte",
    "MY": "myelocyte",
    "PMY": "promyelocyte",
    "BNE": "band neutrophil",
    "SNE": "segmented neutrophil",
}
"""The ten sub-classes of FedSDC: without platelets, and without the cells whose sub-class the release does not say."""

NO_KIND = "the name does not begin with a kind of cell of its folder"
"""Why an image is left out."""

_CLASS_OF = {code: folder for folder, codes in FOLDERS.items() for code in codes}

LABELS: dict[str, LabelMap] = {
    "class": own_classes("acevedo", dict(_CLASS_OF)),
    "subclass": own_classes("acevedo", SUBCLASSES | {code: None for code in _CLASS_OF if code not in SUBCLASSES}),
}
"""What is told apart: the eight folders, or the ten sub-classes."""


@dataclass(frozen=True)
class Preset:
    """Choices that go together.

    Attributes:
        labels: One of `LABELS`.
        keep_copies: Whether byte-identical files are kept.
    """

    labels: str
    keep_copies: bool


PRESETS = {"medfl": Preset("class", False), "paper": Preset("subclass", True)}
"""``paper`` is FedSDC's: all files of ten sub-classes, 11,630 in training and 2,913 in the test set."""


def cells_of(tree: Tree, top: Path) -> Listing:
    """The cells of a release by the names of its files; see `Release.listing`."""
    return RELEASE.listing(tree, top, _tell)


def find(source: Path) -> Listing:
    """The cells of a release.

    Args:
        source: ``PBC_dataset_normal_DIB``, or the folder that holds it.

    Raises:
        DataError: If there is no such folder, or as in `Release.listing`.
    """
    top = RELEASE.top(source)
    return cells_of(read_tree(top), top)


def _tell(known: str, image: str) -> tuple[str, dict[str, str]] | str:
    code = re.split(r"[_.]", Path(image).name, maxsplit=1)[0].upper()
    return (code, {}) if code in FOLDERS[known] else NO_KIND


RELEASE = Release(
    name="acevedo",
    title="Acevedo-20",
    licence="CC BY 4.0",
    citation=(
        "Acevedo et al., A dataset of microscopic peripheral blood cell images for development of automatic "
        "recognition systems, Data in Brief 30, 105474 (2020), doi:10.17632/snkd93bnjr.1"
    ),
    published={
        **{"BA": 1218, "EO": 3117, "ERB": 1551, "IG": 151, "MMY": 1015, "MY": 1137, "PMY": 592},
        **{"LY": 1214, "MO": 1420, "BNE": 1633, "SNE": 1646, "NEUTROPHIL": 50, "PLATELET": 2348},
    },
    classes=tuple(FOLDERS),
    class_of={folder: folder for folder in FOLDERS}.get,
    find=find,
)


class Acevedo(OneRelease):
    """Acevedo-20: normal white blood cells. Nothing is downloaded.

    Of byte-identical files one is kept, or none if they are in two classes. What can't be read is left out and listed
    in quarantine.csv. If interrupted, the same command goes on where it stopped.
    """

    dataset = "acevedo"
    terms = RELEASE.licence
    citation = RELEASE.citation
    release = RELEASE

    source: Path
    """The folder PBC_dataset_normal_DIB, or the one that holds it."""
    preset: Annotated[str, Choose(PRESETS)] = "medfl"
    """medfl: no copies of files; paper: FedSDC's ten sub-classes with all files."""
    labels: Annotated[str | None, Choose(LABELS)] = None
    """class (eight) or subclass (ten); by default class, subclass for paper."""

    def told_apart(self) -> str:
        """One of `LABELS`."""
        return self.labels or PRESETS[self.preset].labels

    def title(self) -> str:
        """Sub-classes are a data set of their own."""
        return "acevedo" if self.told_apart() == "class" else f"acevedo-{self.told_apart()}"

    def class_map(self) -> LabelMap:
        """The eight folders, or the ten sub-classes."""
        return LABELS[self.told_apart()]

    def keeps_copies(self) -> bool:
        """As the preset has it."""
        return PRESETS[self.preset].keep_copies
