"""What FedSKD refuses, and says of it; its presets and its start."""

import dataclasses

import pytest
import torch
from peer_toys import (
    REGISTRY,
)
from refusals import refused
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
    with refused(SettingsError, "wrong_shape", expected=[6, 6], found=list(labels.shape)):
        Case(REGISTRY, "fedskd", {"skd": ["region"]}).run(tmp_path, task=task)


@pytest.mark.parametrize(
    ("labels", "code", "fields"),
    [
        (torch.zeros(6, 6).long(), "empty_atlas", {}),
        (torch.full((6, 6), -1), "wrong_label", {"minimum": 0, "found": -1}),
        (torch.full((6, 6), 0.5), "wrong_label", {"expected": "whole numbers"}),
    ],
)
def test_an_atlas_without_regions_is_refused_before_the_first_round(tmp_path, labels, code, fields):
    task = dataclasses.replace(make_task(), regions=labels)
    with refused(DataError, code, **fields):
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
    ("args", "networks", "code", "fields"),
    [
        ({}, {"site-1": "deep"}, "unlike_stage_counts", {"counts": {"deep": 3, "norm": 2}}),
        ({"freeze_ktm_header": False}, {"site-1": "bare"}, "unmet_need", {"method": "fedskd", "need": "features"}),
        ({}, {"site-1": "headless"}, "unmet_need", {"method": "fedskd", "need": "head"}),
        ({"layers": [1, 3]}, {}, "setting_out_of_range", {"setting": "layers", "maximum": 2, "found": [3]}),
        ({"layers": [0]}, {}, "setting_out_of_range", {"setting": "layers", "minimum": 1, "found": [0]}),
        ({"skd": ["batch", "region"]}, {}, "missing_regions", {"setting": "skd"}),
    ],
)
def test_what_can_not_be_compared_is_refused_before_the_first_round(tmp_path, args, networks, code, fields):
    kinds = {"deep": Deep, "bare": Bare, "headless": Headless}
    task = dataclasses.replace(make_task(), networks=make_task().networks | kinds)
    with refused(SettingsError, code, **fields) as caught:
        Case(REGISTRY, "fedskd", args).run(tmp_path, task=task, networks_by_site=networks)
    assert all(f"'{network}'" in str(caught.value) for network in networks.values())
    assert not (tmp_path / "state" / "site-1").exists()


def test_without_the_loss_and_the_frozen_head_any_network_will_do(tmp_path, caplog):
    task = dataclasses.replace(make_task(), networks={"norm": SmallNet, "bare": Bare})
    args = {"gamma": 0.0, "freeze_ktm_header": False}
    result = Case(REGISTRY, "fedskd", args).run(tmp_path, task=task, networks_by_site={"site-1": "bare"}, rounds=1)
    assert result.outcome.status == "finished"
    assert "With gamma = 0, 'fedskd' is 'local' with p2p_scale times the epochs" in caplog.text


@pytest.mark.parametrize(
    ("code", "name", "args"),
    [
        ("invalid_setting", "skd", {"skd": []}),
        ("invalid_setting", "skd", {"skd": ["batch", "batch"]}),
        ("unknown_choice", "skd.0", {"skd": ["voxel"]}),
        ("invalid_setting", "layers", {"layers": []}),
        ("invalid_setting", "layers", {"layers": [1, 1]}),
        ("setting_out_of_range", "gamma", {"gamma": -1}),
        ("setting_out_of_range", "gamma", {"gamma": float("inf")}),
        ("setting_out_of_range", "start_fraction", {"start_fraction": 1.5}),
        ("invalid_setting", "p2p_scale", {"p2p_scale": 0}),
        ("unknown_choice", "skd_detach", {"skd_detach": "both"}),
    ],
)
def test_settings_that_mean_nothing_are_refused(code, name, args):
    with refused(SettingsError, code, settings=[name]):
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
