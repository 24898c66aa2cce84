"""Adopted bundles: the ids of a stock MONAI bundle that a federation builds, and the folders of the sites.

An adopted bundle is a stock MONAI bundle to which ``medfl adopt`` added a ``federate.json``, the overlay. An id is a
key of a bundle's configuration; ``optimizer#lr`` is a part of the id ``optimizer``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.errors import DataError, SettingsError
from medfl.types import NON_SITE_NAMES
from medfl.utils.text import name_problem

ADOPTED, OVERRIDES = "adopted", "overrides"
"""Ids of an adopted bundle's ``federate.json``.

`ADOPTED`: result of the adoption. `OVERRIDES`: values that each site sets in the stock configuration.
"""

OVERLAY_IDS = frozenset(
    {
        "adopted",
        "allow_leaks",
        "bundle",
        "bundle_root",
        "backend",
        "dataset_dir",
        "device",
        "disabled_plugins",
        "federation",
        "finalize",
        "given_by",
        "imports",
        "initialize",
        "method",
        "method_args",
        "metrics",
        "objective",
        "output_dir",
        "overrides",
        "plugins",
        "rounds",
        "run",
        "save_execute_config",
        "schedule",
        "seed",
        "settings",
        "sites",
        "source",
        "task",
        "test_fraction",
        "val_fraction",
    }
)
"""Top-level ids of the overlay, which belong to the run even if the stock bundle has ids of the same names."""


@dataclass(frozen=True)
class UsedIds:
    """Ids of a stock configuration that a federation builds.

    Attributes:
        ids: Ids whose objects a federation builds, with all of their parts.
        replaced: Parts of `ids` that a federation does not build, because a run uses its own objects instead.
    """

    ids: frozenset[str]
    replaced: frozenset[str]

    @classmethod
    def of(cls, adopted: Mapping[str, Any]) -> UsedIds:
        """Read the ids from the object ``adopted`` of a ``federate.json``.

        Args:
            adopted: Content of the object, with the keys ``used`` and ``replaced``.

        Raises:
            SettingsError: If an older version of medfl adopted the bundle.
        """
        if "used" not in adopted:
            raise SettingsError(
                "outdated_adoption",
                "An older version of medfl adopted this bundle: expected 'adopted#used' in its configs/federate.json, "
                "the ids that a run builds. Adopt it again.",
                id="adopted#used",
            )
        return cls(frozenset(adopted["used"]), frozenset(adopted["replaced"]))

    def has_effect(self, id_: str) -> bool:
        """Return whether a new value of an id, or of a part of it, changes an object that a federation builds."""
        if is_replaced(id_, self.ids, self.replaced):
            return any(is_within(used, id_) for used in self.ids)
        return any(is_within(id_, used) or is_within(used, id_) for used in self.ids)


def is_replaced(id_: str, built: Collection[str], replaced: Collection[str]) -> bool:
    """Return whether a run uses its own object in place of an id's: the innermost listed id around it is in `replaced`.

    Args:
        id_: Id to look up.
        built: Ids that a run builds.
        replaced: Ids in whose place a run uses other objects.
    """
    inner = max((len(other) for other in replaced if is_within(id_, other)), default=-1)
    return inner > max((len(other) for other in built if is_within(id_, other)), default=-1)


def is_within(id_: str, other: str) -> bool:
    """Return whether an id is equal to another id or is a part of it."""
    return id_ == other or id_.startswith(f"{other}#")


def site_folders(dataset_dir: Path) -> list[str]:
    """Return the names of the sites in a data folder, sorted: all folders except hidden ones and `NON_SITE_NAMES`.

    Args:
        dataset_dir: Folder with one folder for each site.

    Raises:
        DataError: If there is no such folder or no site, or a name of a site is not valid.
    """
    if not dataset_dir.is_dir():
        raise DataError(
            "missing_folder",
            f"Expected a folder with one folder for each site at {dataset_dir}, found none.",
            path=dataset_dir,
        )
    folders = [path.name for path in dataset_dir.iterdir() if path.is_dir() and not path.name.startswith(".")]
    names = sorted(set(folders) - set(NON_SITE_NAMES))
    if problem := name_problem(names):
        raise DataError("invalid_site_name", f"{problem} It is a folder in {dataset_dir}.", path=dataset_dir)
    if not names:
        raise DataError(
            "missing_site",
            f"Expected one folder for each site in {dataset_dir}, with the files that the bundle reads; found none. "
            "`medfl partition LIST` makes such folders from a list of cases.",
            path=dataset_dir,
        )
    return names
