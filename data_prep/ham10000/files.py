"""The files of HAM10000: where table, images and masks are, and how an image is read.

::

    HAM10000_metadata.csv                                       on Dataverse also without ending, or .tab
    HAM10000_images_part_1/ISIC_0024306.jpg, ...                5000 images
    HAM10000_images_part_2/...                                  5015 images
    HAM10000_segmentations_lesion_tschandl/ISIC_0024306_segmentation.png, ...      optional

Folders may have other names, such as ``ISIC2018_Task3_Training_Input``. Kaggle's download holds each folder twice, the
second time in small letters: equal copies count once.
"""

from __future__ import annotations

import filecmp
import os
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from medfl.ingest.masks import masked_picture

from medfl.data.readers.pictures import read_picture
from medfl.data.readers.rgb import read_rgb, resize
from medfl.data.readers.segmentations import SUFFIX, read_mask
from medfl.errors import DataError
from medfl.ingest.workers import LoadedItem

TABLE = "HAM10000_metadata"
"""Name of the table, without its ending."""

MARGIN = 0.1
"""What surrounds a lesion in its crop on each side, as a share of the longer edge of its bounding box."""

MASK = "_segmentation"
"""How the name of a mask ends, after that of its image."""

_TABLE_ENDINGS = ("", ".csv", ".tab", ".tsv", ".txt")
_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class Part:
    """What becomes one image.

    Attributes:
        path: Its file.
        mask: The mask of its lesion, if the lesion is to be cut out, or kept beside the image.
    """

    path: Path
    mask: Path | None = None

    def files(self) -> list[Path]:
        """All that is read."""
        return [self.path] if self.mask is None else [self.path, self.mask]


@dataclass(frozen=True)
class Files:
    """The files of a release.

    Attributes:
        table: The metadata.
        images: Name without ending to the image file.
        masks: Name of the image to the mask of its lesion.
    """

    table: Path
    images: dict[str, Path]
    masks: dict[str, Path]


def find_files(source: Path, metadata: Path | None = None) -> Files:
    """Look for the table, the images and the masks in a folder and all folders in it.

    Args:
        source: The folder.
        metadata: The table, if it is not in the folder.

    Raises:
        DataError: If there is no table or no image, there are several tables, or several images of one name differ.
    """
    if not source.is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder of HAM10000 at {source}, there is none. Give another --source.",
            path=source,
        )
    tables: list[Path] = []
    named: defaultdict[str, list[Path]] = defaultdict(list)
    for folder, _, names in sorted(os.walk(source)):
        for name in sorted(name for name in names if not name.startswith(".")):  # a Mac leaves ._ISIC_... in archives
            stem, ending = os.path.splitext(name)
            if stem.lower() == TABLE.lower() and ending.lower() in _TABLE_ENDINGS:
                tables.append(Path(folder, name))
            elif ending.lower() in _IMAGE_ENDINGS:
                named[stem].append(Path(folder, name))
    table = _only_table(source, tables) if metadata is None else metadata
    files = _only_copies(source, named)
    masks = {stem.removesuffix(MASK): path for stem, path in files.items() if stem.endswith(MASK)}
    images = {stem: path for stem, path in files.items() if not stem.endswith(MASK)}
    if not images:
        raise DataError(
            "no_images",
            f"expected the images ISIC_0024306.jpg, ... of HAM10000 in {source} or folders in it, there are none. "
            "Unpack HAM10000_images_part_1.zip and HAM10000_images_part_2.zip there.",
            path=source,
        )
    return Files(table, images, masks)


def read_part(part: Part, size: tuple[int, int]) -> LoadedItem:
    """Read an image, or cut its lesion out of it.

    Args:
        part: What to read.
        size: Height and width of the result in pixels.

    Returns:
        A row of the array, shape (H, W, 3), uint8; grey is repeated.

    Raises:
        DataError: If a file can't be read, the image is deeper or too small, or image and mask do not fit.
    """
    pixels = read_rgb(part.path)
    if part.mask is not None:
        top, bottom, left, right = _lesion_box(read_picture(part.mask), (pixels.shape[0], pixels.shape[1]))
        pixels = np.ascontiguousarray(pixels[top:bottom, left:right])
    return LoadedItem(resize(pixels, size))


def read_masked(part: Part, size: tuple[int, int]) -> LoadedItem:
    """Read an image and the mask of its lesion.

    Args:
        part: What to read, with a mask.
        size: Height and width of the result in pixels.

    Returns:
        A row of the array, shape (H, W, 4), uint8, as `medfl.ingest.masks.masked_picture` makes it.

    Raises:
        DataError: If a file can't be read, or image and mask do not fit.
    """
    assert part.mask is not None  # chosen so
    return masked_picture(read_rgb(part.path), read_mask(part.mask), size)


def find_masks(folder: Path) -> dict[str, Path]:
    """Name of the image to the mask of its lesion, in a folder and all folders in it.

    Raises:
        DataError: If there is none, or several of one image differ.
    """
    named: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.rglob(f"*{MASK}.*")):
        if path.suffix.lower() in (*_IMAGE_ENDINGS, SUFFIX) and not path.name.startswith("."):
            named[path.stem.removesuffix(MASK)].append(path)
    if not named:
        raise DataError(
            "no_masks",
            f"expected the masks ISIC_0024306{MASK}.png, ... in {folder}, there are none. Unpack "
            "HAM10000_segmentations_lesion_tschandl.zip there, or give another --masks.",
            path=folder,
        )
    return _only_copies(folder, named)


def crop_box(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """The square to cut out of an image around a lesion.

    It has its centre in that of the bounding box, and its edge is the longer edge of the box with `MARGIN` on each
    side. At the border of the image it is moved inwards; along an edge of the image that is shorter, it is that edge.

    Args:
        rows: Of the pixels of the lesion.
        columns: Of the pixels of the lesion.
        shape: Height and width of the image.

    Returns:
        First row, end of the rows, first column, end of the columns; the ends are not part of the crop.

    >>> crop_box(np.array([40, 49]), np.array([10, 29]), (100, 100))
    (33, 57, 8, 32)
    """
    spans = [(int(values.min()), int(values.max()) + 1) for values in (rows, columns)]
    edge = ceil(max(end - first for first, end in spans) * (1 + 2 * MARGIN))
    box: list[int] = []
    for (first, end), whole in zip(spans, shape, strict=True):
        side = min(edge, whole)
        start = min(max((first + end - side) // 2, 0), whole - side)
        box += [start, start + side]
    return box[0], box[1], box[2], box[3]


def _lesion_box(mask: np.ndarray, shape: tuple[int, int]) -> tuple[int, int, int, int]:
    if mask.shape[:2] != shape:
        raise DataError(
            "wrong_shape",
            "the mask is of another size than its image. Download the masks of this release again.",
            what="mask",
            expected=shape,
            found=mask.shape[:2],
        )
    rows, columns = np.nonzero(mask if mask.ndim == 2 else mask.any(axis=-1))
    if not len(rows):
        raise DataError("empty_mask", "the mask shows no lesion. Download the masks of this release again.")
    return crop_box(rows, columns, shape)


def _only_table(source: Path, tables: Collection[Path]) -> Path:
    if not tables:
        raise DataError(
            "missing_file",
            f"expected the table {TABLE}.csv (or {TABLE}, {TABLE}.tab) in {source} or folders in it, there is none. "
            "Download it from where the images come from, or name it with --metadata.",
            path=source / f"{TABLE}.csv",
        )
    if len(tables) > 1:
        listing = ", ".join(str(path.relative_to(source)) for path in tables)
        raise DataError(
            "ambiguous_file",
            f"expected one table {TABLE} in {source}, found {listing}. Name the one to use with --metadata.",
            path=source,
            files=[path.relative_to(source) for path in tables],
        )
    return next(iter(tables))


def _only_copies(source: Path, named: dict[str, list[Path]]) -> dict[str, Path]:
    """The first file of each name; all others must be copies of it."""
    unlike = sum(any(not filecmp.cmp(paths[0], path, shallow=False) for path in paths[1:]) for paths in named.values())
    if unlike:
        raise DataError(
            "conflicting_copies",
            f"expected one image of each name in {source}, {unlike} names have several files that differ. Give the "
            "folder of one copy of the data set.",
            path=source,
            count=unlike,
        )
    return {stem: paths[0] for stem, paths in named.items()}
