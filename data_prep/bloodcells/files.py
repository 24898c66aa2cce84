"""A release of white blood cells on disk: folders of classes with image files, which become a list of cells.

No release says which patient a cell is of. To list cells nothing is opened: names of files are told apart.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.rgb import read_rgb, resize
from medfl.errors import DataError, did_you_mean

SUFFIXES = (".bmp", ".jpg", ".jpeg", ".png", ".tif", ".tiff")
"""Ends of the names of images, in small letters."""

DOT_FILE = "a stray file whose name begins with a dot"
"""Why a file is passed over."""

NO_IMAGE = "a file that is no image, by its name"
"""Why a file is passed over."""

Tree = Mapping[str, Sequence[str]]
"""Folder to the names of the files in it, sorted."""


@dataclass(frozen=True)
class Cell:
    """An image of a cell.

    Attributes:
        path: Its file.
        source: The release.
        code: What the release says that it is, one of `Release.published`.
        about: What else is kept of it in the data list.
    """

    path: Path
    source: str
    code: str
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Listing:
    """What a release holds.

    Attributes:
        cells: The images, in the order of folders and names.
        passed_over: Reason to the number of files that are no image of a cell.
        quarantined: Name of an image below the release, and the reason why it is left out.
    """

    cells: list[Cell] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    quarantined: list[tuple[str, str]] = field(default_factory=list)

    def images(self, names: Sequence[str]) -> list[str]:
        """Those of a folder's files that are images; the others are counted."""
        images = []
        for name in names:
            if name.startswith("."):
                self.passed_over[DOT_FILE] += 1
            elif Path(name).suffix.lower() not in SUFFIXES:
                self.passed_over[NO_IMAGE] += 1
            else:
                images.append(name)
        return images


Tell = Callable[[str, str], tuple[str, Mapping[str, str]] | str]
"""Class of a folder, and folder and name of an image in it, to `Cell.code` and `Cell.about`, or why it is left out."""


@dataclass(frozen=True)
class Release:
    """What is known of a release.

    Attributes:
        name: Of the data set, in small letters.
        title: The same, for people.
        licence: Terms of use.
        citation: What users of the data are asked to cite.
        published: Code of each kind of cell to the number of images that the release has.
        classes: A folder for each; all of them must be there.
        class_of: The class of a folder by its name; None if it is of no class.
        find: Lists the images below a folder.
    """

    name: str
    title: str
    licence: str
    citation: str
    published: Mapping[str, int]
    classes: tuple[str, ...]
    class_of: Callable[[str], str | None]
    find: Callable[[Path], Listing]

    def deviation(self, cells: Sequence[Cell]) -> str | None:
        """A sentence if there are other numbers of images than were published; None otherwise."""
        counts = Counter(cell.code for cell in cells)
        unlike = [f"{code} {counts[code]}" for code, count in self.published.items() if counts[code] != count]
        if not unlike:
            return None
        return (
            f"{self.name}: the release has {sum(self.published.values())} images, here are {len(cells)}; unlike it "
            f"are {', '.join(unlike)}"
        )

    def top(self, source: Path) -> Path:
        """The folder that holds the folders of classes: the one given, or one in it.

        Raises:
            DataError: If there is no such folder.
        """
        if not source.is_dir():
            raise DataError(
                "missing_folder",
                f"expected the folder of {self.title} at {source}, there is none. Give another --source.",
                path=source,
            )
        for folder in (source, *_subfolders(source)):
            if any(self.class_of(child.name) for child in _subfolders(folder)):
                return folder
        if self.class_of(source.resolve().name):
            raise DataError(
                "folder_of_one_class",
                f"{source} is the folder of one class of {self.title}. Give the folder that holds it.",
                path=source,
            )
        raise DataError(
            "missing_class_folder",
            f"expected folders of classes of {self.title} ({', '.join(self.classes)}) in {source} or one folder below, "
            "there are none. Give the folder that holds them.",
            path=source,
            classes=list(self.classes),
        )

    def listing(self, tree: Tree, top: Path, tell: Tell) -> Listing:
        """Tell the cells of a release by the names of folders and files; nothing is read.

        Args:
            tree: What `read_tree` gives.
            top: The folder that holds the folders of classes.
            tell: Says what an image is of.

        Raises:
            DataError: If a folder is of no class, has no image, or is missing.
        """
        listing, there = Listing(), set()
        for folder, names in tree.items():
            known, images = self.class_of(folder), listing.images(names)
            if known is None:
                hint = did_you_mean(folder, self.classes)
                raise DataError(
                    "unknown_class_folder",
                    f"the folder '{folder}' is no class of {self.title}. {hint} Rename it, or take it out.",
                    release=self.name,
                    folder=folder,
                )
            if not images:
                raise DataError(
                    "no_images",
                    f"there is no image in the folder '{folder}' of {self.title}. Unpack it again.",
                    release=self.name,
                    folder=folder,
                )
            there.add(known)
            for image in images:
                cell = tell(known, f"{folder}/{image}")
                if isinstance(cell, str):
                    listing.quarantined.append((f"{self.name}/{folder}/{image}", cell))
                else:
                    listing.cells.append(Cell(top / folder / image, self.name, *cell))
        missing = [name for name in self.classes if name not in there]
        if missing:
            raise DataError(
                "missing_class_folder",
                f"{self.title} lacks the folders of the classes {', '.join(missing)}. Unpack it again.",
                release=self.name,
                classes=missing,
            )
        return listing


def read_tree(top: Path) -> dict[str, list[str]]:
    """The names of the files in each folder of classes; hidden folders and those of macOS are passed over."""
    folders = _subfolders(top)
    return {folder.name: sorted(file.name for file in folder.iterdir() if file.is_file()) for folder in folders}


def read_cell(path: Path, size: int) -> LoadedItem:
    """Read the image of a cell.

    Args:
        path: The file.
        size: Height and width of what is returned.

    Returns:
        Pixels of shape (size, size, 3), uint8, and a hash of the bytes of the file.

    Raises:
        DataError: If it can't be read, or is of another kind.
    """
    pixels = resize(read_rgb(path), (size, size))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return LoadedItem(pixels, {"digest": digest})


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith((".", "__")))
