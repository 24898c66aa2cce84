"""The entry of a ``federate.json`` that an adopted bundle has: which ids of the stock bundle a federation builds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.errors import DataError, SettingsError
from medfl.types import NO_SITES
from medfl.utils.text import name_problem

ADOPTED, OVERRIDES = "adopted", "overrides"
"""Ids that a stock bundle has once it is adopted: what was recognised of it, and what options change of it."""

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
"""Ids at the top of an adopted bundle that are the run's own, whatever the stock bundle means by them."""


@dataclass(frozen=True)
class Used:
    """The ids of a configuration that a federation builds.

    Attributes:
        ids: Ids that are built, with all that is below them.
        replaced: Ids below those that a run puts something else in place of.
    """

    ids: frozenset[str]
    replaced: frozenset[str]

    @classmethod
    def of(cls, adopted: Mapping[str, Any]) -> Used:
        """Return what ``adopted`` of a ``federate.json`` says.

        Raises:
            SettingsError: If the bundle was adopted by an older version.
        """
        if "used" not in adopted:
            raise SettingsError(
                "outdated_adoption",
                "the bundle was adopted by an older version: expected 'adopted#used' in its configs/federate.json, the "
                "ids that a run builds. Adopt it again.",
                id="adopted#used",
            )
        return cls(frozenset(adopted["used"]), frozenset(adopted["replaced"]))

    def has_effect(self, id_: str) -> bool:
        """True if another value of an id, or of a part of it, changes what a federation builds."""
        if is_replaced(id_, self.ids, self.replaced):
            return any(is_within(used, id_) for used in self.ids)
        return any(is_within(id_, used) or is_within(used, id_) for used in self.ids)


def is_replaced(id_: str, built: Collection[str], replaced: Collection[str]) -> bool:
    """True if the innermost of the given ids around an id is one that a run puts something else in place of."""
    inner = max((len(other) for other in replaced if is_within(id_, other)), default=-1)
    return inner > max((len(other) for other in built if is_within(id_, other)), default=-1)


def is_within(id_: str, other: str) -> bool:
    """True if an id is another one or lies below it."""
    return id_ == other or id_.startswith(f"{other}#")


def site_folders(dataset_dir: Path) -> list[str]:
    """Return the sites of an adopted bundle, sorted: all folders but hidden ones and those of `NO_SITES`.

    Raises:
        DataError: If there is none, or a name will not do.
    """
    if not dataset_dir.is_dir():
        raise DataError(
            "missing_folder",
            f"expected a folder with one folder for each site, there is none at {dataset_dir}.",
            path=dataset_dir,
        )
    folders = [path.name for path in dataset_dir.iterdir() if path.is_dir() and not path.name.startswith(".")]
    names = sorted(set(folders) - set(NO_SITES))
    if problem := name_problem(names):
        raise DataError("invalid_site_name", f"{problem} It is a folder in {dataset_dir}.", path=dataset_dir)
    if not names:
        raise DataError(
            "missing_site",
            f"expected one folder for each site in {dataset_dir}, each with what the bundle reads; got none. `medfl "
            "partition LIST` makes them of one list.",
            path=dataset_dir,
        )
    return names
