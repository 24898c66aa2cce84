"""Write a folder whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from medfl.errors import DataError

MARKS = ("datalist.json", "partition.json")
"""A folder that holds one of these was written by medfl and may be replaced on request."""


def check_free(out: Path, force: bool) -> None:
    """Refuse a folder that can't be written, before any work is done.

    Args:
        out: The folder to write.
        force: Whether a data set of medfl's own that is there may be replaced.

    Raises:
        DataError: If something is there that may not be replaced.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise DataError(f"expected a folder or nothing at {out}, found a file. Give another --out.")
    if not any(out.iterdir()):
        return
    if not force:
        raise DataError(f"the folder {out} is not empty. Give another --out, or --force to replace it.")
    if not any((out / mark).is_file() for mark in MARKS):
        raise DataError(
            f"the folder {out} holds something that medfl did not write (none of {', '.join(MARKS)} is in it), "
            "so --force does not remove it. Give another --out."
        )


@contextlib.contextmanager
def written_whole(out: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name when the block ends without an error.

    Args:
        out: The folder to write.
        force: Whether a data set of medfl's own that is there may be replaced.

    Yields:
        The temporary folder. It is removed when the block fails.

    Raises:
        DataError: If `out` may not be replaced.
    """
    out = out.absolute()
    check_free(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        content = temporary / "new"
        content.mkdir()
        yield content
        if out.exists():
            os.replace(out, temporary / "old")
        os.replace(content, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
