"""The cases of a split as a bundle lists them, dictionaries of files and numbers, and what their files hold."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medfl.data.readers.itk_files import lacks_reader
from medfl.errors import DataError
from medfl.utils.configuration import described
from medfl.utils.files import sha256_of

Case = Mapping[str, Any]
"""One case: keys of the transforms to files, folders (a DICOM series), lists of files, numbers, text or arrays."""

COMPANIONS = (".hdr", ".img", ".mhd", ".nhdr")
"""Of such a file another one of the same name is a part."""

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif")
"""Files that say nothing reliable of the size of a pixel."""


def check_cases(cases: Sequence[Case], keys: Collection[str], loaded: Collection[str], where: str) -> None:
    """Refuse a list in which a case lacks an entry or a file.

    Args:
        cases: The list.
        keys: What each case needs.
        loaded: Which of them are read from files by the transforms.
        where: What the list belongs to, for messages.

    Raises:
        DataError: Naming the row and the key, never the file.
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
                    f"expected '{key}' at {place}, there is none. Add the file or value to the list, or leave the case "
                    "out of it.",
                    where=where,
                    row=row,
                    key=key,
                )
        for key in loaded:
            if key in case and not all(os.path.exists(path) for path in _named(case[key])):
                raise DataError(
                    "missing_file",
                    f"the file of '{key}' at {place} is missing. Put it where the list says, or leave the case out.",
                    where=where,
                    row=row,
                    key=key,
                )
            for path in _named(case.get(key)):
                if lack := lacks_reader(path):
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
    """SHA-256 over a case: the content of its files, never their names, and all other entries.

    A file is read once per process as long as its size and its time of change stay the same.

    Raises:
        DataError: If an entry is nothing that can be compared, or a file can't be read.
    """
    entries = {key: _entry(value) for key, value in case.items()}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def is_picture(value: Any) -> bool:
    """Whether an entry of a case names a picture, whose pixels have no size in millimetres."""
    return any(path.suffix.lower() in PICTURES for path in _named(value))


def _entry(value: Any) -> Any:
    paths = [path for path in _named(value) if os.path.exists(path)]  # never raises, however long the text is
    if not paths:
        return described(value)
    return ["files", [_file_digest(file) for path in paths for file in _parts(path)]]


def _named(value: Any) -> list[Path]:
    """The paths that an entry may be."""
    if isinstance(value, list | tuple):
        return [path for each in value for path in _named(each)]
    return [Path(value)] if isinstance(value, str | Path) else []


def _parts(path: Path) -> Iterator[Path]:
    """The files that belong to a path: itself, its companions, or what is in the folder."""
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file())
    elif path.suffix.lower() in COMPANIONS:
        yield from sorted(path.parent.glob(f"{path.stem}.*"))
    else:
        yield path


def _file_digest(path: Path) -> list[str]:
    """The kind of a file, which chooses its reader, and its content."""
    try:
        facts = path.stat()
        return [
            path.name[-7:] if path.suffix == ".gz" else path.suffix,
            _digest(path, facts.st_mtime_ns, facts.st_size, facts.st_ino),
        ]
    except OSError as error:
        raise DataError(
            "unreadable_file", f"a file can't be read: {error.strerror}. Permit reading it.", reason=error.strerror
        ) from None


@functools.lru_cache(maxsize=1 << 17)
def _digest(path: Path, mtime: int, size: int, inode: int) -> str:
    return sha256_of(path)
