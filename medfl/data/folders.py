"""Write a folder whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from medfl.data.datalists import FILE
from medfl.errors import DataError
from medfl.records.partition import Partition

MARKS = (FILE, Partition.NAME)
"""A folder that holds one of these was written by medfl and may be replaced on request."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a system says of a disk, a quota or a file that can't grow."""


def check_free(out: Path, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Refuse a folder that can't be written, before any work is done.

    Args:
        out: The folder to write.
        force: Whether a data set of medfl's own that is there may be replaced.
        inputs: What is to be read; replacing `out` must not delete it.

    Raises:
        DataError: If something is there that may not be replaced.
    """
    place = out.resolve()
    for path in inputs:
        if place in (path.resolve(), *path.resolve().parents):
            raise DataError(
                "output_contains_input",
                f"the folder {out} holds what is to be read ({path}), and would be replaced by what is written. "
                "Give another --out.",
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
    if not any((out / mark).is_file() for mark in MARKS):
        raise DataError(
            "foreign_folder",
            f"the folder {out} holds something that medfl did not write (none of {', '.join(MARKS)} is in it), "
            "so --force does not remove it. Give another --out.",
            path=out,
        )


@contextlib.contextmanager
def written_whole(out: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name when the block ends without an error.

    Args:
        out: The folder to write.
        force: Whether a data set of medfl's own that is there may be replaced.

    Yields:
        The temporary folder. It is removed when the block fails, and what was at `out` stays.

    Raises:
        DataError: If `out` may not be replaced, its folder can't be written, or the disk is full.
    """
    out = out.resolve()  # a link stays, and its target is replaced
    check_free(out, force)
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
        if error.errno not in _FULL:
            raise
        raise DataError(
            "disk_full",
            f"could not write '{out}': {error.strerror}. Make room, or give another --out.",
            path=out,
            reason=error.strerror,
        ) from None
    finally:
        if old.exists() and not out.exists():  # interrupted between the two
            os.replace(old, out)
        shutil.rmtree(temporary, ignore_errors=True)
