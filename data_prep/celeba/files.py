"""Find and read the files of CelebA: tables and images.

Layout of the release::

    img_align_celeba/000001.jpg, ..., 202599.jpg      178 wide, 218 high; on Kaggle one folder deeper
    list_attr_celeba.txt or .csv                      see medfl_datasets.celeba.tables; the authors have it in Anno/
    list_eval_partition.txt or .csv                   optional, in Eval/
    identity_CelebA.txt                               optional, in Anno/
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.rgb import read_rgb, resize
from medfl.errors import DataError

IMAGE_FOLDER_PREFIX = "img_align_celeba"
"""Prefix of the name of the image folder."""

ATTRIBUTES, PARTITION, IDENTITY = "list_attr_celeba", "list_eval_partition", "identity_CelebA"
"""Names of the tables without their endings: `ATTRIBUTES` of the attributes, `PARTITION` of the official split,
`IDENTITY` of the persons."""

OFFICIAL_IMAGE_SIZE = [218, 178]
"""Height and width of the release's images in pixels."""

_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")
_TABLE_ENDINGS = (".txt", ".csv")


@dataclass(frozen=True)
class CelebaFiles:
    """Files of a CelebA release.

    Attributes:
        images: Maps each image name (without ending) to its file.
        attributes: Table of attributes.
        partition: Table of the official split; None if it is missing.
        identity: Table of persons; None if it is missing.
    """

    images: dict[str, Path]
    attributes: Path
    partition: Path | None
    identity: Path | None


def find_files(source: Path) -> CelebaFiles:
    """Find the tables and images in a folder and all its subfolders.

    Args:
        source: Folder of the release. If it contains a folder ``img_align_celeba...``, only images in such folders
            count.

    Raises:
        DataError: If there is no table of attributes or no image, or if several files have the same name.
    """
    if not source.is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder of CelebA at {source}, found none. Give another --source.",
            path=source,
        )
    tables: defaultdict[str, list[Path]] = defaultdict(list)
    aligned: dict[bool, list[Path]] = {True: [], False: []}
    for folder, _, names in sorted(os.walk(source)):
        is_aligned = any(part.lower().startswith(IMAGE_FOLDER_PREFIX) for part in Path(folder).resolve().parts)
        for name in sorted(name for name in names if not name.startswith(".")):
            stem, ending = os.path.splitext(name)
            if ending.lower() in _TABLE_ENDINGS:
                tables[stem.lower()].append(Path(folder, name))
            elif ending.lower() in _IMAGE_ENDINGS:
                aligned[is_aligned].append(Path(folder, name))
    attributes = _single_table(source, tables[ATTRIBUTES.lower()])
    if attributes is None:
        raise DataError(
            "missing_file",
            f"expected the table {ATTRIBUTES}.txt or {ATTRIBUTES}.csv of CelebA in {source} or folders in it, there "
            "is none. Put it beside the folder of images.",
            path=source / f"{ATTRIBUTES}.txt",
        )
    partition, identity = (_single_table(source, tables[name.lower()]) for name in (PARTITION, IDENTITY))
    return CelebaFiles(_images_by_name(source, aligned[True] or aligned[False]), attributes, partition, identity)


def read_face(path: Path, size: tuple[int, int], crop: bool) -> LoadedItem:
    """Read and resize the photograph of a face.

    Args:
        path: Image file.
        size: Height and width of the result in pixels.
        crop: Whether to crop the largest centred square first.

    Returns:
        Pixels, shape (H, W, 3), uint8. The metadata contain ``size``, the original height and width.

    Raises:
        DataError: If the file can't be read, has more than 8 bits a channel, or is too small.
    """
    pixels = read_rgb(path)
    height, width = pixels.shape[:2]
    if crop:
        edge = min(height, width)
        top, left = (height - edge) // 2, (width - edge) // 2
        pixels = pixels[top : top + edge, left : left + edge].copy()
    return LoadedItem(resize(pixels, size), {"size": [height, width]})


def _single_table(source: Path, tables: list[Path]) -> Path | None:
    """Return the only table, or None if there is none; raise DataError if there are several."""
    if len(tables) > 1:
        listing = ", ".join(str(path.relative_to(source)) for path in tables)
        raise DataError(
            "ambiguous_file",
            f"expected one table of each kind in {source}, found {listing}. Keep one of them.",
            path=source,
            files=[path.relative_to(source) for path in tables],
        )
    return tables[0] if tables else None


def _images_by_name(source: Path, paths: list[Path]) -> dict[str, Path]:
    """Return the file of each image name; raise DataError if there is none or if names repeat."""
    if not paths:
        raise DataError(
            "no_images",
            f"expected the images 000001.jpg, ... of CelebA in {source} or folders in it, found none. Unpack "
            f"{IMAGE_FOLDER_PREFIX}.zip there.",
            path=source,
        )
    by_stem = {path.stem: path for path in paths}
    if len(by_stem) < len(paths):
        raise DataError(
            "duplicate_image",
            f"expected one image of each name in {source}, {len(paths) - len(by_stem)} of {len(paths)} files have the "
            "name of another. Give the folder of one copy of the data set.",
            path=source,
            count=len(paths) - len(by_stem),
            total=len(paths),
        )
    return by_stem
