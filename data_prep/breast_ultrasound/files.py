"""Find and read the breast ultrasound files of BUS-BRA and BrEaST, after both were brought into one layout.

::

    metadata.csv                  image,site,patient,pathology,birads,device,...,split
    images/bus_0001-l.jpg         grey, 8 bits; the table has the name without its ending
    masks/bus_0001-l.png          0 outside of the lesions; empty if there is none; or a DICOM-SEG, .dcm

``pathology`` is ``benign``, ``malignant`` or ``normal``; ``split`` is ``train``, ``valid`` or ``test``, by patient.
Messages number rows as a spreadsheet shows them (`medfl.data.table`) and contain no name of an image or patient.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.ingest.columns.labels import SPLIT_WORDS
from medfl.data.ingest.masks import masked_image_row
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.pillow_images import FORMATS, read_pillow_image
from medfl.data.readers.rgb import MIN_EDGE, resize
from medfl.data.readers.segmentations import MASK_SUFFIXES, read_mask
from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError

TABLE, IMAGES, MASKS = "metadata.csv", "images", "masks"
"""Names in the release's folder: `TABLE` of the table, `IMAGES` of the image folder, `MASKS` of the mask folder."""

PATHOLOGIES = ("benign", "malignant")
"""Names of the classes, by their numbers."""

NORMAL = "normal"
"""Pathology of an image without a lesion."""

KEPT_COLUMNS = ("site", "pathology", "birads", "device")
"""Columns of the table whose values go into the records of the prepared data set; one becomes the label if it is the
target."""

_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class UltrasoundImage:
    """Files of one image of the data set.

    Attributes:
        path: Image file.
        mask: Mask file; None if the masks are not used, because the pathology is the label.
    """

    path: Path
    mask: Path | None = None

    def files(self) -> list[Path]:
        """Return the image file and, if there is one, the mask file."""
        return [self.path] if self.mask is None else [self.path, self.mask]


@dataclass(frozen=True)
class UltrasoundRelease:
    """Table and files of the folder; the lists have an entry for each row of the table.

    Attributes:
        table: The table.
        images: Image file of each row; None if it is missing.
        masks: Mask file of each row; None if it is missing.
        splits: Split of each row: ``training``, ``validation`` or ``test``.
    """

    table: CsvTable
    images: list[Path | None]
    masks: list[Path | None]
    splits: list[str]


def read_release(source: Path) -> UltrasoundRelease:
    """Read the table and find the files.

    Raises:
        DataError: If the table is missing or invalid, an image has several rows or files, or a patient is in several
            splits.
    """
    path = source / TABLE
    if not path.is_file():
        raise DataError(
            "missing_file",
            f"expected {TABLE}, {IMAGES}/ and {MASKS}/ in {source}, there is no table. Bring the images of BUS-BRA and "
            "BrEaST into this layout; their own folders are not read.",
            path=path,
        )
    table = read_table(path)
    table.require(["image", "patient", "split", *KEPT_COLUMNS])
    names, pathologies = table.column("image"), table.column("pathology")
    _raise_rows(
        table,
        "invalid_value",
        [not _NAME.fullmatch(name) for name in names],
        "a name without ending or folder in 'image'",
        column="image",
    )
    counts = Counter(names)
    _raise_rows(table, "duplicate_row", [counts[name] > 1 for name in names], "each image once", column="image")
    known = (*PATHOLOGIES, NORMAL)
    _raise_rows(
        table,
        "wrong_label",
        [word not in known for word in pathologies],
        f"{', '.join(known)} in 'pathology'",
        column="pathology",
    )
    words = [word.lower() for word in table.column("split")]
    _raise_rows(
        table,
        "invalid_value",
        [word not in SPLIT_WORDS for word in words],
        "train, valid or test in 'split'",
        column="split",
    )
    splits = [SPLIT_WORDS[word] for word in words]
    splits_by_patient = defaultdict(set)
    patients = table.column("patient")
    for patient, split in zip(patients, splits, strict=True):
        splits_by_patient[patient].add(split)
    _raise_rows(
        table,
        "patient_in_two_splits",
        [len(splits_by_patient[patient]) > 1 for patient in patients],
        "all images of a patient in one split",
        column="patient",
    )
    images, masks = _find_files(source / IMAGES, table, FORMATS), _find_files(source / MASKS, table, MASK_SUFFIXES)
    return UltrasoundRelease(table, [images.get(name) for name in names], [masks.get(name) for name in names], splits)


def _raise_rows(table: CsvTable, code: str, wrong: list[bool], expected: str, **fields: str) -> None:
    """Raise a DataError that names the rows for which `wrong` is True, if there are any."""
    rows = [number for number, bad in zip(table.numbers, wrong, strict=True) if bad]
    if rows:
        raise DataError(
            code,
            f"expected {expected} of {table.path}, found other values in {len(rows)} of {len(wrong)} rows: "
            f"{row_list(rows)}. Correct them.",
            path=table.path,
            rows=rows,
            total=len(wrong),
            **fields,
        )


def _find_files(folder: Path, table: CsvTable, endings: Collection[str]) -> dict[str, Path]:
    """Find the file of each name (without ending) in a folder; raise DataError if a name has several."""
    named: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix.lower() in endings and not path.name.startswith("."):
            named[path.stem].append(path)
    several = [len(named.get(name, ())) > 1 for name in table.column("image")]
    _raise_rows(table, "ambiguous_file", several, f"one file in {folder.name}/ for each row", folder=folder.name)
    return {name: paths[0] for name, paths in named.items()}


def read_image(image: UltrasoundImage, size: tuple[int, int]) -> LoadedItem:
    """Read and resize an image, with its mask if one is given.

    Args:
        image: Files of the image.
        size: Height and width of the result in pixels.

    Returns:
        Row of the array: shape (H, W), or (H, W, 2) with a mask; uint8.

    Raises:
        DataError: If a file can't be read, if the image has more than 8 bits or is too small, or if the mask does not
            fit.
    """
    pixels = read_pillow_image(image.path)
    if pixels.dtype != np.uint8 or min(pixels.shape[:2]) < MIN_EDGE:
        raise DataError(
            "unsupported_image",
            f"expected a grey image of 8 bits with {MIN_EDGE} pixels or more along each edge, got another",
            minimum=MIN_EDGE,
        )
    grey = pixels if pixels.ndim == 2 else np.round(pixels @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)
    return LoadedItem(resize(grey, size)) if image.mask is None else masked_image_row(grey, read_mask(image.mask), size)
