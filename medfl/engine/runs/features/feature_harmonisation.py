"""Harmonisation of the features of a frozen body over the sites of a run: the setting ``harmonise_features``.

Each site sends sums over the features of its training images once, before the first round, and harmonises its features
by the map that it computes (`medfl.data.harmonisation.combat`). The head then trains on harmonised features. A site's
exported model takes images, so its head contains the site's map. The global model contains no map.

A site on another machine calls the same functions (`medfl_flare.sites.site_harmonisation`). The maps are computed
again, with the same bits, whenever a run continues. They are part of no message and no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from medfl.contract import Method, Model
from medfl.data.harmonisation.combat import FeatureMap, FeatureSums, PooledMoments, compute_sums, fit_map, pool_sums
from medfl.data.pooled import patients_of
from medfl.data.readers.image_reading import parse_image_reading
from medfl.engine.evaluation import add_frozen_tensors
from medfl.engine.site import SiteRunner, Splits
from medfl.errors import DataError, SettingsError
from medfl.networks.image_table import ImageTableNetwork
from medfl.networks.parts import head_prefix, single_linear
from medfl.privacy.policy import policy_of
from medfl.settings import Settings
from medfl.task import Task
from medfl.toolkit.averaging import Averaging
from medfl.types import Dataset

SETTING = "harmonise_features"
"""Name of the setting."""

MIN_IMAGES = 10
"""Minimum number of training images of a site: the number behind a disclosed count in federated statistics."""

MIN_SITES = 2
"""Minimum number of sites whose sums are pooled."""

DESCRIPTION = (
    "features of the frozen encoder: ComBat without covariates, from sums over the training images of each site. The "
    "exported model of a site contains the map of this site and is for its images only. The global model contains no "
    "map and takes the features of any image as they are"
)
"""Harmonisation in words, for ``run.json``, report, model card and exported bundles."""


def check_feature_harmonisation(
    name: str, method: Method, networks: Sequence[nn.Module], settings: Settings, images: Mapping[str, int], sites: int
) -> None:
    """Check that a run can harmonise features, as far as that is known before features are computed.

    Args:
        name: Name of the method.
        method: The method.
        networks: One network of each kind that the run trains.
        settings: Settings of the run.
        images: Maps each site to its number of training images. Sites on other machines are left out.
        sites: Number of all sites of the run.

    Raises:
        SettingsError: If settings, method or networks exclude it, or there is only one site.
        DataError: If a site has too few training images.
    """
    if settings.harmonise_features == "none":
        return
    if excluded := _excluded_settings(settings):
        setting, reason = next(iter(excluded.items()))
        raise SettingsError(
            "incompatible_settings",
            f"'{SETTING}' does not work with this value of '{setting}': {reason}. Set one of them to its default.",
            settings=[SETTING, setting],
        )
    own = [function for function in ("task_of", "network_config", "predictor") if _overrides(method, function)]
    if own or "pooled_data" in method.active_needs:
        raise SettingsError(
            "method_not_supported",
            f"'{SETTING}' writes each site's map into the linear head of the run's network, but method '{name}' pools "
            "the sites' data or predicts with other networks. Choose a method such as fedavg, fedprox, ditto or "
            f"local, or leave '{SETTING}' out.",
            feature=SETTING,
            method=name,
        )
    if len(networks) > 1:
        raise SettingsError(
            "unlike_networks",
            f"'{SETTING}' compares the features of all sites: expected the same network at all sites, got "
            f"{len(networks)} networks. Leave 'networks_by_site' or '{SETTING}' out.",
            feature=SETTING,
            networks=len(networks),
        )
    for network in networks:
        if isinstance(network, ImageTableNetwork):
            raise SettingsError(
                "table_features_not_supported",
                f"'{SETTING}' would also change the features of the table beside the images. Leave it out, or prepare "
                "the images without --number and --category.",
                feature=SETTING,
            )
        single_linear(network, type(network).__name__, f"'{SETTING}' writes each site's map into the head")
    if sites < MIN_SITES:
        raise SettingsError(
            "too_few_sites",
            f"'{SETTING}' removes differences between sites: expected at least {MIN_SITES} sites, got {sites}. Leave "
            "it out.",
            expected=MIN_SITES,
            found=sites,
        )
    if small := sorted(site for site, count in images.items() if count < MIN_IMAGES):
        raise DataError(
            "too_few_images",
            f"'{SETTING}' estimates the mean and variance of each feature at each site: expected at least "
            f"{MIN_IMAGES} training images, which these sites don't have: {', '.join(small)}. Leave the sites out "
            f"with 'sites', or leave '{SETTING}' out.",
            sites=small,
            expected=MIN_IMAGES,
        )


def _excluded_settings(settings: Settings) -> dict[str, str]:
    """Return the settings of a run that exclude the harmonisation of features, each with the reason."""
    problems = {
        "privacy": (policy_of(settings).is_private, "the sums of the sites leave them without noise"),
        "secure_aggregation": (settings.secure_aggregation is not None, "the server sees the sums of each site"),
        "feature_views": (settings.feature_views > 0, "its sums are of images without augmentation"),
        "cross_site_evaluation": (settings.cross_site_evaluation, "a site's model is for images of this site only"),
        "shared_test": (settings.shared_test, "a site's model is for images of this site only"),
        "disclose": ("size" not in settings.disclose, "each site sends its number of training images (size)"),
    }
    return {name: reason for name, (is_excluded, reason) in problems.items() if is_excluded}


def _overrides(method: Method, function: str) -> bool:
    """Return whether a method has a function of its own in place of the one of `Averaging`."""
    return getattr(type(method), function) is not getattr(Averaging, function)


def describe_harmonisation(image_reading: Mapping[str, Any] | None, settings: Settings) -> str:
    """Return the harmonisation of a run's images and features in words; empty without one.

    Args:
        image_reading: Rule by which images are read, as in a data list (`medfl.data.readers.image_reading`), or None.
        settings: Settings of the run.
    """
    template = parse_image_reading(image_reading).describe_template()
    features = "" if settings.harmonise_features == "none" else DESCRIPTION
    return "; ".join(filter(None, (f"images: {template}" if template else "", features)))


def count_features(task: Task) -> int:
    """Return the number of features that the linear head of the task's default network takes.

    Raises:
        SettingsError: If the head is not one linear layer with a bias.
    """
    with torch.random.fork_rng(devices=[]):
        network = task.build()
    return single_linear(network, task.network, f"'{SETTING}' writes each site's map into the head")[0].in_features


def sum_features(data: Splits) -> FeatureSums:
    """Return the sums over the features of a site's training images.

    Args:
        data: Data of the site with features in place of images (`cache_features`).
    """
    return compute_sums(data.train.batch(torch.arange(len(data.train)))[0])


def harmonise_site(runner: SiteRunner, data: Splits, pooled: PooledMoments) -> FeatureMap:
    """Let a site train and score on harmonised features, in place, and return the map of the site.

    Args:
        runner: Runner of the site. Its data are replaced.
        data: Data of the site with features as the body computes them.
        pooled: Moments of the features of all sites.

    Raises:
        DataError: If the map of this site can't be computed.
    """
    feature_map = fit_map(sum_features(data), pooled)
    train, val, test = (HarmonisedDataset(part, feature_map) for part in (data.train, data.val, data.test))
    runner.data = replace(data, train=train, val=val, test=test)
    return feature_map


def harmonise_sites(runners: Mapping[str, SiteRunner]) -> dict[str, FeatureMap]:
    """Harmonise the features of all sites of a run on this machine, in place, and return the map of each site.

    Args:
        runners: Maps each site to its runner, whose data contain features (`cache_features`).
    """
    pooled = pool_sums([sum_features(runner.data) for runner in runners.values()])
    return {name: harmonise_site(runner, runner.data, pooled) for name, runner in runners.items()}


class HarmonisedDataset:
    """Data set with the harmonised features of another data set of the same site.

    Args:
        data: The data set with features.
        feature_map: Map of the site.

    Attributes:
        class_labels: Class of each case, shape (n,), int64; None if cases have no class.
        patients: Patient number of each case, shape (n,), int64; None if patients are unknown.
    """

    def __init__(self, data: Dataset, feature_map: FeatureMap) -> None:
        self._data, self._map = data, feature_map
        self.class_labels, self.patients = data.class_labels, patients_of(data)

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the harmonised features (B, d) and targets (B, ...) of the given rows."""
        features, targets = self._data.batch(rows)
        return self._map.harmonise(features), targets

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the targets (B, ...) of the given rows."""
        return self._data.targets(rows)


def fold_into_head(model: Model, task: Task, feature_map: FeatureMap) -> Model:
    """Return a model that predicts for images as a given model does for harmonised features.

    Args:
        model: Model of a site, with a single linear layer as its head.
        task: Task of the run.
        feature_map: Map of the site.
    """
    prefix = head_prefix(task.build(model.network), model.network)
    weight, bias = feature_map.fold(model.tensors[f"{prefix}weight"], model.tensors[f"{prefix}bias"])
    return replace(model, tensors={**model.tensors, f"{prefix}weight": weight, f"{prefix}bias": bias})


def models_for_images(
    models: Mapping[str, Model], method: Method, task: Task, feature_map: FeatureMap | None
) -> dict[str, Model]:
    """Return the models of a site by kind, with their frozen tensors and the map of the site's features.

    Args:
        models: Maps each kind of model to the model as the run trains it.
        method: Method of the run.
        task: Task of the run, whose network takes images.
        feature_map: Map of the site; None if the run harmonises no features.
    """
    whole = add_frozen_tensors(method, task, models)
    if feature_map is None:
        return whole
    return {kind: fold_into_head(model, task, feature_map) for kind, model in whole.items()}
