"""The files of CelebA: where tables and images are, and how an image is read.

::

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

ALIGNED = "img_align_celeba"
"""What the name of the folder of images begins with."""

ATTRIBUTES, PARTITION, IDENTITY = "list_attr_celeba", "list_eval_partition", "identity_CelebA"
"""Names of the tables, without ending."""

SIZE = [218, 178]
"""Height and width of the images of the release."""

_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")
_TABLE_ENDINGS = (".txt", ".csv")


@dataclass(frozen=True)
class Files:
    """The files of a release.

    Attributes:
        images: Name without ending to the image file.
        attributes: The table of attributes.
        partition: The table of the official split, if it is there.
        identity: The table of persons, if it is there.
    """

    images: dict[str, Path]
    attributes: Path
    partition: Path | None
    identity: Path | None


def find_files(source: Path) -> Files:
    """Look for tables and images in a folder and all folders in it.

    Args:
        source: The folder. If any folder is called ``img_align_celeba...``, images count only there.

    Raises:
        DataError: If there is no table of attributes or no image, or several files of one name.
    """
    if not source.is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder of CelebA at {source}, there is none. Give another --source.",
            path=source,
        )
    tables: defaultdict[str, list[Path]] = defaultdict(list)
    aligned: dict[bool, list[Path]] = {True: [], False: []}
    for folder, _, names in sorted(os.walk(source)):
        is_aligned = any(part.lower().startswith(ALIGNED) for part in Path(folder).resolve().parts)
        for name in sorted(name for name in names if not name.startswith(".")):
            stem, ending = os.path.splitext(name)
            if ending.lower() in _TABLE_ENDINGS:
                tables[stem.lower()].append(Path(folder, name))
            elif ending.lower() in _IMAGE_ENDINGS:
                aligned[is_aligned].append(Path(folder, name))
    attributes = _only_table(source, tables[ATTRIBUTES.lower()])
    if attributes is None:
        raise DataError(
            "missing_file",
            f"expected the table {ATTRIBUTES}.txt or {ATTRIBUTES}.csv of CelebA in {source} or folders in it, there "
            "is none. Put it beside the folder of images.",
            path=source / f"{ATTRIBUTES}.txt",
        )
    partition, identity = (_only_table(source, tables[name.lower()]) for name in (PARTITION, IDENTITY))
    return Files(_only_images(source, aligned[True] or aligned[False]), attributes, partition, identity)


def read_face(path: Path, size: tuple[int, int], crop: bool) -> LoadedItem:
    """Read an image.

    Args:
        path: Its file.
        size: Height and width of the result.
        crop: Whether to cut the largest square out of the middle first.

    Returns:
        Shape (H, W, 3), uint8, with the image's own size.

    Raises:
        DataError: If it can't be read, is deeper, or is too small.
    """
    pixels = read_rgb(path)
    height, width = pixels.shape[:2]
    if crop:
        edge = min(height, width)
        top, left = (height - edge) // 2, (width - edge) // 2
        pixels = pixels[top : top + edge, left : left + edge].copy()
    return LoadedItem(resize(pixels, size), {"size": [height, width]})


def _only_table(source: Path, tables: list[Path]) -> Path | None:
    if len(tables) > 1:
        listing = ", ".join(str(path.relative_to(source)) for path in tables)
        raise DataError(
            "ambiguous_file",
            f"expected one table of each kind in {source}, found {listing}. Keep one of them.",
            path=source,
            files=[path.relative_to(source) for path in tables],
        )
    return tables[0] if tables else None


def _only_images(source: Path, paths: list[Path]) -> dict[str, Path]:
    if not paths:
        raise DataError(
            "no_images",
            f"expected the images 000001.jpg, ... of CelebA in {source} or folders in it, there are none. Unpack "
            f"{ALIGNED}.zip there.",
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
