"""The files of LC25000: where the images of each class are, and how one is read.

::

    lung_colon_image_set/lung_image_sets/{lung_aca,lung_n,lung_scc}/lungaca1.jpeg, ...       5000 images of each class
    lung_colon_image_set/colon_image_sets/{colon_aca,colon_n}/colonca1.jpeg, ...             768 x 768 pixels

Folders of classes are found by their names, however deep they are.
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
from medfl_datasets.lc25000.copies import EDGE


@dataclass(frozen=True)
class Tissue:
    """A class.

    Attributes:
        text: Its name for people.
        organ: ``lung`` or ``colon``.
        prefix: What the names of its files begin with.
    """

    text: str
    organ: str
    prefix: str


CLASSES = {
    "colon_aca": Tissue("colon adenocarcinoma", "colon", "colonca"),
    "colon_n": Tissue("benign colon tissue", "colon", "colonn"),
    "lung_aca": Tissue("lung adenocarcinoma", "lung", "lungaca"),
    "lung_n": Tissue("benign lung tissue", "lung", "lungn"),
    "lung_scc": Tissue("lung squamous cell carcinoma", "lung", "lungscc"),
}
"""Folder to class, in the order of the labels."""

OFFICIAL = 5000
"""Images of each class in the release."""

SIZE = [768, 768]
"""Height and width of the images of the release."""

OTHER_CLASS = "the name of the file is not one of its folder's class"
"""Why an image is left out."""

_ENDINGS = (".jpeg", ".jpg")


@dataclass
class Files:
    """The files of a release.

    Attributes:
        paths: The images, by class and number.
        folders: Name of each one's class.
        surplus: Files that are no image.
        quarantined: Folder and name of an image, and the reason why it is left out.
    """

    paths: list[Path]
    folders: list[str]
    surplus: int
    quarantined: list[tuple[str, str]]


def find_files(source: Path, wanted: Collection[str]) -> Files:
    """Look for the images of some classes in a folder and all folders in it.

    Args:
        source: ``lung_colon_image_set``, a folder that holds it, or one in it that holds all classes that are wanted.
        wanted: Keys of `CLASSES`.

    Raises:
        DataError: If there is no such folder, or a class has no folder, several, or no image.
    """
    if not source.is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder of LC25000 at {source}, there is none. Give another --source.",
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
    files = Files([], [], 0, [])
    for name in sorted(wanted):
        _list(folders[name][0], name, files)
    return files


def read_tile(path: Path, size: int) -> LoadedItem:
    """Read an image.

    Args:
        path: Its file.
        size: Height and width of the result.

    Returns:
        Shape (size, size, 3), uint8, with the image's own size and what `thumbnails` needs.

    Raises:
        DataError: If it can't be read, is deeper, or is too small.
    """
    from PIL import Image

    pixels = read_rgb(path)
    grey = resize(np.asarray(Image.fromarray(pixels).convert("L")), (EDGE, EDGE))
    facts = {"size": list(pixels.shape[:2]), "grey": base64.b64encode(grey.tobytes()).decode("ascii")}
    return LoadedItem(resize(pixels, (size, size)), facts)


def thumbnail(text: str) -> np.ndarray:
    """The grey values that `read_tile` noted, shape (`EDGE`, `EDGE`), uint8."""
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(EDGE, EDGE)


def _list(folder: Path, name: str, files: Files) -> None:
    """Add the images of a class."""
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
            f"expected the images {CLASSES[name].prefix}1.jpeg, ... in {folder}, there are none. Unpack LC25000 again.",
            path=folder,
        )
    files.paths += [path for _, path in sorted(numbered)]
    files.folders += [name] * len(numbered)
