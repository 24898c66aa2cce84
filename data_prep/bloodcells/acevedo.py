"""Spec of Acevedo-20: 17,092 images of normal white blood cells and platelets.

The release has a folder for each of eight classes. File names start with the cell type; the immature granulocytes
(``ig``) and the neutrophils have several types. The release contains 17 pairs of byte-identical files, one of them in
two classes, and a stray hidden file.

Prepared data set: see `medfl_datasets.bloodcells.cell_spec`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from medfl.data.ingest.options import OneOf
from medfl_datasets.bloodcells.cell_spec import SingleReleaseSpec
from medfl_datasets.bloodcells.files import CellListing, CellRelease, FolderTree, read_tree
from medfl_datasets.bloodcells.labels import LabelMap, single_release_map

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
"""Maps each class folder to the codes of cell types with which the names of its files start."""

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
"""Maps the code of each of the ten sub-classes in the paper of FedSDC to its name. Platelets and cells without a stated
sub-class are excluded."""

NO_CELL_TYPE = "the name does not start with a cell type of its folder"
"""Exclusion reason of an image whose name starts with no cell type of its folder."""

_CLASS_OF = {code: folder for folder, codes in FOLDERS.items() for code in codes}

LABEL_MAPS: dict[str, LabelMap] = {
    "class": single_release_map("acevedo", dict(_CLASS_OF)),
    "subclass": single_release_map(
        "acevedo", SUBCLASSES | {code: None for code in _CLASS_OF if code not in SUBCLASSES}
    ),
}
"""Maps each choice of `Acevedo.labels` to its label map (class of each cell type): ``class`` has the eight folders as
classes, ``subclass`` the ten sub-classes."""


@dataclass(frozen=True)
class AcevedoPreset:
    """Options that a preset sets together.

    Attributes:
        labels: Choice of classes, a key of `LABEL_MAPS`.
        keep_copies: Whether byte-identical files are kept.
    """

    labels: str
    keep_copies: bool


PRESETS = {"medfl": AcevedoPreset("class", False), "paper": AcevedoPreset("subclass", True)}
"""Maps each preset to its options. ``paper`` matches the paper of FedSDC: all files of ten sub-classes, 11,630 training
images and 2,913 test images."""


def cells_of(tree: FolderTree, top: Path) -> CellListing:
    """List the cells of Acevedo-20, identified by the names of the files.

    Args:
        tree: Names of the files in each class folder.
        top: Folder that contains the class folders.
    """
    return RELEASE.listing(tree, top, _identify_by_name)


def find(source: Path) -> CellListing:
    """Find the class folders of Acevedo-20 and list the cells.

    Args:
        source: ``PBC_dataset_normal_DIB``, or the folder that contains it.

    Raises:
        DataError: If there is no such folder, or a class folder is missing, empty or unknown.
    """
    top = RELEASE.top(source)
    return cells_of(read_tree(top), top)


def _identify_by_name(known: str, image: str) -> tuple[str, dict[str, str]] | str:
    """Return the cell type with which the file name starts, or the exclusion reason."""
    code = re.split(r"[_.]", Path(image).name, maxsplit=1)[0].upper()
    return (code, {}) if code in FOLDERS[known] else NO_CELL_TYPE


RELEASE = CellRelease(
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
"""Description of Acevedo-20: names, licence, published numbers, and the function that lists its images."""


class Acevedo(SingleReleaseSpec):
    """Acevedo-20: normal white blood cells. Nothing is downloaded.

    Of byte-identical files one is kept, or none if they are in two classes. Unreadable images are left out and listed
    in quarantine.csv. An interrupted run continues with the same command.

    Source: Acevedo et al., Data in Brief 30, 105474 (2020), doi:10.17632/snkd93bnjr.1. Licence: CC BY 4.0.
    """

    dataset = "acevedo"
    """Name of the data set, as users type it."""
    terms = RELEASE.licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = RELEASE.citation
    """Publications to cite, which the user sees before reading starts and the data list states."""
    release = RELEASE
    """Description of the release: names, licence, published numbers, and the function that lists its images."""

    source: Path
    """The folder PBC_dataset_normal_DIB, or the one that contains it."""
    preset: Annotated[str, OneOf(PRESETS)] = "medfl"
    """Options to use together. medfl: no copies of files; paper: FedSDC's ten sub-classes with all files."""
    labels: Annotated[str | None, OneOf(LABEL_MAPS)] = None
    """Classes: class (the eight folders) or subclass (ten cell types). Default: class, for preset paper subclass."""

    def label_set(self) -> str:
        """Return the choice of classes that `labels` or otherwise the preset states, a key of `LABEL_MAPS`."""
        return self.labels or PRESETS[self.preset].labels

    def title(self) -> str:
        """Return the name of the prepared data set, with a suffix for sub-classes."""
        return "acevedo" if self.label_set() == "class" else f"acevedo-{self.label_set()}"

    def class_map(self) -> LabelMap:
        """Return the label map (class of each cell type): the eight folders or the ten sub-classes."""
        return LABEL_MAPS[self.label_set()]

    def keeps_copies(self) -> bool:
        """Return whether byte-identical copies are kept, as the preset states."""
        return PRESETS[self.preset].keep_copies
