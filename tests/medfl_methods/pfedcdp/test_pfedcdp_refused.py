"""What PFedCDP refuses, before anybody trains, and says of it."""

import dataclasses
import sys

import pytest
import torch
from pfedcdp_toys import ALONE, REGISTRY, SHORT, run
from refusals import refused
from torch import nn

from medfl.data.pooled import TensorData
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.errors import MedflError, SettingsError
from medfl.settings import Settings
from medfl.testing.cohort import SmallNet, make_data, make_sites, make_task


class Headless(SmallNet):
    def __init__(self):
        super().__init__()
        self.classifier = self.head
        del self.head

    def forward(self, images):
        return self.classifier(self.body(images))


class Curved(SmallNet):
    """Its head has no linear layer."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Unflatten(1, (24, 1)), nn.Conv1d(24, 3, 1), nn.Flatten())


class Bodyless(SmallNet):
    def __init__(self):
        super().__init__()
        self.features = self.body
        del self.body

    def forward(self, images):
        return self.head(self.features(images))


TASK = dataclasses.replace(
    make_task(), networks=make_task().networks | {"headless": Headless, "curved": Curved, "bodyless": Bodyless}
)


@pytest.mark.parametrize(
    "args",
    [
        {"server_classifier": "none"},
        {"server_classifier": "none", "lam": 0.0},
        {"server_classifier": "none", "refine": None},
    ],
)
def test_without_a_server_classifier_nobody_teaches(args):
    with refused(SettingsError, "invalid_setting", where="method 'pfedcdp'", settings=[""]):
        REGISTRY.make_method("pfedcdp", args)
    REGISTRY.make_method("pfedcdp", args | ALONE)


@pytest.mark.parametrize("refine", [{"losses": "scl", "probe_epochs": 0}, {"alpha": 0.0, "probe_epochs": 0}])
def test_a_student_whose_head_nothing_trains(refine):
    with refused(SettingsError, "invalid_setting", settings=["refine"]):
        REGISTRY.make_method("pfedcdp", {"refine": refine})


def test_a_mistyped_setting_of_the_student():
    with refused(SettingsError, "unknown_setting", settings=["refine.epoch"]):
        REGISTRY.make_method("pfedcdp", {"refine": {"epoch": 3}})


@pytest.mark.parametrize(
    ("networks", "refine", "code", "fields"),
    [
        ({"site-1": "headless"}, None, "unmet_need", {"need": "linear_head"}),
        ({"site-1": "curved"}, None, "unmet_need", {"need": "linear_head"}),
        ({"site-1": "bodyless"}, None, "unmet_need", {"need": "linear_head"}),
        ({}, {"student": "headless"}, "missing_head", {"network": "headless"}),
        ({}, {"student": "curved"}, "missing_feature_layer", {"network": "curved", "found": "Sequential"}),
        ({}, {"student": "bodyless"}, "missing_feature_layer", {"network": "bodyless"}),
        ({}, {"student": "plane"}, "unknown_choice", {"what": "network", "choice": "plane"}),
    ],
)
def test_networks_that_have_no_parts(tmp_path, networks, refine, code, fields):
    args = {"refine": refine and SHORT | refine}
    with refused(SettingsError, code, **fields) as caught:
        run(tmp_path, args, task=TASK, networks_by_site=networks)
    assert all(f"'{network}'" in str(caught.value) for network in networks.values())
    assert not (tmp_path / "state" / "site-1").exists()


@pytest.mark.parametrize("refine", [{"explain": 1}, {"teachers": "literal"}])
def test_shap_is_needed_where_pixels_are_explained(tmp_path, monkeypatch, refine):
    monkeypatch.setitem(sys.modules, "shap", None)
    with refused(SettingsError, "missing_package", package="shap", extra="explain"):
        run(tmp_path / "1", {"refine": SHORT | refine})
    assert not (tmp_path / "1" / "state" / "site-1").exists()
    assert run(tmp_path / "2", {"refine": SHORT}, rounds=1).outcome.status == "finished"


def test_without_public_data(tmp_path):
    made = SimulatedRun(
        method=MethodChoice(name="pfedcdp", make=lambda: REGISTRY.make_method("pfedcdp", {})),
        task=TASK,
        settings=Settings(rounds=1),
        data=RunData(sites=make_sites()),
        folder=tmp_path,
    )
    with refused(SettingsError, "missing_public_data", method="pfedcdp"):
        simulate(made)


def test_under_privacy_running_statistics_can_not_be_shared(tmp_path):
    privacy = {"epsilon": 5.0, "clip": 1.0}
    with refused(SettingsError, "noisy_statistics", setting="norm_sync"):
        run(tmp_path, privacy=privacy)
    assert run(tmp_path / "2", privacy=privacy, task=make_task("plain"), rounds=1).outcome.status == "finished"


def test_the_servers_classifier_needs_running_statistics(tmp_path):
    with refused(SettingsError, "incomplete_model", network="norm"):
        run(tmp_path, norm_sync="params")
    alone = {"server_classifier": "none", "lam": 0.0, "refine": None}
    assert run(tmp_path / "2", alone, norm_sync="params", rounds=1).outcome.status == "finished"


def test_shapley_weights_need_public_images_that_no_classifier_saw(tmp_path):
    public = make_data(3, "public", torch.arange(3))  # one image of each class
    with refused(SettingsError, "too_few_images", setting="refine.teachers", minimum=2):
        run(tmp_path, {"refine": {"epochs": 1}}, public=public)


@pytest.mark.parametrize(
    ("labels", "code", "fields"),
    [
        ([], "missing_public_data", {"method": "pfedcdp"}),
        ([0, 7], "wrong_label", {"where": "Public data", "row": 1, "found": 7}),
    ],
)
def test_public_data_that_can_not_be_used(tmp_path, labels, code, fields):
    images = make_data(len(labels), "public", torch.zeros(len(labels), dtype=torch.int64)).images
    public = TensorData(images, torch.tensor(labels, dtype=torch.int64))
    with refused(MedflError, code, **fields):
        run(tmp_path, public=public)


def test_privacy_of_single_images_is_refused(tmp_path):
    """The Fisher mask and the teacher look at the images, too, and not through the loss."""
    privacy = {"unit": "sample", "epsilon": 5.0, "clip": 1.0, "delta": 1e-5}
    with refused(SettingsError, "method_not_supported", feature="dp_sgd", method="pfedcdp"):
        run(tmp_path, task=make_task("plain"), privacy=privacy)


def test_a_run_says_at_its_start_what_the_papers_preset_misses(tmp_path, caplog):
    run(tmp_path, {"preset": "paper", "refine": None}, rounds=1)
    assert (
        "The preset 'paper' of 'pfedcdp' belongs to runs with other settings than this one: expected rounds = 20"
        in (caplog.text)
    )


def test_limits_are_told(tmp_path, caplog):
    args = {"personal_share": 1.0, "head_share": 0.0, "lam": 0.0}
    run(tmp_path, args, task=make_task("plain"), rounds=1)
    assert "on a network without batch-norm layers, 'pfedcdp' is 'local'" in caplog.text
