"""Runs on harmonised features: the maps of the sites, exported heads, resumption, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch.nn.functional import linear

from medfl.data.harmonisation.combat import compute_sums, fit_map, pool_sums
from medfl.data.pooled import TensorData, patients_of
from medfl.engine.memory_run import run_in_memory
from medfl.engine.site import Splits
from medfl.errors import DataError, SettingsError
from medfl.networks.heads import TwoLayerHead
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, SmallNet, bits, make_sites, make_task, scores
from medfl.utils.wire import tensors_equal

KINDS = {"fedavg": "global", "ditto": "personal"}
"""Kind of the model that a site exports, by method."""

COMBAT = {"rounds": 3, "train_part": "head", "harmonise_features": "combat"}


def case(method="fedavg", **settings):
    return Case(load_plugins(), method, {}, COMBAT | settings)


def all_rows(data):
    return data.batch(torch.arange(len(data)))


def scanner_sites(**sizes):
    """Return sites whose images differ in brightness and contrast."""
    sites = {}
    for number, (name, data) in enumerate(make_sites({"site-1": 21, "site-2": 13, "site-3": 12} | sizes).items()):
        parts = [all_rows(part) for part in (data.train, data.val, data.test)]
        sites[name] = Splits(*(TensorData((1 + number) * images + number, targets) for images, targets in parts))
    return sites


def body_of_task():
    """Return the frozen body of the task's network, with the seed of `Case`."""
    task = make_task().with_training_of("head")
    return task.load(task.initial(7)).eval().body


def maps_of(sites, body):
    """Return the map of each site, from the features of its training images."""
    with torch.no_grad():
        sums = {name: compute_sums(body(all_rows(data.train)[0])) for name, data in sites.items()}
    pooled = pool_sums(list(sums.values()))
    return {name: fit_map(own, pooled) for name, own in sums.items()}


def test_all_splits_have_features_harmonised_by_the_training_images(tmp_path):
    sites, body = scanner_sites(), body_of_task()
    sites["site-2"].test.patients = torch.arange(9) // 2
    result = case().run(tmp_path, sites=sites)
    for name, site_map in maps_of(sites, body).items():
        for part in ("train", "val", "test"):
            images, targets = all_rows(getattr(sites[name], part))
            features, targets_too = all_rows(getattr(result.features[name].data, part))
            with torch.no_grad():
                torch.testing.assert_close(features, site_map.harmonise(body(images)), rtol=0, atol=1e-4)
            assert torch.equal(targets, targets_too)
    assert torch.equal(patients_of(result.features["site-2"].data.test), torch.arange(9) // 2)


@pytest.mark.parametrize("method", sorted(KINDS))
def test_a_sites_model_predicts_for_images_as_its_head_for_harmonised_features(method, tmp_path):
    sites = scanner_sites()
    data = {name: (parts.train, parts.val, parts.test) for name, parts in sites.items()}
    options = COMBAT | {"seed": 7, "batch_size": 5}
    load = run_in_memory(make_task(), data, method, {}, options, tmp_path / "images", load_plugins())
    result, body, kind = case(method).run(tmp_path / "features", sites=sites), load(None).body, KINDS[method]
    for name, site_map in maps_of(sites, body).items():
        images, _ = all_rows(sites[name].test)
        trained = result.models[name][kind].tensors  # of harmonised features
        with torch.no_grad():
            expected = linear(site_map.harmonise(body(images)), trained["head.weight"], trained["head.bias"])
            torch.testing.assert_close(load(name)(images), expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(load(name).head.weight, trained["head.weight"], rtol=0.01)


def test_workers_an_interruption_and_deleted_features_change_no_bit(tmp_path):
    sites = scanner_sites()
    whole = bits(case("scaffold").run(tmp_path / "whole", sites=sites))
    workers = bits(case("scaffold").run(tmp_path / "workers", sites=sites, workers=2))
    case("scaffold").run(tmp_path / "parts", sites=sites, rounds=1)
    for path in (tmp_path / "parts").glob("state/site-2/.medfl_cache/*"):
        path.unlink()
    parts = bits(case("scaffold").run(tmp_path / "parts", sites=sites))
    for other in (workers, parts):
        assert all(tensors_equal(tensors, other[key]) for key, tensors in whole.items())


def test_a_run_with_harmonised_features_is_another_run(tmp_path):
    sites = scanner_sites()
    plain = case(harmonise_features="none").run(tmp_path / "plain", sites=sites)
    combat = case().run(tmp_path / "combat", sites=sites)
    assert not plain.feature_maps
    assert set(combat.feature_maps) == set(sites)
    assert scores(tmp_path / "plain") != scores(tmp_path / "combat")


@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": {"epsilon": 8, "delta": 1e-5, "clip": 1.0}},
        {"secure_aggregation": {}},
        {"feature_views": 2},
        {"cross_site_evaluation": True},
        {"shared_test": True},
        {"disclose": ()},
    ],
)
def test_settings_that_exclude_it_are_refused(settings, tmp_path):
    with refused(SettingsError, "incompatible_settings", settings=["harmonise_features", *settings]):
        case(**settings).run(tmp_path / "run", sites=scanner_sites())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["centralized", "moon", "dbe", "fedsm"])
def test_methods_that_pool_data_or_predict_with_other_networks_are_refused(method, tmp_path):
    with refused(SettingsError, "method_not_supported", feature="harmonise_features", method=method):
        case(method).run(tmp_path, sites=scanner_sites())


@pytest.mark.parametrize("method", ["fedprox", "fedadam", "local", "scaffold", "apfl"])
def test_other_methods_run(method, tmp_path):
    result = case(method, rounds=1).run(tmp_path, sites=scanner_sites())
    assert set(result.feature_maps) == {"site-1", "site-2", "site-3"}


@pytest.mark.parametrize(("settings", "is_cached"), [({"train_part": "all"}, True), ({}, False)])
def test_a_run_whose_features_are_not_computed_once_is_refused(settings, is_cached, tmp_path):
    with refused(SettingsError, "unusable_setting", setting="harmonise_features"):
        case(**settings).run(tmp_path, sites=scanner_sites(), feature_cache=is_cached)


def test_a_head_of_two_layers_is_refused(tmp_path):
    def build():
        network = SmallNet()
        network.head = TwoLayerHead(24, 5, 3)
        return network

    with refused(SettingsError, "unsupported_head", found="TwoLayerHead"):
        case().run(tmp_path, sites=scanner_sites(), task=replace(make_task(), networks={"norm": build}))


def test_sites_with_different_networks_are_refused(tmp_path):
    with refused(SettingsError, "unlike_networks", feature="harmonise_features", networks=2):
        case("local", networks_by_site={"site-2": "wide"}).run(tmp_path, sites=scanner_sites())


def test_one_site_and_small_sites_are_refused(tmp_path):
    single = {"site-1": scanner_sites()["site-1"]}
    with refused(SettingsError, "too_few_sites", found=1):
        case().run(tmp_path, sites=single)
    with refused(DataError, "too_few_images", sites=["site-2"], expected=10):
        case().run(tmp_path, sites=scanner_sites(**{"site-2": 9}))
    case(rounds=1).run(tmp_path, sites=scanner_sites(**{"site-2": 10}))
