"""Cases of a split as a bundle lists them (dictionaries of files and values): checks and content digests."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medfl.data.readers.itk_files import missing_reader_text
from medfl.errors import DataError
from medfl.utils.configuration import describe_object
from medfl.utils.files import sha256_of

Case = Mapping[str, Any]
"""One case: maps the keys of the transforms, such as ``image`` and ``label``, to values.

Values are files, folders (a DICOM series), lists of files, numbers, text or arrays.
"""

MULTI_FILE_SUFFIXES = (".hdr", ".img", ".mhd", ".nhdr")
"""Suffixes of formats that store an image in several files of the same name."""

SUFFIXES_WITHOUT_SPACING = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif")
"""Suffixes of image files without a reliable pixel size in millimetres."""


def check_cases(cases: Sequence[Case], keys: Collection[str], loaded: Collection[str], where: str) -> None:
    """Raise if a case lacks an entry or a file.

    Args:
        cases: List of cases.
        keys: Keys that each case must have.
        loaded: Keys whose files the transforms read.
        where: Name of the list, for messages.

    Raises:
        DataError: If an entry or a file is missing, or no installed package reads a file. The message names row and
            key, never the file.
    """
    for row, case in enumerate(cases):
        place = f"row {row} of {where}"
        if not isinstance(case, Mapping):
            raise DataError(
                "wrong_type",
                f"expected a dictionary at {place}, got {type(case).__name__}. Correct the list.",
                where=where,
                row=row,
                expected="dict",
                found=type(case).__name__,
            )
        for key in keys:
            if case.get(key) is None:
                raise DataError(
                    "missing_value",
                    f"expected '{key}' at {place}, it is missing. Add the file or value to the list, or leave the case "
                    "out of it.",
                    where=where,
                    row=row,
                    key=key,
                )
        for key in loaded:
            if key in case and not all(os.path.exists(path) for path in _paths_in(case[key])):
                raise DataError(
                    "missing_file",
                    f"the file of '{key}' at {place} is missing. Put it where the list says, or leave the case out.",
                    where=where,
                    row=row,
                    key=key,
                )
            for path in _paths_in(case.get(key)):
                if lack := missing_reader_text(path):
                    raise DataError(
                        "missing_package",
                        f"the file of '{key}' at {place} can't be read: {lack}.",
                        where=where,
                        row=row,
                        key=key,
                        package="itk",
                        extra="itk",
                    )


def case_digest(case: Case) -> str:
    """Return a SHA-256 digest of a case: the content of its files, without their names, and all other entries.

    A file is read once per process while its size and modification time do not change.

    Raises:
        DataError: If an entry can't be described, or a file can't be read.
    """
    entries = {key: _entry_digest(value) for key, value in case.items()}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def lacks_spacing(value: Any) -> bool:
    """Return True if an entry of a case names an image file without pixel size in millimetres."""
    return any(path.suffix.lower() in SUFFIXES_WITHOUT_SPACING for path in _paths_in(value))


def _entry_digest(value: Any) -> Any:
    """Return the digests of the files that an entry names, or a description of any other value."""
    paths = [path for path in _paths_in(value) if os.path.exists(path)]  # never raises, not even for very long texts
    if not paths:
        return describe_object(value)
    return ["files", [_file_digest(file) for path in paths for file in _files_of(path)]]


def _paths_in(value: Any) -> list[Path]:
    """Return the paths that an entry may contain."""
    if isinstance(value, list | tuple):
        return [path for each in value for path in _paths_in(each)]
    return [Path(value)] if isinstance(value, str | Path) else []


def _files_of(path: Path) -> Iterator[Path]:
    """Yield the files that belong to a path: the file itself, all files of the same name, or all files in a folder."""
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file())
    elif path.suffix.lower() in MULTI_FILE_SUFFIXES:
        yield from sorted(path.parent.glob(f"{path.stem}.*"))
    else:
        yield path


def _file_digest(path: Path) -> list[str]:
    """Return the suffix of a file, which selects its reader, and the digest of its content."""
    try:
        status = path.stat()
        return [
            path.name[-7:] if path.suffix == ".gz" else path.suffix,
            _digest(path, status.st_mtime_ns, status.st_size, status.st_ino),
        ]
    except OSError as error:
        raise DataError(
            "unreadable_file", f"a file can't be read: {error.strerror}. Permit reading it.", reason=error.strerror
        ) from None


@functools.lru_cache(maxsize=1 << 17)
def _digest(path: Path, mtime: int, size: int, inode: int) -> str:
    return sha256_of(path)
