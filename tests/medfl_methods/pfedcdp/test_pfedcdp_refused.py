"""What PFedCDP refuses, before anybody trains, and says of it."""

import dataclasses
import re
import sys

import pytest
import torch
from pfedcdp_toys import ALONE, REGISTRY, SHORT, run
from torch import nn

from medfl.data.pooled import TensorData
from medfl.errors import MedflError, SettingsError
from medfl.runs.simulation import Run, simulate
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
    with pytest.raises(SettingsError, match="nobody teaches: expected lam = 0 and refine = null"):
        REGISTRY.make_method("pfedcdp", args)
    REGISTRY.make_method("pfedcdp", args | ALONE)


@pytest.mark.parametrize("refine", [{"losses": "scl", "probe_epochs": 0}, {"alpha": 0.0, "probe_epochs": 0}])
def test_a_student_whose_head_nothing_trains(refine):
    with pytest.raises(SettingsError, match="the contrastive loss alone trains no head: expected probe_epochs >= 1"):
        REGISTRY.make_method("pfedcdp", {"refine": refine})


def test_a_mistyped_setting_of_the_student():
    with pytest.raises(SettingsError, match=r"unknown option 'refine.epoch'. Did you mean 'epochs'"):
        REGISTRY.make_method("pfedcdp", {"refine": {"epoch": 3}})


@pytest.mark.parametrize(
    ("networks", "refine", "words"),
    [
        ({"site-1": "headless"}, None, "Network 'headless' (Headless) has no `head`"),
        ({"site-1": "curved"}, None, "Network 'curved' (Curved): expected a module `body` that gives features and a"),
        ({"site-1": "bodyless"}, None, "Network 'bodyless' (Bodyless): expected a module `body`"),
        ({}, {"student": "headless"}, "Network 'headless' (Headless) has no `head`"),
        ({}, {"student": "curved"}, "`head` with a linear layer, got a head of type Sequential"),
        ({}, {"student": "bodyless"}, "Network 'bodyless' (Bodyless): expected a module `body`"),
        ({}, {"student": "plane"}, "unknown network 'plane'. Did you mean 'plain'"),
    ],
)
def test_networks_that_have_no_parts(tmp_path, networks, refine, words):
    args = {"refine": refine and SHORT | refine}
    with pytest.raises(SettingsError, match=re.escape(words)):
        run(tmp_path, args, task=TASK, networks_by_site=networks)
    assert not (tmp_path / "state" / "site-1").exists()


@pytest.mark.parametrize("refine", [{"explain": 1}, {"teachers": "literal"}])
def test_shap_is_needed_where_pixels_are_explained(tmp_path, monkeypatch, refine):
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(SettingsError, match=r"needs shap: `pip install 'medfl-monai\[explain\]'`"):
        run(tmp_path / "1", {"refine": SHORT | refine})
    assert not (tmp_path / "1" / "state" / "site-1").exists()
    assert run(tmp_path / "2", {"refine": SHORT}, rounds=1).outcome.status == "finished"


def test_without_public_data(tmp_path):
    made = Run("pfedcdp", lambda: REGISTRY.make_method("pfedcdp", {}), TASK, Settings(rounds=1), make_sites(), tmp_path)
    with pytest.raises(SettingsError, match="Method 'pfedcdp' needs public data; name their folder with --public"):
        simulate(made)


def test_under_privacy_running_statistics_can_not_be_shared(tmp_path):
    privacy = {"epsilon": 5.0, "clip": 1.0}
    with pytest.raises(SettingsError, match="running statistics of normalisation layers can't be shared"):
        run(tmp_path, privacy=privacy)
    assert run(tmp_path / "2", privacy=privacy, task=make_task("plain"), rounds=1).outcome.status == "finished"


def test_the_servers_classifier_needs_running_statistics(tmp_path):
    with pytest.raises(SettingsError, match="needs the running statistics of network 'norm'"):
        run(tmp_path, norm_sync="params")
    alone = {"server_classifier": "none", "lam": 0.0, "refine": None}
    assert run(tmp_path / "2", alone, norm_sync="params", rounds=1).outcome.status == "finished"


def test_shapley_weights_need_public_images_that_no_classifier_saw(tmp_path):
    public = make_data(3, "public", torch.arange(3))  # one image of each class
    with pytest.raises(SettingsError, match="two images of a class"):
        run(tmp_path, {"refine": {"epochs": 1}}, public=public)


@pytest.mark.parametrize(
    ("labels", "wrong"), [([], "needs public data"), ([0, 7], "Public data: expected labels from 0 to 2, got 7")]
)
def test_public_data_that_can_not_be_used(tmp_path, labels, wrong):
    images = make_data(len(labels), "public", torch.zeros(len(labels), dtype=torch.int64)).images
    public = TensorData(images, torch.tensor(labels, dtype=torch.int64))
    with pytest.raises(MedflError, match=wrong):
        run(tmp_path, public=public)


def test_privacy_of_single_images_is_refused(tmp_path):
    """The Fisher mask and the teacher look at the images, too, and not through the loss."""
    privacy = {"unit": "sample", "epsilon": 5.0, "clip": 1.0, "delta": 1e-5}
    with pytest.raises(SettingsError, match="method 'pfedcdp' does not say, by `supports_dp_sgd`"):
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
