"""The bundles of a run folder, and the predictions of their models for test images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medfl.engine.runs.records import PREDICTIONS, RunRecord, read_predictions
from medfl.errors import StoreError
from medfl.objectives import Objective
from medfl.types import GLOBAL, Meta
from medfl_report.predictions import Tested, tested_of

OWN = "bundle"
"""The folder of a site's own bundle, at a site of a run between machines."""


@dataclass(frozen=True)
class Bundle:
    """A bundle of a run.

    Attributes:
        folder: Where it is.
        site: Whose; None for the global one.
        predictions: Site to the file of what this bundle's model says of the site's test images.
    """

    folder: Path
    site: str | None
    predictions: Mapping[str, Path] = field(default_factory=dict)


def bundles_of(run: RunRecord) -> list[Bundle]:
    """The bundles of a run: of its sites, the global one, or a site's own where the run went between machines.

    Raises:
        StoreError: If the run is not over, or there is none.
    """
    sites = [str(site) for site in run.sites]
    own = run.folder / OWN
    if run.summary is None and not own.is_dir():
        raise StoreError(
            "unfinished_run",
            f"The run in '{run.folder}' is not over, so it has no models to describe. Continue it.",
            path=run.folder,
        )
    homes: dict[str, Path] = {site: run.folder / "sites" / site for site in sites}
    if own.is_dir():
        homes = {str(read_config(own, "train.json").get("site", "this site")): own}
    for folder in (run.folder / "sites", run.folder / GLOBAL, *homes.values()):
        if folder.is_symlink():
            raise StoreError(
                "linked_folder",
                f"'{folder}' is a link: a card is written into the run's own folders, and nowhere else. Put the folder "
                "itself there.",
                path=folder,
            )
    bundles = [_bundle(home, site, [site]) for site, home in homes.items() if home.is_dir()]
    if (run.folder / GLOBAL).is_dir():
        taken = {site: kind for site in sites if (kind := run.exported_kind(site)) is not None}  # who was scored at all
        shared = set(taken.values()) == {GLOBAL}  # else predictions are of other models
        bundles.append(_bundle(run.folder / GLOBAL, None, taken if shared else []))
    if not bundles:
        raise StoreError(
            "missing_bundles",
            f"The run in '{run.folder}' has no bundle to take home, so there is nothing to describe.",
            path=run.folder,
        )
    return bundles


def _bundle(folder: Path, site: str | None, sites: Iterable[str]) -> Bundle:
    return Bundle(folder, site, prediction_files(folder, site, sites))


def prediction_files(folder: Path, site: str | None, sites: Iterable[str]) -> dict[str, Path]:
    """Site to its file of predictions, of those that are there: in a site's bundle, or beside the global one.

    Args:
        folder: Of the bundle.
        site: Whose it is; None for the global one.
        sites: Whose predictions are wanted.
    """
    homes = {name: folder if site is not None else folder.parent / "sites" / name for name in sites}
    return {name: path for name, home in homes.items() if (path := home / PREDICTIONS).is_file()}


def read_predicted(files: Mapping[str, Path], objective: Objective) -> dict[str, Tested]:
    """Site to its test set under a bundle's model.

    Args:
        files: Site to its file of predictions.
        objective: What was learned.

    Raises:
        StoreError: If a file can't be read.
    """
    test_sets = {}
    for site, path in files.items():
        try:
            test_sets[site] = tested_of(read_predictions(path), objective)
        except (ValueError, KeyError, OSError) as error:
            why = type(error).__name__  # its own text may hold a line of the file
            raise StoreError(
                "unreadable_file", f"'{path}' can't be read ({why}). Give the command of the run again.", path=path
            ) from None
    return test_sets


def read_config(bundle: Path, name: str) -> Meta:
    """A configuration of a bundle; empty where it is not there, or no object."""
    try:
        content = json.loads((bundle / "configs" / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
