"""List the files of CBIS-DDSM and find them by the UID of their series.

Supported layouts, also mixed below one folder:

- NBIA Data Retriever: ``<subject>/<date>-DDSM-NA-<5 digits>/<n>-<description>-<5 digits>/1-1.dcm``. The digits are the
  last five of the UIDs of study and series. Older versions lack ``NA-``, or have ``-`` for blanks. If its
  ``metadata.csv`` exists, that file takes precedence.
- Paths of the tables, and mirrors with a folder for each series: ``.../<series UID>/<any name>``. These include
  Kaggle's JPEG mirror (``jpeg/<series UID>/1-001.jpg``) and ``dicom/<study UID>/<series UID>/<SOP UID>.dcm``.

Dates, descriptions and file names are ignored, because they vary.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from medfl.errors import DataError
from medfl_datasets.cbis_ddsm.tables import TABLES, Series

METADATA = "metadata.csv"
"""Table that the NBIA Data Retriever writes beside its folders."""

_UID = re.compile(r"\d+(\.\d+){4,}")
_LAST_FIVE = re.compile(r".*-(\d{5})")
_SUBJECT = re.compile(r"(Mass|Calc)-(Training|Test)_P_\d{5}_(LEFT|RIGHT)_(CC|MLO)(_\d+)?")
_SUFFIXES = (".dcm", ".dicom", ".jpg", ".jpeg", ".png", "")


@dataclass
class CbisTree:
    """Tables and image files below a folder, with an index of the image folders by series.

    Attributes:
        top: Folder that was searched.
        tables: Maps each kind of lesion and split, a key of `medfl_datasets.cbis_ddsm.tables.TABLES`, to the table.
        folders: Maps each folder to its image files, sorted.
    """

    top: Path
    tables: dict[tuple[str, str], Path] = field(default_factory=dict)
    folders: dict[Path, list[Path]] = field(default_factory=dict)
    _by_uid: dict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    _by_rule: dict[tuple[str, str, str], list[Path]] = field(default_factory=lambda: defaultdict(list))
    _used: set[Path] = field(default_factory=set)

    def find(self, series: Series) -> list[Path]:
        """Return the files of a series, sorted by name, and mark their folders as used; empty if there are none."""
        folders = [*self._by_uid.get(series.series, []), *self._by_rule.get(_folder_key(series), [])]
        unique = list(dict.fromkeys(folders))
        self._used.update(unique)
        return [file for folder in unique for file in self.folders[folder]]

    def unused(self) -> dict[str, int]:
        """Count the image files that belong to no series that `find` was asked for.

        Returns:
            Maps each subject to its number of unused files; the key is '' for folders that name no subject.
        """
        counts: dict[str, int] = defaultdict(int)
        for folder, files in self.folders.items():
            if folder not in self._used:
                counts[next((part for part in folder.parts[::-1] if _SUBJECT.fullmatch(part)), "")] += len(files)
        return dict(counts)

    def count(self) -> int:
        """Return the number of image files below the folder."""
        return sum(len(files) for files in self.folders.values())


def list_files(top: Path) -> CbisTree:
    """List the tables and the image files below a folder.

    Raises:
        DataError: If the folder does not exist.
    """
    if not top.is_dir():
        raise DataError(
            "missing_folder",
            f"expected the folder of CBIS-DDSM at {top}, found none. Give another --source.",
            path=top,
        )
    tree, metadata = CbisTree(Path(os.path.abspath(top))), []
    names = {name: key for key, name in TABLES.items()}
    for place, subfolders, files in os.walk(tree.top):
        subfolders.sort()
        folder = Path(place)
        if METADATA in files:
            metadata.append(folder / METADATA)
        for name in names.keys() & {name.lower() for name in files}:
            tree.tables.setdefault(names[name], next(folder / file for file in files if file.lower() == name))
        images = sorted(folder / name for name in files if _is_image(name))
        if images:
            tree.folders[folder] = images
    for folder in tree.folders:
        _index_folder(tree, folder)
    for path in metadata:
        _index_metadata(tree, path)
    return tree


def distinct_files(files: Iterable[Path]) -> list[Path]:
    """Return the first of each set of files with identical bytes, so that a series downloaded twice counts once."""
    by_size = defaultdict(list)
    for path in files:
        by_size[path.stat().st_size].append(path)
    distinct: list[Path] = []
    for alike in by_size.values():
        distinct += alike if len(alike) == 1 else {_digest(path): path for path in reversed(alike)}.values()
    return sorted(distinct)


def _is_image(name: str) -> bool:
    """Return whether a file is an image by its ending; files without ending, or named by a UID, count as DICOM."""
    suffix = Path(name).suffix.lower()
    return (suffix in _SUFFIXES or suffix[1:].isdigit()) and not name.upper().startswith((".", "LICENSE"))


def _folder_key(series: Series) -> tuple[str, str, str]:
    """Return the key by which an NBIA folder is found: subject, and last five digits of study and series UID."""
    return series.subject, series.study[-5:], series.series[-5:]


def _index_folder(tree: CbisTree, folder: Path) -> None:
    """Add a folder to the index of the tree, in place."""
    if _UID.fullmatch(folder.name):
        tree._by_uid[folder.name].append(folder)
    study, series = _LAST_FIVE.fullmatch(folder.parent.name), _LAST_FIVE.fullmatch(folder.name)
    if study and series:
        tree._by_rule[folder.parent.parent.name, study[1], series[1]].append(folder)


def _index_metadata(tree: CbisTree, path: Path) -> None:
    """Add the folders of an NBIA ``metadata.csv`` to the index, in place, before other folders of a series.

    Rows whose folder does not exist are skipped.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            uid, location = row.get("Series UID"), row.get("File Location")
            if uid and location:
                folder = Path(os.path.normpath(path.parent / location.replace("\\", "/")))
                if folder in tree.folders and folder not in tree._by_uid[uid]:
                    tree._by_uid[uid].insert(0, folder)


def _digest(path: Path) -> bytes:
    """Return a hash of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
