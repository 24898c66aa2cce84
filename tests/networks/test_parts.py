"""Tests of body and head of a network, identified by attribute, and of small classifiers."""

import copy

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.cnn import CNN4
from medfl.networks.convnet import ConvNet
from medfl.networks.heads import TwoLayerHead
from medfl.networks.parts import (
    SplitNetwork,
    body_and_head,
    feature_count,
    features_and_logits,
    head_names,
    head_prefix,
    mlp,
)
from medfl.networks.resnet import ResNet
from medfl.testing.cohort import CLASSES, SmallNet


class Named(nn.Module):
    """Network with misleading names for a search for 'head', and a head with a buffer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten())
        self.body.add_module("head_of_body", nn.Linear(4, 6))
        self.head = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, images):
        return self.head(self.body(images))


def test_the_head_is_found_by_attribute_with_its_buffers():
    names = head_names(Named(), "named")
    assert set(names) == {
        *("head.0.weight", "head.0.bias", "head.0.running_mean", "head.0.running_var", "head.0.num_batches_tracked"),
        *("head.1.weight", "head.1.bias"),
    }
    assert not any("head_of_body" in name for name in names)


class Wrapped(nn.Module):
    """Network whose head is a nested module, and whose body consists of other modules."""

    def __init__(self):
        super().__init__()
        self.inner = SmallNet()

    @property
    def body(self):
        return self.inner.body

    @property
    def head(self):
        return self.inner.head

    def forward(self, images):
        return self.inner(images)


def test_a_head_under_another_name_in_the_state_dict():
    assert head_names(Wrapped(), "wrapped") == ["inner.head.weight", "inner.head.bias"]
    assert feature_count(Wrapped(), "wrapped") == 24


@pytest.mark.parametrize(
    "build",
    [
        SmallNet,
        lambda: ConvNet(1, 3, channels=(4, 6), dense=10, dropout=0.5),
        lambda: CNN4(in_channels=1, num_classes=3),
        lambda: ResNet(in_channels=1, num_classes=3, width=4),
    ],
    ids=["toy", "convnet", "cnn", "resnet"],
)
def test_networks_of_the_package_are_body_then_head(build):
    """All tensors belong to body or head, and the head takes the body's features."""
    model = build().eval()
    body, head = body_and_head(model)
    images = torch.randn(2, 1, 28, 28)
    assert torch.equal(SplitNetwork(body, head)(images), model(images))
    assert body(images).shape == (2, feature_count(model, "it"))
    held = {id(tensor) for part in (body, head) for tensor in part.state_dict(keep_vars=True).values()}
    assert held == {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    assert len(head_names(model, "it")) == 2


class Headless(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classifier = nn.Flatten(), nn.Linear(4, 2)


class Function(Headless):
    def __init__(self):
        super().__init__()
        del self.classifier
        self.head = torch.relu


@pytest.mark.parametrize("kind", [Headless, Function])
@pytest.mark.parametrize("ask", [head_names, feature_count])
def test_a_network_without_a_head_is_refused(kind, ask):
    with refused(SettingsError, "missing_head", network="bare", type=kind.__name__):
        ask(kind(), "bare")


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_features_are_what_the_first_layer_of_a_head_takes(activation):
    model = SmallNet()
    model.head = TwoLayerHead(24, 7, CLASSES, activation=activation)
    assert feature_count(model, "it") == 24
    assert head_prefix(model, "it") == "head."
    assert feature_count(Named(), "named") == 6


def test_a_body_that_is_missing_and_a_head_without_a_linear_layer_are_refused():
    bodyless = SmallNet()
    bodyless.features = bodyless.body
    del bodyless.body
    with refused(SettingsError, "missing_feature_layer", network="it", type="SmallNet", found="Linear"):
        feature_count(bodyless, "it")
    unlinear = SmallNet()
    unlinear.head = nn.Sequential(nn.ReLU())
    with refused(SettingsError, "missing_feature_layer", network="it", found="Sequential"):
        feature_count(unlinear, "it")


def test_another_head_on_the_same_body_shares_its_tensors():
    model = SmallNet().eval()
    other = SplitNetwork(model.body, mlp(24, (5,), 2)).eval()
    before = copy.deepcopy(other.head.state_dict())
    images = torch.randn(3, 1, 6, 6)
    assert other(images).shape == (3, 2)
    with torch.no_grad():
        model.body[0].weight.add_(1)
    assert torch.equal(other(images), other.head(model.body(images)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.head.state_dict().items())


def test_the_layers_of_an_mlp():
    kinds = [type(part).__name__ for part in mlp(8, (16, 4), 3, dropout=(0.3, 0.2))]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Dropout"] * 2 + ["Linear"]
    made = mlp(8, (16, 4), 3, norm=False, dropout=(0.3,))
    assert [type(part).__name__ for part in made] == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Linear"]
    assert [part.p for part in made if isinstance(part, nn.Dropout)] == [0.3]
    assert sum(p.numel() for p in made.parameters()) == 9 * 16 + 17 * 4 + 5 * 3
    assert made(torch.randn(2, 8)).shape == (2, 3)
    (line,) = mlp(8, (), 3)
    assert (line.in_features, line.out_features) == (8, 3)


def test_features_and_logits_are_those_of_one_pass():
    model = SplitNetwork(nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU()), nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
    images = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    features, logits = features_and_logits(model, images)
    assert torch.equal(features, model.body(images).flatten(1))
    assert torch.equal(logits, model(images))
