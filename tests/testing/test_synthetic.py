"""Tests of synthetic cells: a network can learn from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused

from medfl.data.sites import load_global, load_sites
from medfl.errors import SettingsError
from medfl.networks.cnn import CNN4
from medfl.objectives import Multiclass
from medfl.testing.synthetic import make_cohort


def test_a_cohort_is_whole_and_the_same_for_a_seed(tmp_path):
    assert make_cohort(tmp_path / "a") == ["site-01", "site-02", "site-03", "site-04"]
    make_cohort(tmp_path / "b")
    make_cohort(tmp_path / "c", seed=1)
    first, again, other = (load_sites(tmp_path / name, Multiclass(4)) for name in "abc")
    assert {name: site.digest for name, site in first.items()} == {name: site.digest for name, site in again.items()}
    assert first["site-01"].digest != other["site-01"].digest
    for site in first.values():
        assert (len(site.train), len(site.val), len(site.test)) == (84, 12, 24)
    pooled = load_global(tmp_path / "a", Multiclass(4))
    assert pooled is not None
    assert torch.bincount(pooled.test.class_labels).tolist() == [25, 25, 25, 25]


def test_sites_differ_in_stain_and_class_balance(tmp_path):
    make_cohort(tmp_path / "a")
    sites = load_sites(tmp_path / "a", Multiclass(4)).values()
    colours = np.array([site.train.batch(torch.arange(84))[0].mean((0, 2, 3)).numpy() for site in sites])
    assert np.ptp(colours, axis=0).max() > 0.1, f"stains are too alike: {colours}"
    counts = [torch.bincount(site.train.class_labels, minlength=4).tolist() for site in sites]
    assert len({tuple(count) for count in counts}) == 4, f"class balance is alike: {counts}"


@pytest.mark.slow
def test_a_small_network_learns_the_cells_in_a_few_epochs(tmp_path):
    make_cohort(tmp_path / "a", classes=4)
    data = [site.train for site in load_sites(tmp_path / "a", Multiclass(4)).values()]
    images = torch.cat([part.batch(torch.arange(len(part)))[0] for part in data])
    labels = torch.cat([part.class_labels for part in data])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CNN4(3, 4).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(8):
            for rows in torch.randperm(len(labels)).split(16):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimizer.step()
    pooled = load_global(tmp_path / "a", Multiclass(4))
    assert pooled is not None
    test_images, test_labels = pooled.test.batch(torch.arange(len(pooled.test)))
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    assert accuracy > 0.8, f"accuracy {accuracy:.2f} on the server's test set"


@pytest.mark.parametrize("change", [{"classes": 9}, {"classes": 1}, {"sites": 0}, {"size": 4}, {"images_per_site": 0}])
def test_impossible_cohorts_are_refused(tmp_path, change):
    name = next(iter(change))
    with refused(SettingsError, "setting_out_of_range", setting=name, found=change[name]):
        make_cohort(tmp_path / "a", **change)
