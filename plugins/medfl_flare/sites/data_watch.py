"""A site's data stay as they were when it joined a run: looked at before every order, and when it joins anew.

Large arrays are read while a round trains, so a file that changes between two rounds would change what is trained on
without a word. A file whose time or size differs is read again; the same content is fine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from medfl.errors import RefusedError, StoreError
from medfl.records.run_file import RunFile
from medfl.utils.files import sha256_of

Marks = tuple[int, int, int]
"""Of a file: its number, size and time of change."""


class DataWatch:
    """Looks whether files changed since they were loaded.

    Args:
        site: Whose they are.
        digests: File to its SHA-256 when it was loaded (`medfl.data.sites.SiteData.files`).
    """

    def __init__(self, site: str, digests: Mapping[Path, str]) -> None:
        self._site, self._digests = site, digests
        self._marks = {path: _marks(path) for path in digests}

    def check(self) -> None:
        """Refuse to go on with other data.

        Raises:
            RefusedError: Naming the files by their last part alone: it travels.
        """
        changed = []
        for path, before in self._marks.items():
            now = _marks(path)
            if now == before:
                continue
            if now is None or _digest(path) != self._digests[path]:
                changed.append(path.name)
            else:
                self._marks[path] = now
        if changed:
            raise RefusedError(
                "changed_data",
                f"the data of '{self._site}' changed since it joined the run ({', '.join(sorted(changed))}). A run's "
                "data stay: put the files back as they were and resume it, or begin a new run with the new data.",
                site=self._site,
                files=sorted(changed),
            )


def check_same_data(folder: Path, site: str, digest: str) -> None:
    """Refuse to join a run anew with other data than before.

    Args:
        folder: The run's, at the site.
        site: Its name.
        digest: Of its data now (`medfl.data.sites.SiteData.digest`).

    Raises:
        RefusedError: If they are others.
    """
    path = folder / RunFile.NAME
    if not path.is_file():
        return
    try:
        run = RunFile.read(path)
    except StoreError:
        return  # claiming the folder reports what is wrong with it
    if run.identity.data != digest:
        raise RefusedError(
            "other_data",
            f"the data of '{site}' are not those with which it began this run. A run's data stay: put them back as "
            "they were, or begin a new run (another --output_dir) with the new data.",
            site=site,
        )


def _marks(path: Path) -> Marks | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _digest(path: Path) -> str | None:
    try:
        return sha256_of(path)
    except OSError:
        return None
