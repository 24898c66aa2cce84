"""Tests of the setting ``train_part``: which parameters learn, and that all others are neither sent nor changed."""

from __future__ import annotations

import copy
import csv
from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.data.pooled import TensorData
from medfl.engine.evaluation import add_frozen_tensors
from medfl.engine.site import Splits
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.networks.norms import has_batch_norm
from medfl.networks.transfer.frozen import full_state_dict, is_frozen
from medfl.networks.transfer.trainable import freeze_rest
from medfl.plugins import load_plugins
from medfl.settings import Settings, read_settings
from medfl.testing.cohort import Case, SmallNet, bits, make_head_only_task, make_sites, make_task
from medfl.utils.name_patterns import check_name_pattern
from medfl.utils.wire import tensors_equal

HEAD = {"head.weight", "head.bias"}
HEAD_BYTES = 4 * (24 * 3 + 3)
"""Bytes of the tiny network's head."""


def case(method="fedavg", **settings):
    return Case(load_plugins(), method, {}, {"rounds": 2} | settings)


def costs(folder, metric):
    with open(folder / "metrics.csv") as file:
        return {float(row["value"]) for row in csv.DictReader(file) if row["metric"] == metric}


def learning(train, build=SmallNet):
    """Return the names of the parameters that learn with a value of the setting."""
    model = build()
    freeze_rest(model, train, "norm")
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def frozen_convolution():
    network = SmallNet()
    network.body[0].requires_grad_(False)
    return network


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ("all", {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"} | HEAD),
        ("head", HEAD),
        ("norms", {"body.1.weight", "body.1.bias"} | HEAD),
        (r"body\.0|head", {"body.0.weight", "body.0.bias"} | HEAD),
        ("bias$", {"body.0.bias", "body.1.bias", "head.bias"}),
    ],
)
def test_the_setting_selects_the_parameters_that_learn(train, names):
    assert learning(train) == names
    assert learning(train, frozen_convolution) == names - {"body.0.weight", "body.0.bias"}


def test_norms_of_a_network_without_a_head_are_its_normalisation_layers_alone():
    assert learning("norms", lambda: nn.Sequential(nn.Conv3d(1, 2, 1), nn.GroupNorm(1, 2))) == {"1.weight", "1.bias"}
    assert learning("norms", lambda: nn.Sequential(nn.Linear(2, 2), nn.RMSNorm(2))) == {"1.weight"}
    with refused(SettingsError, "missing_head", network="norm"):
        learning("head", lambda: nn.Sequential(nn.Linear(2, 2)))


def test_an_expression_without_a_match_is_refused_with_the_names():
    with refused(SettingsError, "no_match", setting="train_part", network="norm"):
        learning("layer4")
    with refused(SettingsError, "no_trainable_parameters", network="norm"):
        replace(make_task(), networks={"norm": frozen_convolution}).with_training_of(r"body\.0").build()


EXPONENTIAL = [".?" * 24 + "!", "(.|.)" * 22 + "!", "(?x)(.+) +!", "(?x:(.+) +!)", "(?:(.+)?)?!"]
"""Expressions whose search takes seconds or more for a name without a match."""


@pytest.mark.parametrize("pattern", ["", "(a+)+b", "(a|b)*", "((a){3}){3}", ".*.*.*.*x", "[", "x" * 201, *EXPONENTIAL])
def test_expressions_that_are_invalid_or_slow_to_search_are_refused(pattern):
    with pytest.raises(ValueError, match="expected a regular expression"):
        check_name_pattern(pattern)
    with refused(SettingsError, "invalid_setting", settings=["train_part"]):
        read_settings(Settings, {"rounds": 1, "train_part": pattern}, "the run")


@pytest.mark.parametrize("pattern", ["(layer3|layer4).*(conv|norm)", "^(?!.*norm)", r"(?:a|b)\.c", "layer[34]|head"])
def test_usual_expressions_are_accepted(pattern):
    assert check_name_pattern(pattern) == pattern


def test_frozen_modules_stay_in_evaluation_mode_and_copies_do_too():
    model = make_task().with_training_of("head").build()
    for network in (model, copy.deepcopy(model)):
        network.train()
        assert network.training
        assert network.head.training
        assert not network.body.training
        assert not network.body[1].training
        assert is_frozen(network.body)
        assert not has_batch_norm(network)
    assert copy.deepcopy(model).body.train() is not model.body
    partly = make_task().with_training_of(r"body\.0|head").build().train()
    assert partly.body.training
    assert not partly.body[1].training


def test_the_state_dict_has_what_learns_alone_and_the_whole_network_is_complete():
    task = make_task().with_training_of("head")
    assert task.names() == ["head.weight", "head.bias"]
    assert set(task.frozen()) == SmallNet().state_dict().keys() - HEAD
    assert full_state_dict(task.build()).keys() == SmallNet().state_dict().keys()
    norms = make_task().with_training_of("norms")
    assert {"body.1.running_mean", "body.1.num_batches_tracked"} <= set(norms.names())
    assert set(norms.frozen()) == {"body.0.weight", "body.0.bias"}


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        ("fedavg", HEAD_BYTES, HEAD_BYTES),
        ("scaffold", 2 * HEAD_BYTES, 2 * HEAD_BYTES),
        ("cyclic", HEAD_BYTES, HEAD_BYTES),
    ],
)
def test_bytes_are_those_of_the_head(method, up, down, tmp_path):
    case(method).run(tmp_path, train_part="head", sites=make_sites({"site-1": 6, "site-2": 6}))
    assert costs(tmp_path, "bytes_up") == {up}
    assert costs(tmp_path, "bytes_down") == {down}


@pytest.mark.parametrize("unit", ["site", "sample"])
def test_privacy_clips_and_noises_the_head_alone_although_the_body_has_batch_norm(unit, tmp_path):
    task, run = make_head_only_task(), case(privacy={"epsilon": 1.0, "clip": 0.5, "unit": unit}, train_part="head")
    result = run.run(tmp_path, task=task)
    assert result.outcome.status == "finished"
    assert Store(tmp_path / "state" / "site-1").read(1, "reply/").keys() == {"model/head.weight", "model/head.bias"}
    trained = task.with_training_of("head")
    model = add_frozen_tensors(run.make_method(), trained, result.outcome.models)["global"]
    assert tensors_equal({name: model.tensors[name] for name in trained.frozen()}, dict(trained.frozen()))


@pytest.mark.parametrize(
    "settings", [{"compression": {"bits": 8}}, {"secure_aggregation": {}}, {"robust": {"rule": "median"}}]
)
def test_compression_secure_sums_and_robust_rules_take_the_head_alone(settings, tmp_path):
    result = case(train_part="head", **settings).run(tmp_path, task=make_head_only_task())
    assert result.outcome.status == "finished"
    assert result.outcome.models["global"].tensors.keys() == HEAD


def test_a_frozen_body_gives_the_bits_of_the_head_trained_alone_on_its_features(tmp_path):
    """FedAvg with ``train_part: head`` equals FedAvg of a linear network on the body's features in evaluation mode."""
    task = make_head_only_task()
    body = task.with_training_of("head").build().body

    def features(data):
        with torch.no_grad():
            images, labels = data.batch(torch.arange(len(data)))
            return TensorData(body(images)[:, None, None], labels)

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            network = SmallNet()  # draws the body first, as the whole network does
            self.body, self.head = nn.Flatten(), network.head

        def forward(self, x):
            return self.head(self.body(x))

    sites = make_sites()
    mapped = {name: Splits(features(s.train), features(s.val), features(s.test)) for name, s in sites.items()}
    whole = bits(case(train_part="head").run(tmp_path / "whole", task=task, sites=sites))
    linear = bits(
        case().run(
            tmp_path / "linear",
            task=replace(make_task(), networks={"norm": Linear}),
            sites=mapped,
            server_test=mapped["site-1"].test,
        )
    )
    assert whole.keys() == linear.keys()
    for key, tensors in whole.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, linear[key][name], rtol=0, atol=1e-6)
