"""Write output folders atomically: completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from medfl.data.datalists import DATALIST_FILE
from medfl.errors import DataError
from medfl.records.partition import Partition

MARKER_FILES = (DATALIST_FILE, Partition.NAME)
"""File names that show that medfl wrote a folder: if a folder contains one of them, ``--force`` may replace it."""


CACHE_FOLDER = ".medfl_cache"
"""Name of the folder, within a site's folder, for cached images and features."""

_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for a full disk, an exhausted quota or a file size limit."""


def real_path(path: Path) -> Path:
    """Return the absolute path without links; `Path.resolve` would raise RuntimeError for a link to itself."""
    return Path(os.path.realpath(path))


def check_output_folder(out: Path, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Raise if an output folder can't be written, so that the error comes before any work is done.

    Args:
        out: Folder to write.
        force: Whether an existing data set written by medfl may be replaced.
        inputs: Files and folders to be read; raise if replacing `out` would delete one of them.

    Raises:
        DataError: If `out` contains an input, is not a folder, or is not empty and may not be replaced.
    """
    place = real_path(out)
    if place.is_symlink():
        raise DataError(
            "not_a_folder",
            f"expected a folder or nothing at {out}, found a link to itself. Give another --out.",
            path=out,
        )
    for path in inputs:
        if place in (real_path(path), *real_path(path).parents):
            raise DataError(
                "output_contains_input",
                f"the output folder {out} contains the input {path}, which would be replaced. Give another --out.",
                path=out,
                input=path,
            )
    if not out.exists():
        return
    if not out.is_dir():
        raise DataError(
            "not_a_folder", f"expected a folder or nothing at {out}, found a file. Give another --out.", path=out
        )
    if not any(out.iterdir()):
        return
    if not force:
        raise DataError(
            "folder_not_empty",
            f"the folder {out} is not empty. Give another --out, or --force to replace it.",
            path=out,
        )
    if not any((out / mark).is_file() for mark in MARKER_FILES):
        raise DataError(
            "foreign_folder",
            f"the folder {out} contains files that medfl did not write (it has none of {', '.join(MARKER_FILES)}), "
            "so --force does not remove it. Give another --out.",
            path=out,
        )


@contextlib.contextmanager
def atomic_folder(out: Path, force: bool = False) -> Iterator[Path]:
    """Provide a temporary folder for writing. It is renamed to `out` when the ``with`` block ends without an error.

    Args:
        out: Folder to write.
        force: Whether an existing data set written by medfl may be replaced.

    Yields:
        The temporary folder, next to `out`. If the block fails, it is removed and the previous content of `out` stays.

    Raises:
        DataError: If `out` may not be replaced, its parent folder can't be written, or the disk is full.
    """
    check_output_folder(out, force)
    out = real_path(out)  # if it is a link, keep the link and replace its target
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise DataError(
            "unwritable_folder",
            f"could not write to the folder {out.parent}: {error.strerror}. Give another --out.",
            path=out.parent,
            reason=error.strerror,
        ) from None
    old = temporary / "old"
    try:
        content = temporary / "new"
        content.mkdir()
        yield content
        if out.exists():
            os.replace(out, old)
        os.replace(content, out)
    except OSError as error:
        if error.errno not in _DISK_FULL_ERRORS:
            raise
        raise DataError(
            "disk_full",
            f"could not write '{out}': {error.strerror}. Make room, or give another --out.",
            path=out,
            reason=error.strerror,
        ) from None
    finally:
        if old.exists() and not out.exists():  # interrupted between the two calls of os.replace
            os.replace(old, out)
        shutil.rmtree(temporary, ignore_errors=True)
