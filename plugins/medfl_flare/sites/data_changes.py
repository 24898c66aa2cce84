"""Detection of changes to a site's data during a run: checked before every request, and when the site rejoins the run.

Large arrays are read while a round trains, so a file that changes between two rounds would silently change the training
data. A file whose time or size has changed is read again; the run continues if the content of the file is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from medfl.errors import RefusedError, StoreError
from medfl.records.run_file import RunFile
from medfl.utils.files import sha256_of

FileState = tuple[int, int, int]
"""Inode, size in bytes and modification time in nanoseconds of a file."""


class DataChangeDetector:
    """Detector of files that changed since they were loaded.

    Args:
        site: Name of the site that owns the files.
        digests: Maps the path of each file to the SHA-256 of its content at the time of loading.
    """

    def __init__(self, site: str, digests: Mapping[Path, str]) -> None:
        self._site, self._digests = site, digests
        self._marks = {path: _file_state(path) for path in digests}

    def check(self) -> None:
        """Raise if a file changed.

        Raises:
            RefusedError: If a file changed. The message contains only the last part of the paths, as it is sent to the
                server.
        """
        changed = []
        for path, before in self._marks.items():
            now = _file_state(path)
            if now == before:
                continue
            if now is None or _digest(path) != self._digests[path]:
                changed.append(path.name)
            else:
                self._marks[path] = now
        if changed:
            raise RefusedError(
                "changed_data",
                f"the data of '{self._site}' changed since it joined the run ({', '.join(sorted(changed))}). The data "
                "of a run must not change: restore the files and resume it, or begin a new run with the new data.",
                site=self._site,
                files=sorted(changed),
            )


def check_same_data(folder: Path, site: str, digest: str) -> None:
    """Raise if a site rejoins a run with other data than before.

    Args:
        folder: The run's folder at the site.
        site: Name of the site.
        digest: Digest of the current data (`medfl.data.sites.SiteData.digest`).

    Raises:
        RefusedError: If the data differ.
    """
    path = folder / RunFile.NAME
    if not path.is_file():
        return
    try:
        run = RunFile.read(path)
    except StoreError:
        return  # a later step claims the folder and reports the invalid file
    if run.identity.data != digest:
        raise RefusedError(
            "other_data",
            f"the data of '{site}' differ from the data with which it began this run. The data of a run must not "
            "change: restore them, or begin a new run (another --output_dir) with the new data.",
            site=site,
        )


def _file_state(path: Path) -> FileState | None:
    """Return the inode, size and modification time of a file, or None if it can't be read."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _digest(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None if it can't be read."""
    try:
        return sha256_of(path)
    except OSError:
        return None
