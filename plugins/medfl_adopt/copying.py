"""A copy of a bundle: every file byte by byte, no link that leads out, nothing opened that could run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from medfl.bundle.check.reading import inside
from medfl.data.folders import check_free, written_whole
from medfl.errors import SettingsError

SKIPPED = {".git", "__pycache__", ".cache", ".DS_Store"}
"""Folders and files that are no part of a bundle."""


def check_places(root: Path, out: Path) -> None:
    """Refuse to copy a bundle that holds more than files, folders and links in itself; or to a place that is taken.

    Args:
        root: The bundle.
        out: Where the copy is to be.

    Raises:
        SettingsError: Saying which.
        DataError: If the place is not free.
    """
    if out.resolve().is_relative_to(root.resolve()):
        raise SettingsError(
            "output_inside_bundle",
            f"'{out}' is in the bundle '{root}': expected --out to be a place apart from it.",
            path=out,
            bundle=root,
        )
    check_free(out, force=False, inputs=[root])
    odd = [path for path in _entries(root) if not _is_copied(path, root)]
    if odd:
        names = ", ".join(f"'{path.relative_to(root)}'" for path in odd[:5])
        raise SettingsError(
            "links_outside_bundle",
            f"the bundle '{root}' has {len(odd)} links that lead out of it or nowhere, or entries that are no files: "
            f"{names}{' and more' if len(odd) > 5 else ''}. Expected files and folders. Put the files in place of the "
            f"links, for example by: cp -rL {root} COPY",
            path=root,
            count=len(odd),
            entries=[path.relative_to(root) for path in odd[:5]],
        )


def copy(root: Path, out: Path, complete: Callable[[Path], None]) -> None:
    """Copy a bundle; the copy is there whole or not at all.

    Args:
        root: The bundle, which `check_places` has passed.
        out: Where the copy is to be.
        complete: Adds to the copy what is new in it, before it takes its place.
    """
    with written_whole(out) as staged:
        for path in _entries(root):
            place = staged / path.relative_to(root)
            if path.is_symlink():
                target = path.resolve().relative_to(root.resolve())
                place.symlink_to(os.path.relpath(staged / target, place.parent))
            elif path.is_dir():
                place.mkdir()
            else:
                shutil.copyfile(path, place)
        complete(staged)


def _entries(root: Path) -> Iterator[Path]:
    """All that is in a folder, folders before what they hold; links are not followed."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in (*folders, *sorted(name for name in files if name not in SKIPPED)):
            yield Path(folder) / name


def _is_copied(path: Path, root: Path) -> bool:
    if path.is_symlink():
        return inside(path, root) and not SKIPPED & set(path.resolve().parts)
    return path.is_dir() or path.is_file()
