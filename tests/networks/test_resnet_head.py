"""Tests of ResNet's two-layer head and of feature dropout."""

from __future__ import annotations

import math

import pytest
import torch
from refusals import refused
from resnet_toys import images, small
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.parts import SplitNetwork, body_and_head, feature_count, head_names
from medfl.networks.resnet import ResNet


@pytest.mark.parametrize(
    ("depth", "share", "features", "hidden"), [(10, 0.4, 64, 25), (50, 1.0, 256, 256), (10, 1e-3, 64, 1)]
)
def test_its_width_is_a_share_of_the_features(depth, share, features, hidden):
    model = small(depth, head_share=share)
    assert model.fc.hidden.weight.shape == (hidden, features)
    assert model.fc.out.weight.shape == (3, hidden)
    assert feature_count(model, "it") == features
    assert head_names(model, "it") == ["fc.hidden.weight", "fc.hidden.bias", "fc.out.weight", "fc.out.bias"]


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_logits_are_two_linear_maps_of_the_features(activation):
    model = small(head_share=0.5, head_activation=activation)
    shown = model.body(images(2))
    between = shown @ model.fc.hidden.weight.T + model.fc.hidden.bias
    assert between.min() < 0
    between = between.clamp(min=0) if activation == "relu" else between
    expected = between @ model.fc.out.weight.T + model.fc.out.bias
    assert torch.allclose(model(images(2)), expected, atol=1e-5)
    assert torch.equal(SplitNetwork(*body_and_head(model))(images(2)), model(images(2)))
    assert torch.equal(torch.jit.script(model)(images(2)), model(images(2)))


def test_it_begins_with_xaviers_numbers_and_the_body_as_without_it():
    torch.manual_seed(3)
    model = ResNet(10, 2, 5, width=16, head_share=1.0)
    torch.manual_seed(3)
    plain = ResNet(10, 2, 5, width=16)
    assert model.fc.hidden.weight.std().item() == pytest.approx(math.sqrt(2 / (128 + 128)), rel=0.03)
    assert not model.fc.hidden.bias.any()
    assert not model.fc.out.bias.any()
    assert list(plain.state_dict())[-2:] == ["fc.weight", "fc.bias"]
    assert all(map(torch.equal, model.body.parameters(), plain.body.parameters()))


def test_features_are_dropped_in_training_only_and_belong_to_the_body():
    model, plain = small(dropout=0.25), small()
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    full = plain.body(images(2, n=40))
    assert torch.equal(model.body(images(2, n=40)), full)
    assert torch.equal(model(images(2)), plain(images(2)))
    torch.manual_seed(0)
    dropped = model.train().body(images(2, n=40))
    gone = dropped == 0
    assert 0.2 < gone.float().mean() < 0.3
    assert torch.allclose(dropped[~gone], full[~gone] / 0.75, rtol=1e-4)


def test_the_layer_between_is_dropped_in_training_only():
    model = small(head_share=0.5, head_dropout=0.5)
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == [0.5]
    torch.manual_seed(0)
    assert not torch.equal(model.train()(images(2)), model.eval()(images(2)))


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        ({"head_share": 0.0}, "setting_out_of_range", {"setting": "head_share", "found": 0.0}),
        ({"head_share": 1.1}, "setting_out_of_range", {"setting": "head_share", "found": 1.1}),
        ({"head_share": "null"}, "setting_out_of_range", {"setting": "head_share", "found": "null"}),
        (
            {"head_share": 0.5, "head_activation": "tanh"},
            "unknown_choice",
            {"what": "head_activation", "choice": "tanh", "known": ["none", "relu"]},
        ),
        ({"head_dropout": 1.0}, "setting_out_of_range", {"setting": "head_dropout", "found": 1.0}),
        ({"dropout": -0.1}, "setting_out_of_range", {"setting": "dropout", "found": -0.1}),
    ],
    ids=str,
)
def test_impossible_heads_are_named(change, code, fields):
    with refused(SettingsError, code, network="ResNet", **fields):
        ResNet(**{"width": 8} | change)
