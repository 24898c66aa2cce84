"""The fold that a partition drew, and files that changed after ``medfl partition`` noted their digests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from medfl.data.datalists import FILE
from medfl.data.sites import SiteData
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.records.partition import Fold, Partition


def drawn_fold(dataset_dir: str | Path) -> Fold | None:
    """Return the fold that is the test set of every site.

    Args:
        dataset_dir: The folder that holds one folder for each site.

    Returns:
        None if the test sets are no folds, or there is no ``partition.json``.

    Raises:
        DataError: If ``partition.json`` is damaged.
    """
    made = Partition.find(dataset_dir)
    return None if made is None else made.settings.test_fold()


def check_unchanged(
    dataset_dir: Path, parts: Iterable[SiteData], allow: Sequence[str] = (), every_site: bool = False
) -> list[str]:
    """Refuse files that are not as ``medfl partition`` left them, except those that are allowed by name.

    Only what ``partition.json`` has a digest of is compared: lists that somebody made without a partition are as good
    as they are. Nothing is read again, since loading has taken the digests.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        parts: What was loaded.
        allow: Files that may have changed, by the names that `partition.json` has for them.
        every_site: Whether all sites of the partition must be there.

    Returns:
        The files that changed and may, sorted.

    Raises:
        DataError: If a file changed that is not allowed, or ``partition.json`` is damaged.
        SettingsError: If `allow` names a file of which nothing is noted.
    """
    made = Partition.find(dataset_dir)
    noted = {} if made is None else made.sha256_by_file
    for name in allow:
        if name not in noted:
            raise SettingsError(
                "unknown_file",
                f"'allow_changes' names no file of the partition: '{name}'. {did_you_mean(name, noted)}",
                setting="allow_changes",
                name=name,
            )
    loaded = {os.path.relpath(path, dataset_dir): digest for part in parts for path, digest in part.files.items()}
    changed = {name for name, digest in loaded.items() if noted.get(name, digest) != digest}
    if every_site:
        changed |= {name for name in noted if Path(name).name == FILE and not (dataset_dir / name).is_file()}
    if refused := sorted(changed - set(allow)):
        raise DataError(
            "changed_file",
            f"files are not as `medfl partition` left them in {dataset_dir}: {', '.join(refused)}. Partition again, or "
            f'accept the change by name (a run takes --allow_changes "{sorted(changed)}", a file of a site across '
            "machines allow_changes), and it will be on record.",
            path=dataset_dir,
            files=refused,
        )
    return sorted(changed)
