"""Find and read the files of LC25000.

Layout of the release::

    lung_colon_image_set/lung_image_sets/{lung_aca,lung_n,lung_scc}/lungaca1.jpeg, ...       5000 images of each class
    lung_colon_image_set/colon_image_sets/{colon_aca,colon_n}/colonca1.jpeg, ...             768 x 768 pixels

Class folders are found by name at any depth.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.rgb import read_rgb, resize
from medfl.errors import DataError
from medfl_datasets.lc25000.copies import THUMBNAIL_EDGE


@dataclass(frozen=True)
class TissueClass:
    """Class of LC25000.

    Attributes:
        text: Class name for reports.
        organ: ``lung`` or ``colon``.
        prefix: Prefix of the file names of its images.
    """

    text: str
    organ: str
    prefix: str


CLASSES = {
    "colon_aca": TissueClass("colon adenocarcinoma", "colon", "colonca"),
    "colon_n": TissueClass("benign colon tissue", "colon", "colonn"),
    "lung_aca": TissueClass("lung adenocarcinoma", "lung", "lungaca"),
    "lung_n": TissueClass("benign lung tissue", "lung", "lungn"),
    "lung_scc": TissueClass("lung squamous cell carcinoma", "lung", "lungscc"),
}
"""Maps each class folder to its class, in the order of the labels."""

OFFICIAL_IMAGES_PER_CLASS = 5000
"""Number of images of each class in the release."""

OFFICIAL_IMAGE_SIZE = [768, 768]
"""Height and width of the release's images in pixels."""

OTHER_CLASS = "the name of the file is not one of its folder's class"
"""Exclusion reason of an image whose file name has the prefix of another class than its folder's."""

_ENDINGS = (".jpeg", ".jpg")


@dataclass
class Lc25000Files:
    """Files of an LC25000 release.

    Attributes:
        paths: Image files, ordered by class and number.
        folders: Class folder of each image, a key of `CLASSES`.
        surplus: Number of files in the class folders that are not images.
        quarantined: Pairs of ``folder/name`` of an excluded image and the reason.
    """

    paths: list[Path]
    folders: list[str]
    surplus: int
    quarantined: list[tuple[str, str]]


def find_files(source: Path, wanted: Collection[str]) -> Lc25000Files:
    """Find the images of some classes in a folder and all its subfolders.

    Args:
        source: The folder ``lung_colon_image_set``, its parent, or a subfolder that contains all requested classes.
        wanted: Requested classes, keys of `CLASSES`.

    Raises:
        DataError: If the folder does not exist, or if a class has no folder, several folders or no image.
    """
    if not source.is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder of LC25000 at {source}, found none. Give another --source.",
            path=source,
        )
    folders: dict[str, list[Path]] = {name: [] for name in CLASSES}
    for folder, _, _ in sorted(os.walk(source)):
        folders.get(Path(folder).name.lower(), []).append(Path(folder))
    missing = [name for name in wanted if not folders[name]]
    if missing:
        raise DataError(
            "missing_class_folder",
            f"expected the folders {', '.join(wanted)} of LC25000 in {source} or folders in it, {', '.join(missing)} "
            "are missing. Give the folder lung_colon_image_set, or choose one organ with --organ.",
            path=source,
            classes=missing,
        )
    several = [name for name in wanted if len(folders[name]) > 1]
    if several:
        raise DataError(
            "duplicate_class_folder",
            f"expected one folder of each class of LC25000 in {source}, there are several of {', '.join(several)}. "
            "Give the folder of one copy of the data set; put parts (train, test) together again.",
            path=source,
            classes=several,
        )
    files = Lc25000Files([], [], 0, [])
    for name in sorted(wanted):
        _add_class_images(folders[name][0], name, files)
    return files


def read_tile(path: Path, size: int) -> LoadedItem:
    """Read and resize a tile (an image of the release).

    Args:
        path: Image file.
        size: Height and width of the result in pixels.

    Returns:
        Pixels, shape (size, size, 3), uint8. The metadata contain ``size``, the original height and width, and
        ``grey``, the thumbnail in base64 for `decode_thumbnail`.

    Raises:
        DataError: If the file can't be read, has more than 8 bits a channel, or is too small.
    """
    from PIL import Image

    pixels = read_rgb(path)
    grey = resize(np.asarray(Image.fromarray(pixels).convert("L")), (THUMBNAIL_EDGE, THUMBNAIL_EDGE))
    facts = {"size": list(pixels.shape[:2]), "grey": base64.b64encode(grey.tobytes()).decode("ascii")}
    return LoadedItem(resize(pixels, (size, size)), facts)


def decode_thumbnail(text: str) -> np.ndarray:
    """Decode the grey thumbnail that `read_tile` stores as text, shape (`THUMBNAIL_EDGE`, `THUMBNAIL_EDGE`), uint8."""
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(THUMBNAIL_EDGE, THUMBNAIL_EDGE)


def _add_class_images(folder: Path, name: str, files: Lc25000Files) -> None:
    """Add the images of the class `name` in `folder` to `files`, in place; raise DataError if there is none."""
    numbered: list[tuple[int, Path]] = []
    for path in sorted(folder.iterdir()):
        number = re.fullmatch(rf"{CLASSES[name].prefix}(\d+)\.jpe?g", path.name.lower())
        if path.name.startswith(".") or path.suffix.lower() not in _ENDINGS:
            files.surplus += 1
        elif number is None:
            files.quarantined.append((f"{name}/{path.name}", OTHER_CLASS))
        else:
            numbered.append((int(number[1]), path))
    if not numbered:
        raise DataError(
            "no_images",
            f"expected the images {CLASSES[name].prefix}1.jpeg, ... in {folder}, found none. Unpack LC25000 again.",
            path=folder,
        )
    files.paths += [path for _, path in sorted(numbered)]
    files.folders += [name] * len(numbered)
