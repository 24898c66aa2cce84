"""Read ``partition.json`` of a partitioned data set: its test fold and the digests of its files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from medfl.data.datalists import DATALIST_FILE
from medfl.data.sites import SiteData
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.records.partition import Partition, TestFold


def drawn_fold(dataset_dir: str | Path) -> TestFold | None:
    """Return the cross-validation fold that is the test set of every site.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site.

    Returns:
        The fold, or None if test sets are not folds or there is no ``partition.json``.

    Raises:
        DataError: If ``partition.json`` is damaged.
    """
    partition = Partition.find(dataset_dir)
    return None if partition is None else partition.settings.test_fold()


def check_unchanged(
    dataset_dir: Path, parts: Iterable[SiteData], allow: Sequence[str] = (), every_site: bool = False
) -> list[str]:
    """Raise if files changed since ``medfl partition`` wrote them, except files whose change is allowed by name.

    Only files with a digest in ``partition.json`` are compared, so data lists that were not written by a partition
    always pass. No file is read: loading has already computed the digests.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site.
        parts: Loaded data of the sites, the server and public data.
        allow: Files that may have changed, named as in ``partition.json``.
        every_site: Whether the data lists of all sites of the partition must exist.

    Returns:
        The changed files that are allowed, sorted.

    Raises:
        DataError: If a file changed that is not allowed, or ``partition.json`` is damaged.
        SettingsError: If `allow` names a file that is not in ``partition.json``.
    """
    partition = Partition.find(dataset_dir)
    recorded = {} if partition is None else partition.sha256_by_file
    for name in allow:
        if name not in recorded:
            raise SettingsError(
                "unknown_file",
                f"'allow_changes' contains '{name}', which is no file of the partition. {did_you_mean(name, recorded)}",
                setting="allow_changes",
                name=name,
            )
    loaded = {os.path.relpath(path, dataset_dir): digest for part in parts for path, digest in part.files.items()}
    changed = {name for name, digest in loaded.items() if recorded.get(name, digest) != digest}
    if every_site:
        changed |= {
            name for name in recorded if Path(name).name == DATALIST_FILE and not (dataset_dir / name).is_file()
        }
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
