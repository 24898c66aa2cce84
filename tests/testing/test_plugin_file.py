"""Tests of a plugin file outside medfl: its method passes the conformance suite, and its data set can be prepared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from refusals import refused

from medfl.engine.encoding import FILTERS_KEY
from medfl.engine.store import Store
from medfl.errors import PluginError, SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Privacy
from medfl.testing import check_method
from medfl.testing.cohort import Case, make_task, scores
from medfl.testing.datasets import check_dataset
from medfl.utils import wire

PLUGIN = Path(__file__).parents[1] / "helpers" / "outside_plugin.py"


@pytest.fixture(scope="module")
def registry():
    registry = load_plugins([PLUGIN])
    assert registry.problems == []
    return registry


def run(registry, folder, args, name="outside", **settings):
    return Case(registry, name, args).run(folder, task=make_task("plain"), **({"rounds": 2} | settings))


@pytest.mark.slow
def test_its_method_keeps_the_contract():
    check_method("outside", plugins=[PLUGIN])


def test_replies_are_encoded_and_aggregated_tensors_have_the_models_shapes(registry, tmp_path):
    """A quarter of the entries is sent, with two bytes each and eight for their positions.

    All other entries are zero.
    """
    model = run(registry, tmp_path / "run", {"share": 0.25}, rounds=1, epochs=1).outcome.models["global"].tensors
    begun = make_task("plain").initial(7)
    record = Store(tmp_path / "run" / "state" / "site-1").load(1)
    sent = wire.select(record.tensors, "reply/model/")
    for name, tensor in begun.items():
        count = round(0.25 * tensor.numel())
        assert sent[name].shape == sent[f"{name}/places"].shape == (count,)
        assert sent[name].dtype == torch.float16
        changed = int((model[name] != tensor).sum())
        assert 0 < changed <= 3 * count  # three sites, each with entries of its own
    assert set(record.meta["reply"]) == {"size", FILTERS_KEY}


def test_a_site_has_the_model_of_its_second_training(registry, tmp_path):
    """Without epochs it is the initial model; the shared model is still trained."""
    result = run(registry, tmp_path / "run", {"own_epochs": 0})
    begun = make_task("plain").initial(7)
    own = result.models["site-2"]["personal"].tensors
    assert all(torch.equal(tensor, begun[name]) for name, tensor in own.items())
    assert not torch.equal(result.outcome.models["global"].tensors["head.weight"], begun["head.weight"])
    assert any(",personal,test,aggregated," in line for line in scores(tmp_path / "run"))


def test_its_filters_run_with_bits_and_with_privacy_of_images_and_one_is_refused_for_sites(registry, tmp_path):
    """Half precision after noise is post-processing; the positions of the largest entries are not noised."""
    hidden = {"privacy": Privacy(epsilon=5.0, clip=1.0)}
    assert run(registry, tmp_path / "half", {"share": 1.0}, **hidden).outcome.status == "finished"
    assert run(registry, tmp_path / "bits", {}, compression={"bits": 8}).outcome.status == "finished"
    with refused(SettingsError, "unprotected_payload", filter="Largest") as caught:
        run(registry, tmp_path / "places", {}, **hidden)
    assert re.fullmatch("model/.*/places", caught.value.fields["tensor"])


def test_its_data_set_keeps_what_data_sets_promise(tmp_path):
    check_dataset("outside_scans", tmp_path, [PLUGIN])


def test_an_unknown_method_is_one_error_and_not_one_for_each_check():
    with refused(PluginError, "unknown_choice", what="method", choice="fedavgg") as error:
        check_method("fedavgg")
    assert str(error.value).count("Did you mean 'fedavg'") == 1
