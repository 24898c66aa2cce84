"""Find and read the files of HAM10000: table, images and lesion masks.

Layout of the release::

    HAM10000_metadata.csv                                       on Dataverse also without ending, or .tab
    HAM10000_images_part_1/ISIC_0024306.jpg, ...                5000 images
    HAM10000_images_part_2/...                                  5015 images
    HAM10000_segmentations_lesion_tschandl/ISIC_0024306_segmentation.png, ...      optional

Folders may have other names, such as ``ISIC2018_Task3_Training_Input``. Kaggle's download contains each folder twice,
the second time in lower case; identical copies count once.
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

from medfl.data.ingest.masks import masked_image_row
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.pillow_images import read_pillow_image
from medfl.data.readers.rgb import read_rgb, resize
from medfl.data.readers.segmentations import SEGMENTATION_SUFFIX, read_mask
from medfl.errors import DataError

TABLE_NAME = "HAM10000_metadata"
"""Name of the metadata table without its ending."""

CROP_MARGIN = 0.1
"""Margin around a lesion on each side of its crop, as a share of the longer edge of its bounding box."""

MASK_SUFFIX = "_segmentation"
"""Suffix of a mask's file name after the name of its image."""

_TABLE_ENDINGS = ("", ".csv", ".tab", ".tsv", ".txt")
_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class HamImageFiles:
    """Files of one image of the data set.

    Attributes:
        path: Image file.
        mask: File of the lesion mask; None unless the lesion is cropped or the masks are kept.
    """

    path: Path
    mask: Path | None = None

    def files(self) -> list[Path]:
        """Return the image file and, if there is one, the mask file."""
        return [self.path] if self.mask is None else [self.path, self.mask]


@dataclass(frozen=True)
class HamFiles:
    """Files of a HAM10000 release.

    Attributes:
        table: Metadata table.
        images: Maps each image name (without ending) to its file.
        masks: Maps each image name to its lesion mask.
    """

    table: Path
    images: dict[str, Path]
    masks: dict[str, Path]


def find_files(source: Path, metadata: Path | None = None) -> HamFiles:
    """Find the table, the images and the masks in a folder and all its subfolders.

    Args:
        source: Folder of the release.
        metadata: The table, if it is not in the folder.

    Raises:
        DataError: If there is no image, not exactly one table, or if files of the same name differ.
    """
    if not source.is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder of HAM10000 at {source}, found none. Give another --source.",
            path=source,
        )
    tables: list[Path] = []
    named: defaultdict[str, list[Path]] = defaultdict(list)
    for folder, _, names in sorted(os.walk(source)):
        for name in sorted(name for name in names if not name.startswith(".")):  # macOS adds ._ISIC_... to archives
            stem, ending = os.path.splitext(name)
            if stem.lower() == TABLE_NAME.lower() and ending.lower() in _TABLE_ENDINGS:
                tables.append(Path(folder, name))
            elif ending.lower() in _IMAGE_ENDINGS:
                named[stem].append(Path(folder, name))
    table = _single_table(source, tables) if metadata is None else metadata
    files = _single_files(source, named)
    masks = {stem.removesuffix(MASK_SUFFIX): path for stem, path in files.items() if stem.endswith(MASK_SUFFIX)}
    images = {stem: path for stem, path in files.items() if not stem.endswith(MASK_SUFFIX)}
    if not images:
        raise DataError(
            "no_images",
            f"expected the images ISIC_0024306.jpg, ... of HAM10000 in {source} or folders in it, found none. "
            "Unpack HAM10000_images_part_1.zip and HAM10000_images_part_2.zip there.",
            path=source,
        )
    return HamFiles(table, images, masks)


def read_image_or_crop(image_files: HamImageFiles, size: tuple[int, int]) -> LoadedItem:
    """Read and resize an image; if its lesion mask is given, crop the lesion first.

    Args:
        image_files: Files of the image.
        size: Height and width of the result in pixels.

    Returns:
        Row of the array, shape (H, W, 3), uint8; grey images are repeated in all channels.

    Raises:
        DataError: If a file can't be read, if the image has more than 8 bits a channel or is too small, or if the mask
            does not fit the image.
    """
    pixels = read_rgb(image_files.path)
    if image_files.mask is not None:
        top, bottom, left, right = _lesion_box(read_pillow_image(image_files.mask), (pixels.shape[0], pixels.shape[1]))
        pixels = np.ascontiguousarray(pixels[top:bottom, left:right])
    return LoadedItem(resize(pixels, size))


def read_image_and_mask(image_files: HamImageFiles, size: tuple[int, int]) -> LoadedItem:
    """Read and resize an image and its lesion mask.

    Args:
        image_files: Files of the image, with a mask.
        size: Height and width of the result in pixels.

    Returns:
        Row of the array, shape (H, W, 4), uint8; `medfl.data.ingest.masks.masked_image_row` describes it.

    Raises:
        DataError: If a file can't be read, or the mask does not fit the image.
    """
    assert image_files.mask is not None  # `HAM10000.plan_reading` reads only images with a mask if masks are needed
    return masked_image_row(read_rgb(image_files.path), read_mask(image_files.mask), size)


def find_masks(folder: Path) -> dict[str, Path]:
    """Find the files of the lesion masks in a folder and all its subfolders.

    Returns:
        Maps each image name to its lesion mask.

    Raises:
        DataError: If there is no mask, or if masks of one image differ.
    """
    named: defaultdict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.rglob(f"*{MASK_SUFFIX}.*")):
        if path.suffix.lower() in (*_IMAGE_ENDINGS, SEGMENTATION_SUFFIX) and not path.name.startswith("."):
            named[path.stem.removesuffix(MASK_SUFFIX)].append(path)
    if not named:
        raise DataError(
            "no_masks",
            f"expected the masks ISIC_0024306{MASK_SUFFIX}.png, ... in {folder}, found none. Unpack "
            "HAM10000_segmentations_lesion_tschandl.zip there, or give another --masks.",
            path=folder,
        )
    return _single_files(folder, named)


def crop_box(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """Compute the square crop around a lesion.

    Its centre is the centre of the lesion's bounding box. Its edge is the longer edge of the box plus `CROP_MARGIN` on
    each side. At the border of the image the crop moves inwards. Along an axis where the image is shorter than the
    crop, the crop has the image's length.

    Args:
        rows: Rows of the lesion's pixels.
        columns: Columns of the lesion's pixels.
        shape: Height and width of the image.

    Returns:
        First row, end of the rows, first column, end of the columns; the ends are exclusive.

    >>> crop_box(np.array([40, 49]), np.array([10, 29]), (100, 100))
    (33, 57, 8, 32)
    """
    spans = [(int(values.min()), int(values.max()) + 1) for values in (rows, columns)]
    edge = ceil(max(end - first for first, end in spans) * (1 + 2 * CROP_MARGIN))
    box: list[int] = []
    for (first, end), whole in zip(spans, shape, strict=True):
        side = min(edge, whole)
        start = min(max((first + end - side) // 2, 0), whole - side)
        box += [start, start + side]
    return box[0], box[1], box[2], box[3]


def _lesion_box(mask: np.ndarray, shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """Compute the crop of the lesion in a mask; raise DataError if the mask is empty or not of the image's shape."""
    if mask.shape[:2] != shape:
        raise DataError(
            "wrong_shape",
            "the mask has another size than its image. Download the masks of this release again.",
            what="mask",
            expected=shape,
            found=mask.shape[:2],
        )
    rows, columns = np.nonzero(mask if mask.ndim == 2 else mask.any(axis=-1))
    if not len(rows):
        raise DataError("empty_mask", "the mask shows no lesion. Download the masks of this release again.")
    return crop_box(rows, columns, shape)


def _single_table(source: Path, tables: Collection[Path]) -> Path:
    """Return the only table; raise DataError if there is none or several."""
    if not tables:
        raise DataError(
            "missing_file",
            f"expected the table {TABLE_NAME}.csv (or {TABLE_NAME}, {TABLE_NAME}.tab) in {source} or folders in it, "
            "found none. Download it from where the images come from, or name it with --metadata.",
            path=source / f"{TABLE_NAME}.csv",
        )
    if len(tables) > 1:
        listing = ", ".join(str(path.relative_to(source)) for path in tables)
        raise DataError(
            "ambiguous_file",
            f"expected one table {TABLE_NAME} in {source}, found {listing}. Name the one to use with --metadata.",
            path=source,
            files=[path.relative_to(source) for path in tables],
        )
    return next(iter(tables))


def _single_files(source: Path, named: dict[str, list[Path]]) -> dict[str, Path]:
    """Return the first file of each name; raise DataError if other files of that name differ from it."""
    conflicting = sum(
        any(not filecmp.cmp(paths[0], path, shallow=False) for path in paths[1:]) for paths in named.values()
    )
    if conflicting:
        raise DataError(
            "conflicting_copies",
            f"expected one image of each name in {source}, {conflicting} names have several files that differ. Give "
            "the folder of one copy of the data set.",
            path=source,
            count=conflicting,
        )
    return {stem: paths[0] for stem, paths in named.items()}
