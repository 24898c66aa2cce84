"""Copy a bundle byte by byte, without links that lead out of it; no file is executed or loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from medfl.bundle.check.reading import inside
from medfl.data.folders import atomic_folder, check_output_folder
from medfl.errors import SettingsError

SKIPPED_NAMES = {".git", "__pycache__", ".cache", ".DS_Store"}
"""Names of folders and files that do not belong to a bundle."""


def check_paths(root: Path, out: Path) -> None:
    """Check that a bundle can be copied, and that the folder of the copy is free.

    A bundle may contain files, folders and links within the bundle.

    Args:
        root: Folder of the bundle.
        out: Folder of the copy.

    Raises:
        SettingsError: If the bundle contains other entries, or the copy would be inside the bundle.
        DataError: If the copy's folder is not empty.
    """
    if out.resolve().is_relative_to(root.resolve()):
        raise SettingsError(
            "output_inside_bundle",
            f"expected --out outside the bundle '{root}', got '{out}'.",
            path=out,
            bundle=root,
        )
    check_output_folder(out, force=False, inputs=[root])
    unsupported = [path for path in _iterate_entries(root) if not _is_copied(path, root)]
    if unsupported:
        names = ", ".join(f"'{path.relative_to(root)}'" for path in unsupported[:5])
        raise SettingsError(
            "links_outside_bundle",
            f"The bundle '{root}' has {len(unsupported)} links that lead out of it or nowhere, or entries that are not "
            f"files: {names}{' and more' if len(unsupported) > 5 else ''}. Expected files and folders only. Replace "
            f"the links by files, for example with: cp -rL {root} COPY",
            path=root,
            count=len(unsupported),
            entries=[path.relative_to(root) for path in unsupported[:5]],
        )


def copy_bundle(root: Path, out: Path, complete: Callable[[Path], None]) -> None:
    """Copy a bundle; the copy is written completely or not at all.

    Args:
        root: Folder of a bundle that `check_paths` has accepted.
        out: Folder of the copy.
        complete: Function that gets the folder of the unfinished copy and adds new files to it.
    """
    with atomic_folder(out) as staged:
        for path in _iterate_entries(root):
            place = staged / path.relative_to(root)
            if path.is_symlink():
                target = path.resolve().relative_to(root.resolve())
                place.symlink_to(os.path.relpath(staged / target, place.parent))
            elif path.is_dir():
                place.mkdir()
            else:
                shutil.copyfile(path, place)
        complete(staged)


def _iterate_entries(root: Path) -> Iterator[Path]:
    """Yield all entries below a folder, folders before their contents; links are not followed."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_NAMES)
        for name in (*folders, *sorted(name for name in files if name not in SKIPPED_NAMES)):
            yield Path(folder) / name


def _is_copied(path: Path, root: Path) -> bool:
    """Return whether an entry of a bundle can be copied."""
    if path.is_symlink():
        return inside(path, root) and not SKIPPED_NAMES & set(path.resolve().parts)
    return path.is_dir() or path.is_file()
