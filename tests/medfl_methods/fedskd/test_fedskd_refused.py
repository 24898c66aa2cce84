"""What FedSKD refuses, and says of it; its presets and its start."""

import dataclasses
import re

import pytest
import torch
from peer_toys import (
    REGISTRY,
)
from torch import nn

from medfl.contract import Server, State
from medfl.errors import DataError, SettingsError
from medfl.settings import Settings
from medfl.testing.cohort import Case, SmallNet, make_task

ALL = ("batch", "pixel", "region")


def make_method(**args):
    return REGISTRY.make_method("fedskd", args)


@pytest.mark.parametrize(("labels", "own"), [(torch.ones(5, 6).long(), "plain"), (torch.ones(2, 6, 6).long(), "norm")])
def test_regions_on_another_grid_are_refused(tmp_path, labels, own):
    """A label volume of the wrong edge, or of three axes for images of two."""
    task = dataclasses.replace(make_task(own), regions=labels)
    words = f"expected regions on the grid of the images, (6, 6), got labels of shape {tuple(labels.shape)}"
    with pytest.raises(SettingsError, match=re.escape(words)):
        Case(REGISTRY, "fedskd", {"skd": ["region"]}).run(tmp_path, task=task)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.zeros(6, 6).long(), "expected labels above 0 in the atlas, found none"),
        (torch.full((6, 6), -1), "expected labels of 0 \\(background\\) and above in the atlas, got -1"),
        (torch.full((6, 6), 0.5), "expected whole numbers as labels of the atlas"),
    ],
)
def test_an_atlas_without_regions_is_refused_before_the_first_round(tmp_path, labels, words):
    task = dataclasses.replace(make_task(), regions=labels)
    with pytest.raises(DataError, match=words):
        Case(REGISTRY, "fedskd", {"skd": ["region"]}).run(tmp_path, task=task)
    assert not (tmp_path / "state" / "site-1").exists()


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, images):
        return self.layer(images.flatten(1))


class Deep(SmallNet):
    def __init__(self):
        super().__init__()
        self.feature_layers = [self.body[0], *self.feature_layers]


class Headless(SmallNet):
    def __init__(self):
        super().__init__()
        self.classifier = self.head
        del self.head

    def forward(self, images):
        return self.classifier(self.body(images))


@pytest.mark.parametrize(
    ("args", "networks", "words"),
    [
        ({}, {"site-1": "deep"}, "one number of `feature_layers` at all sites, got 'deep' has 3, 'norm' has 2"),
        ({"freeze_ktm_header": False}, {"site-1": "bare"}, "network 'bare' (Bare) has no `feature_layers`"),
        ({}, {"site-1": "headless"}, "Network 'headless' (Headless) has no `head`"),
        ({"layers": [1, 3]}, {}, "`layers` names stages from 1 to 2 of ['norm'], got [3]"),
        ({"layers": [0]}, {}, "got [0]"),
        ({"skd": ["batch", "region"]}, {}, "asks for the form 'region', and the task has no regions"),
    ],
)
def test_what_can_not_be_compared_is_refused_before_the_first_round(tmp_path, args, networks, words):
    kinds = {"deep": Deep, "bare": Bare, "headless": Headless}
    task = dataclasses.replace(make_task(), networks=make_task().networks | kinds)
    with pytest.raises(SettingsError, match=re.escape(words)):
        Case(REGISTRY, "fedskd", args).run(tmp_path, task=task, networks_by_site=networks)
    assert not (tmp_path / "state" / "site-1").exists()


def test_without_the_loss_and_the_frozen_head_any_network_will_do(tmp_path, caplog):
    task = dataclasses.replace(make_task(), networks={"norm": SmallNet, "bare": Bare})
    args = {"gamma": 0.0, "freeze_ktm_header": False}
    result = Case(REGISTRY, "fedskd", args).run(tmp_path, task=task, networks_by_site={"site-1": "bare"}, rounds=1)
    assert result.outcome.status == "finished"
    assert "With gamma = 0, 'fedskd' is 'local' with p2p_scale times the epochs" in caplog.text


@pytest.mark.parametrize(
    "args",
    [{"skd": []}, {"skd": ["batch", "batch"]}, {"skd": ["voxel"]}, {"layers": []}, {"layers": [1, 1]}, {"gamma": -1}]
    + [{"gamma": float("inf")}, {"start_fraction": 1.5}, {"p2p_scale": 0}, {"skd_detach": "both"}],
)
def test_settings_that_mean_nothing_are_refused(args):
    with pytest.raises(SettingsError, match=next(iter(args))):
        make_method(**args)


def test_the_presets_are_the_papers():
    asd, skin = make_method(preset="paper_asd"), make_method(preset="paper_skin")
    assert (asd.gamma, asd.skd, asd.p2p_scale) == (1.0, ALL, "N")
    assert (skin.gamma, skin.skd, skin.optimizer_state) == (100.0, ("batch", "pixel"), "persistent")


@pytest.mark.parametrize(
    ("rounds", "fraction", "visits"),
    [(40, 0.5, 20), (40, 0.25, 10), (40, 0.0, 0), (3, 0.5, 2), (30, 0.1, 3), (5, 1.0, 5)],
)
def test_the_start_is_rounded_up(rounds, fraction, visits):
    method = make_method(start_fraction=fraction)
    server = Server("server", 0, State(), make_task(), Settings(rounds=rounds), sites=["a", "b"])
    method.setup(server)
    returns = []
    for server.round in range(1, rounds + 1):
        returns.append(method.guests_return(server))
    assert returns == [True] * visits + [False] * (rounds - visits)
