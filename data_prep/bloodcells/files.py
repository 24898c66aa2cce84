"""List the cell images of a release from its class folders, and read an image.

Listing opens no file: it uses only the names of folders and files. No release states the patient of a cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.rgb import read_rgb, resize
from medfl.errors import DataError, did_you_mean
from medfl.utils.files import sha256_of

SUFFIXES = (".bmp", ".jpg", ".jpeg", ".png", ".tif", ".tiff")
"""Endings of image files, in lower case."""

DOT_FILE = "a stray file whose name begins with a dot"
"""Reason to skip a file: it is hidden."""

NO_IMAGE = "a file without the ending of an image"
"""Reason to skip a file: it has no ending of an image file."""

FolderTree = Mapping[str, Sequence[str]]
"""Type of a mapping from the name of each class folder to the sorted names of its files."""


@dataclass(frozen=True)
class CellImage:
    """Image of a cell.

    Attributes:
        path: Image file.
        source: Name of the release.
        code: The release's code of the cell type, one of `CellRelease.published`.
        about: Further metadata of the cell, which go into its record in the data list.
    """

    path: Path
    source: str
    code: str
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass
class CellListing:
    """Images found in a release.

    Attributes:
        cells: The images, in the order of folders and names.
        skipped: Maps each reason, such as `DOT_FILE`, to the number of files that are not images of cells.
        quarantined: Pairs of the name of an excluded image and the reason.
    """

    cells: list[CellImage] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    quarantined: list[tuple[str, str]] = field(default_factory=list)

    def images(self, names: Sequence[str]) -> list[str]:
        """Return the image files among a folder's files, and count the others in `skipped`."""
        images = []
        for name in names:
            if name.startswith("."):
                self.skipped[DOT_FILE] += 1
            elif Path(name).suffix.lower() not in SUFFIXES:
                self.skipped[NO_IMAGE] += 1
            else:
                images.append(name)
        return images


IdentifyCell = Callable[[str, str], tuple[str, Mapping[str, str]] | str]
"""Type of a function that identifies the cell in an image. It takes the class of a folder and ``folder/name`` of an
image in it, and returns `CellImage.code` and `CellImage.about`, or the reason to exclude the image."""


@dataclass(frozen=True)
class CellRelease:
    """Description of a release of white blood cells.

    Attributes:
        name: Name of the data set, in lower case.
        title: Name for messages.
        licence: Terms of use.
        citation: Publication that users of the data are asked to cite.
        published: Maps the code of each cell type to its published number of images.
        classes: Classes that must have a folder.
        class_of: Function that returns the class of a folder by its name, or None for other folders.
        find: Function that lists the images below a folder.
    """

    name: str
    title: str
    licence: str
    citation: str
    published: Mapping[str, int]
    classes: tuple[str, ...]
    class_of: Callable[[str], str | None]
    find: Callable[[Path], CellListing]

    def deviation(self, cells: Sequence[CellImage]) -> str | None:
        """Return a sentence if the numbers of images differ from the published ones, otherwise None."""
        counts = Counter(cell.code for cell in cells)
        difference = [f"{code} {counts[code]}" for code, count in self.published.items() if counts[code] != count]
        if not difference:
            return None
        return (
            f"{self.name}: the release has {sum(self.published.values())} images, found {len(cells)}; different "
            f"counts: {', '.join(difference)}"
        )

    def top(self, source: Path) -> Path:
        """Return the folder that contains the class folders: `source` or one of its subfolders.

        Raises:
            DataError: If there is no such folder.
        """
        if not source.is_dir():
            raise DataError(
                "missing_folder",
                f"expected the folder of {self.title} at {source}, found none. Give another --source.",
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

    def listing(self, tree: FolderTree, top: Path, identify: IdentifyCell) -> CellListing:
        """List the cells of a release by the names of folders and files, without reading any file.

        Args:
            tree: Names of the files in each class folder, from `read_tree`.
            top: Folder that contains the class folders.
            identify: Function that identifies the cell in an image.

        Raises:
            DataError: If a folder is not a class folder or has no image, or a class folder is missing.
        """
        listing, found_classes = CellListing(), set()
        for folder, names in tree.items():
            known, images = self.class_of(folder), listing.images(names)
            if known is None:
                hint = did_you_mean(folder, self.classes)
                raise DataError(
                    "unknown_class_folder",
                    f"the folder '{folder}' is not a class of {self.title}. {hint} Rename or remove it.",
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
            found_classes.add(known)
            for image in images:
                cell = identify(known, f"{folder}/{image}")
                if isinstance(cell, str):
                    listing.quarantined.append((f"{self.name}/{folder}/{image}", cell))
                else:
                    listing.cells.append(CellImage(top / folder / image, self.name, *cell))
        missing = [name for name in self.classes if name not in found_classes]
        if missing:
            raise DataError(
                "missing_class_folder",
                f"{self.title} lacks the folders of the classes {', '.join(missing)}. Unpack it again.",
                release=self.name,
                classes=missing,
            )
        return listing


def read_tree(top: Path) -> dict[str, list[str]]:
    """Return the sorted file names of each class folder; hidden folders and folders of macOS are skipped."""
    folders = _subfolders(top)
    return {folder.name: sorted(file.name for file in folder.iterdir() if file.is_file()) for folder in folders}


def read_cell(path: Path, size: int) -> LoadedItem:
    """Read and resize the image of a cell.

    Args:
        path: Image file.
        size: Height and width of the result in pixels.

    Returns:
        Pixels, shape (size, size, 3), uint8. The metadata contain ``digest``, a hash of the file's bytes.

    Raises:
        DataError: If the file can't be read, or has an unsupported format.
    """
    pixels = resize(read_rgb(path), (size, size))
    return LoadedItem(pixels, {"digest": sha256_of(path)})


def _subfolders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder, except hidden folders and folders of macOS."""
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith((".", "__")))
