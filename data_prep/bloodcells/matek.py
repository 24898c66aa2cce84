"""Spec of Matek-19 (AML-Cytomorphology_LMU): 18,365 images of white blood cells with and without leukaemia.

The Cancer Imaging Archive has a folder for each of 15 cell types, and ``annotations.dat`` with a line for each image. A
line has the path, the label and up to two later annotations of the same image (``nan`` if missing), separated by
blanks. The label decides the class; the later annotations are kept as ``second`` and ``third``.

Prepared data set: see `medfl_datasets.bloodcells.cell_spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from medfl.errors import DataError, did_you_mean
from medfl_datasets.bloodcells.cell_spec import SingleReleaseSpec
from medfl_datasets.bloodcells.files import CellListing, CellRelease, FolderTree, read_tree
from medfl_datasets.bloodcells.labels import LabelMap, single_release_map

TABLE_FILE = "annotations.dat"
"""Name of the annotation table, which is beside the class folders or one folder above."""

CODES: dict[str, str | None] = {
    "BAS": "basophil",
    "EBO": "erythroblast",
    "EOS": "eosinophil",
    "KSC": "smudge cell",
    "LYA": "atypical lymphocyte",
    "LYT": "typical lymphocyte",
    "MMZ": "metamyelocyte",
    "MOB": "monoblast",
    "MON": "monocyte",
    "MYB": "myelocyte",
    "MYO": "myeloblast",
    "NGB": "band neutrophil",
    "NGS": "segmented neutrophil",
    "PMB": "bilobed promyelocyte",
    "PMO": "promyelocyte",
}
"""Maps the code of each cell type, which is also the name of its folder, to the name of its class."""

NO_FILE = "the image has no file"
"""Exclusion reason of a line of `TABLE_FILE`."""

NO_LINE = f"{TABLE_FILE} has no line for the image"
"""Exclusion reason of an image file."""


class MatekAnnotation(NamedTuple):
    """Annotation of an image: a line of the table.

    Attributes:
        label: Code of the cell type, one of `CODES`.
        later: Maps ``second`` and ``third``, if present, to the code of the later annotation.
    """

    label: str
    later: dict[str, str]


def read_annotations(path: Path) -> dict[str, MatekAnnotation]:
    """Read the table of annotations.

    Returns:
        Maps each image to its annotation. The key is the path below the class folders without ending, such as
        ``BAS/BAS_0001``.

    Raises:
        DataError: If the file can't be read, or a line is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "unreadable_file",
            f"could not read {path} as text ({type(error).__name__}). Download it again.",
            path=path,
            cause=type(error).__name__,
        ) from None
    lines: dict[str, MatekAnnotation] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 4:
            raise DataError(
                "wrong_cell_count",
                f"expected a path, a label and two later annotations in line {number} of {path}, got {len(parts)} "
                "entries. Download it again.",
                path=path,
                line=number,
                expected=4,
                found=len(parts),
            )
        image, label, *later = parts
        if label not in CODES:
            raise DataError(
                "wrong_label",
                f"unknown label '{label}' in line {number} of {path}. {did_you_mean(label, CODES)} Download it again.",
                path=path,
                line=number,
                label=label,
            )
        key = _image_key(image)
        if key in lines:
            raise DataError(
                "duplicate_row",
                f"line {number} of {path} names the same image as an earlier one. Download it again.",
                path=path,
                line=number,
            )
        named = zip(("second", "third"), later, strict=True)
        lines[key] = MatekAnnotation(label, {name: code for name, code in named if code.lower() != "nan"})
    return lines


def cells_of(tree: FolderTree, top: Path, lines: Mapping[str, MatekAnnotation]) -> CellListing:
    """List the cells of Matek-19, labelled by the lines of the table.

    Args:
        tree: Maps each folder below `top` to the names of its files.
        top: Folder that contains the class folders.
        lines: Annotations that `read_annotations` returned.

    Raises:
        DataError: If a class folder is missing, empty or unknown.
    """
    left = dict(lines)

    def identify(known: str, image: str) -> tuple[str, dict[str, str]] | str:
        line = left.pop(_image_key(image), None)
        if line is None:
            return NO_LINE
        return line if line.label == known else f"{TABLE_FILE} says {line.label}, the folder {known}"

    listing = RELEASE.listing(tree, top, identify)
    listing.quarantined += [(f"{RELEASE.name}/{key}", NO_FILE) for key in left]
    return listing


def find(source: Path) -> CellListing:
    """Find the class folders and the table of Matek-19, and list the cells.

    Args:
        source: ``AML-Cytomorphology_LMU``, or the folder that contains it.

    Raises:
        DataError: If the folder or the table is missing, if the table is invalid, or if a class folder is
            missing, empty or unknown.
    """
    top = RELEASE.top(source)
    places = (top / TABLE_FILE, top.parent / TABLE_FILE)
    table = next((place for place in places if place.is_file()), None)
    if table is None:
        raise DataError(
            "missing_file",
            f"expected {TABLE_FILE} of {RELEASE.title} in {top} or one folder above, found none. The Cancer Imaging "
            "Archive has it beside the images: download it into this folder.",
            path=top / TABLE_FILE,
        )
    return cells_of(read_tree(top), top, read_annotations(table))


def _image_key(path: str) -> str:
    """Return folder and name of an image without its ending, because some users converted the TIFF files."""
    return "/".join(Path(path).with_suffix("").parts[-2:])


RELEASE = CellRelease(
    name="matek",
    title="Matek-19",
    licence="CC BY 3.0",
    citation=(
        "Matek, Schwarz, Marr and Spiekermann, A Single-cell Morphological Dataset of Leukocytes from AML Patients and "
        "Non-malignant Controls, The Cancer Imaging Archive (2019), doi:10.7937/tcia.2019.36f5o9ld"
    ),
    published={
        **{"BAS": 79, "EBO": 78, "EOS": 424, "KSC": 15, "LYA": 11, "LYT": 3937, "MMZ": 15, "MOB": 26},
        **{"MON": 1789, "MYB": 42, "MYO": 3268, "NGB": 109, "NGS": 8484, "PMB": 18, "PMO": 70},
    },
    classes=tuple(CODES),
    class_of={code: code for code in CODES}.get,
    find=find,
)
"""Description of Matek-19: names, licence, published numbers, and the function that lists its images."""


class Matek(SingleReleaseSpec):
    """Matek-19: white blood cells with leukaemia and without, in 15 classes. Nothing is downloaded.

    The labels come from annotations.dat. Images whose folder contradicts it are left out and listed in
    quarantine.csv.

    Source: Matek et al., The Cancer Imaging Archive (2019), doi:10.7937/tcia.2019.36f5o9ld. Licence: CC BY 3.0.
    """

    dataset = "matek"
    """Name of the data set, as users type it."""
    terms = RELEASE.licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = RELEASE.citation
    """Publications to cite, which the user sees before reading starts and the data list states."""
    release = RELEASE
    """Description of the release: names, licence, published numbers, and the function that lists its images."""

    source: Path
    """The folder AML-Cytomorphology_LMU, or the one that contains it."""

    def class_map(self) -> LabelMap:
        """Return the label map (class of each cell type); each of the 15 cell types is a class."""
        return single_release_map(RELEASE.name, CODES)
