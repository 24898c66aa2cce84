"""Find the finished models that a user names: an exported bundle, or the models of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from medfl.bundle.exported import CONFIG
from medfl.engine.runs.records import RunRecord, read_run
from medfl.engine.runs.site_bundles import WEIGHTS
from medfl.engine.runs.start_source import split_run_and_site
from medfl.errors import SettingsError, StoreError, did_you_mean
from medfl.objectives import Objective
from medfl.records.run_file import RunFile
from medfl.settings import Settings
from medfl.training.predict import Inferer
from medfl.types import GLOBAL
from medfl_report.cards.run_bundles import find_bundles, read_bundle_config

logger = logging.getLogger(__name__)

CLASS_METRICS = ("balanced_accuracy", "accuracy", "auc", "recall", "specificity")
"""Metrics that are computed in addition to the bundle's metrics, if the objective has them."""


@dataclass(frozen=True)
class ModelBundle:
    """An exported bundle with a finished model.

    Attributes:
        folder: Folder of the bundle.
        name: ``global``, or the name of the site whose model it is.
    """

    folder: Path
    name: str


@dataclass(frozen=True)
class FinishedModels:
    """Finished models of one training, which are evaluated together.

    Attributes:
        bundles: Bundles of the models: one, or one for each site of a run without a global model.
        run: The run that trained them; None if it is unknown.
    """

    bundles: tuple[ModelBundle, ...]
    run: RunRecord | None

    @property
    def name(self) -> str:
        """Name of the model, or ``sites`` for the models of all sites."""
        return self.bundles[0].name if len(self.bundles) == 1 else "sites"

    def only_bundle(self, target: str, purpose: str) -> ModelBundle:
        """Return the bundle of the only model.

        Args:
            target: Model as the user named it, for the message.
            purpose: What needs one model, for the message.

        Raises:
            SettingsError: If there are several models.
        """
        if len(self.bundles) > 1:
            names = [bundle.name for bundle in self.bundles]
            raise SettingsError(
                "several_models",
                f"Expected one model for {purpose}, but the run in '{target}' has no global model. Name a site's "
                f"model, as {target}#{names[0]}.",
                known=names,
            )
        return self.bundles[0]

    @property
    def settings(self) -> Settings:
        """Settings of the run, which include the precision of predictions; defaults if the run is unknown."""
        return Settings(rounds=1) if self.run is None else self.run.settings

    @property
    def home(self) -> Path:
        """Folder in which evaluations are written by default: the run folder, or the folder that holds the bundle."""
        return self.bundles[0].folder.absolute().parent if self.run is None else self.run.folder


@dataclass(frozen=True)
class BundleTask:
    """Part of a bundle's configuration that an evaluation needs.

    Attributes:
        objective: Objective of the task.
        metrics: Metrics of the bundle, the key metric first, then the further ones of the objective.
        key_metrics: Metrics of the bundle alone, which determine the columns of a file of predictions.
        mean: Mean of each channel that is subtracted from images in [0, 1].
        std: Standard deviation of each channel by which images are divided.
        shape: Shape of a case, (C, *spatial) or (F,); None if the configuration does not contain it.
        names: Names of the classes, or of the network outputs; empty if the bundle does not name them.
        inferer: Function that applies the network to a case; None applies it to whole cases in batches.
    """

    objective: Objective
    metrics: tuple[str, ...]
    key_metrics: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: tuple[int, ...] | None
    names: tuple[str, ...]
    inferer: Inferer | None


def find_models(target: str) -> FinishedModels:
    """Return the models that a text names. Log a warning if their run harmonised features.

    Args:
        target: Folder of a run, for its global model or else the models of all its sites; ``RUN#SITE`` for the model of
            a site; or the folder of an exported bundle.

    Raises:
        StoreError: If the folder holds neither a finished run nor an exported bundle.
        SettingsError: If the run has no such site.
    """
    path, site = split_run_and_site(target)
    if (path / RunFile.NAME).is_file():
        return _warn_of_harmonisation(_models_of_run(read_run(path), site))
    if site or not (path / WEIGHTS).is_file() or not (path / CONFIG).is_file():
        raise StoreError(
            "not_a_model",
            f"Expected the folder of a finished run (RUN, or RUN#SITE for a site's model) or an exported bundle with "
            f"'{CONFIG}' and '{WEIGHTS}', such as RUN/sites/NAME, got '{target}'.",
            path=path,
        )
    return _warn_of_harmonisation(_models_of_bundle(path))


def _warn_of_harmonisation(models: FinishedModels) -> FinishedModels:
    """Return the models. Log a warning if their run harmonised features, because no map for another site is known."""
    if models.settings.harmonise_features != "none":
        logger.warning(
            "The run harmonised features. %s",
            "The global model takes the features of all images as they are, although it was trained on harmonised ones."
            if models.name == GLOBAL
            else "The model of a site is for images of this site: it maps the features of all images as those.",
        )
    return models


def _models_of_run(run: RunRecord, site: str) -> FinishedModels:
    """Return the global model of a run, the models of all its sites if it has none, or the model of one site."""
    bundles = [ModelBundle(bundle.folder, bundle.site or GLOBAL) for bundle in find_bundles(run)]
    if site:
        chosen = [bundle for bundle in bundles if bundle.name == site]
        if not chosen:
            known = [bundle.name for bundle in bundles]
            raise SettingsError(
                "unknown_site",
                f"The run in '{run.folder}' has no model of a site '{site}'. {did_you_mean(site, known)}",
                path=run.folder,
                site=site,
                known=known,
            )
        return FinishedModels((chosen[0],), run)
    shared = [bundle for bundle in bundles if bundle.name == GLOBAL]
    return FinishedModels(tuple(shared or bundles), run)


def _models_of_bundle(bundle: Path) -> FinishedModels:
    """Return the model of an exported bundle, with the run in whose folder it is."""
    place = bundle.resolve()
    parents = [folder for folder in place.parents[:2] if (folder / RunFile.NAME).is_file()]
    run = read_run(parents[0]) if parents else None
    in_run = [] if run is None else [other for other in find_bundles(run) if other.folder.resolve() == place]
    name = (in_run[0].site or GLOBAL) if in_run else place.name
    return FinishedModels((ModelBundle(bundle, name),), run if in_run else None)


def read_task(bundle: Path) -> BundleTask:
    """Read the configuration of an exported bundle.

    Args:
        bundle: Folder of the bundle.

    Raises:
        SettingsError: If the configuration is not one of a medfl bundle, as in an exported stock bundle.
    """
    config = read_bundle_config(bundle, "train.json")
    missing = [name for name in ("objective", "metrics", "mean", "std") if name not in config]
    if missing:
        raise SettingsError(
            "unsupported_bundle",
            f"Expected a bundle of medfl, but '{CONFIG}' of '{bundle}' has no {', '.join(missing)}. Score a stock "
            "bundle with its own evaluate configuration.",
            path=bundle,
            missing=missing,
        )
    parser = ConfigParser(config)
    parser.update(pairs={"bundle_root": str(bundle)})
    objective: Objective = parser.get_parsed_content("objective")
    key_metrics = tuple(map(str, parser.get_parsed_content("metrics")))
    further = (*objective.headline, *CLASS_METRICS)
    metrics = tuple(dict.fromkeys([*key_metrics, *(name for name in further if name in objective.scores)]))
    has_inferer = isinstance(config.get("task"), dict) and "inferer" in config["task"]
    return BundleTask(
        objective=objective,
        metrics=metrics,
        key_metrics=key_metrics,
        mean=tuple(parser.get_parsed_content("mean")),
        std=tuple(parser.get_parsed_content("std")),
        shape=_case_shape(config, parser),
        names=_output_names(bundle, objective),
        inferer=parser.get_parsed_content("task#inferer") if has_inferer else None,
    )


def _case_shape(config: dict[str, Any], parser: ConfigParser) -> tuple[int, ...] | None:
    """Return the shape of a case in a configuration; None if it has none."""
    if "in_features" in config:
        return (int(parser.get_parsed_content("in_features")),)
    if "in_channels" not in config or "size" not in config:
        return None
    size = parser.get_parsed_content("size")
    edges = size if isinstance(size, Iterable) else [size] * int(parser.get_parsed_content("spatial_dims"))
    features = int(parser.get_parsed_content("image_features")) if "image_features" in config else 0
    return (int(parser.get_parsed_content("in_channels")) + features, *map(int, edges))


def _output_names(bundle: Path, objective: Objective) -> tuple[str, ...]:
    """Return the names of the outputs in a bundle's ``inference.json``; empty if there are none."""
    names = read_bundle_config(bundle, "inference.json").get("output_names", [])
    is_complete = isinstance(names, list) and len(names) == len(objective.titles)
    return tuple(map(str, names)) if is_complete else ()
