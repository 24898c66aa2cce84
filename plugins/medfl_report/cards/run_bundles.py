"""Exported bundles of a run folder, and the predictions of their models for test images.

An exported bundle is a MONAI bundle with a final model that the run wrote, for a site or for all sites (the global
bundle). In a distributed run the sites run on their own machines, and each has its own run folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medfl.engine.runs.records import PREDICTIONS, RunRecord, read_predictions
from medfl.errors import StoreError
from medfl.objectives import Objective
from medfl.types import GLOBAL, Meta
from medfl_report.predictions import PredictionSet, prediction_set_of

SITE_BUNDLE_FOLDER = "bundle"
"""Folder of the exported bundle in the run folder of a site of a distributed run."""


@dataclass(frozen=True)
class RunBundle:
    """An exported bundle of a run.

    Attributes:
        folder: Folder of the bundle.
        site: Name of the site that exported the bundle; None for the global bundle.
        predictions: Maps each site to the file with the predictions of this bundle's model for the site's test images.
            Sites without such a file are left out.
    """

    folder: Path
    site: str | None
    predictions: Mapping[str, Path] = field(default_factory=dict)


def find_bundles(run: RunRecord) -> list[RunBundle]:
    """Return the bundles of a run: the sites' bundles, then the global one.

    In the folder of a site of a distributed run the only bundle is the site's own.

    Args:
        run: The run.

    Raises:
        StoreError: If the run is not over, has no bundle, or one of the folders is a link.
    """
    sites = [str(site) for site in run.sites]
    site_bundle = run.folder / SITE_BUNDLE_FOLDER
    if run.summary is None and not site_bundle.is_dir():
        raise StoreError(
            "unfinished_run",
            f"the run in '{run.folder}' is not over, so it has no models to describe. Resume it.",
            path=run.folder,
        )
    folders: dict[str, Path] = {site: run.folder / "sites" / site for site in sites}
    if site_bundle.is_dir():
        folders = {str(read_bundle_config(site_bundle, "train.json").get("site", "this site")): site_bundle}
    for folder in (run.folder / "sites", run.folder / GLOBAL, *folders.values()):
        if folder.is_symlink():
            raise StoreError(
                "linked_folder",
                f"'{folder}' is a link, but cards are only written into folders of the run itself. Replace the link by "
                "the folder.",
                path=folder,
            )
    bundles = [_make_bundle(folder, site, [site]) for site, folder in folders.items() if folder.is_dir()]
    if (run.folder / GLOBAL).is_dir():
        bundles.append(_make_bundle(run.folder / GLOBAL, None, _sites_that_predict_with_global_model(run, sites)))
    if not bundles:
        raise StoreError(
            "missing_bundles",
            f"the run in '{run.folder}' has no exported bundle, so there is no model to describe.",
            path=run.folder,
        )
    return bundles


def _sites_that_predict_with_global_model(run: RunRecord, sites: Iterable[str]) -> list[str]:
    """Return the sites with scores if all of them exported the global model, else no sites."""
    exported_kinds = {site: kind for site in sites if (kind := run.exported_kind(site)) is not None}
    return list(exported_kinds) if set(exported_kinds.values()) == {GLOBAL} else []


def _make_bundle(folder: Path, site: str | None, sites: Iterable[str]) -> RunBundle:
    return RunBundle(folder, site, find_prediction_files(folder, site, sites))


def find_prediction_files(folder: Path, site: str | None, sites: Iterable[str]) -> dict[str, Path]:
    """Return the existing prediction files of some sites, by site.

    A site's predictions are in its own bundle. Predictions of the global model are in the sites' bundles, beside the
    global bundle.

    Args:
        folder: Folder of the bundle.
        site: Name of the site that exported the bundle; None for the global one.
        sites: Names of the sites whose predictions are wanted.
    """
    homes = {name: folder if site is not None else folder.parent / "sites" / name for name in sites}
    return {name: path for name, home in homes.items() if (path := home / PREDICTIONS).is_file()}


def read_test_predictions(files: Mapping[str, Path], objective: Objective) -> dict[str, PredictionSet]:
    """Read the predictions for the test images of each site.

    Args:
        files: Maps each site to its file of predictions.
        objective: Objective of the task.

    Raises:
        StoreError: If a file can't be read.
    """
    test_sets = {}
    for site, path in files.items():
        try:
            test_sets[site] = prediction_set_of(read_predictions(path), objective)
        except (ValueError, KeyError, OSError) as error:
            reason = type(error).__name__  # the message may contain a line of the file
            raise StoreError(
                "unreadable_file",
                f"'{path}' can't be read ({reason}). Run the command of the run again to write it.",
                path=path,
            ) from None
    return test_sets


def read_bundle_config(bundle: Path, name: str) -> Meta:
    """Return a JSON configuration of a bundle; empty if the file is missing, damaged, or not a JSON object.

    Args:
        bundle: Folder of the bundle.
        name: Name of the file in ``configs``, such as ``train.json``.
    """
    try:
        content = json.loads((bundle / "configs" / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
