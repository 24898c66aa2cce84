"""What ``medfl partition`` notes beside the sites: how it made them, and digests of lists and arrays, to compare."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from medfl.data.datalists import FILE
from medfl.data.sites import SiteData
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.types import Meta

PARTITION = "partition.json"
"""The name of the file, beside the sites."""


def drawn_fold(dataset_dir: str | Path) -> Meta:
    """Which of several folds the sites' test sets are: ``fold``, from 0, and ``folds``, their number.

    Args:
        dataset_dir: The folder that holds one folder for each site.

    Returns:
        Empty where the test sets are no folds, or nobody wrote how they were chosen.

    Raises:
        DataError: If ``partition.json`` is damaged.
    """
    facts = read_partition(dataset_dir)
    try:
        return {key: int(facts[key]) for key in ("fold", "folds")} if facts.get("test") == "k_fold" else {}
    except (ValueError, TypeError, KeyError):
        raise _damaged(Path(dataset_dir) / PARTITION) from None


def read_partition(dataset_dir: str | Path) -> Meta:
    """What ``partition.json`` says; empty where nobody wrote how the sites were made.

    Args:
        dataset_dir: The folder that holds one folder for each site.

    Raises:
        DataError: If it is damaged.
    """
    path = Path(dataset_dir) / PARTITION
    if not path.is_file():
        return {}
    try:
        facts: Meta = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    if not isinstance(facts, dict) or not isinstance(facts.get("files_sha256", {}), dict):
        raise _damaged(path)
    return facts


def _damaged(path: Path) -> DataError:
    return DataError(
        "damaged_file",
        f"expected in '{path}' how the sites were made, as `medfl partition` writes it; it is damaged. "
        "Partition again.",
        path=path,
    )


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
    noted = read_partition(dataset_dir).get("files_sha256", {})
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
