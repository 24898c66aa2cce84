"""Tests of heads and stages of networks that don't declare them: MONAI's, and others by module names."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from monai.networks import nets
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.part_names import MEDFL_SUBCLASSES, PART_NAMES, name_parts
from medfl.networks.parts import head_names, head_prefix
from medfl.toolkit.feature_hooks import FeatureHooks, check_comparable_stages, network_stages

CASES: dict[str, tuple[Callable[[], nn.Module], str, int, tuple[int, ...]]] = {
    "UNet": (lambda: nets.UNet(3, 1, 2, (2, 4, 8), (2, 2), num_res_units=1), "model.2.", 3, (1, 8, 8, 8)),
    "DynUNet": (
        lambda: nets.DynUNet(3, 1, 2, [3] * 3, [1, 2, 2], [2, 2], filters=[2, 4, 8]),
        "output_block.",
        3,
        (1, 8, 8, 8),
    ),
    "SegResNet": (
        lambda: nets.SegResNet(3, 8, 1, 2, blocks_down=(1, 1), blocks_up=(1,)),
        "conv_final.2.",
        2,
        (1, 8, 8, 8),
    ),
    "BasicUNet": (lambda: nets.BasicUNet(2, 1, 2, features=(2, 2, 2, 2, 2, 2)), "final_conv.", 5, (1, 32, 32)),
    "VNet": (lambda: nets.VNet(2, 1, 2, dropout_dim=2), "out_tr.", 5, (1, 32, 32)),
    "ResNet": (
        lambda: nets.ResNet("basic", [1, 1, 1, 1], [2, 4, 8, 16], spatial_dims=2, n_input_channels=1, num_classes=3),
        "fc.",
        4,
        (1, 32, 32),
    ),
    "SENet": (
        lambda: nets.SENet(2, 1, "se_bottleneck", [1, 1, 1, 1], 1, 2, None, num_classes=3),
        "last_linear.",
        4,
        (1, 64, 64),
    ),
    "DenseNet": (lambda: nets.DenseNet(2, 1, 3, 4, 2, (1, 1, 1)), "class_layers.out.", 3, (1, 32, 32)),
    "EfficientNet": (lambda: nets.EfficientNetBN("efficientnet-b0", False, True, 2, 1, 3), "_fc.", 7, (1, 32, 32)),
    "FlexibleUNet": (
        lambda: nets.FlexibleUNet(3, 2, "efficientnet-b0", False, (8, 8, 8, 8, 8)),
        "segmentation_head.",
        7,
        (3, 32, 32),
    ),
}
"""A small MONAI network, its head's name, its stages, and an image shape."""


@pytest.mark.parametrize("name", CASES)
def test_monais_networks_have_a_head_and_stages_and_stay_as_they_are(name):
    make, head, count, shape = CASES[name]
    torch.manual_seed(0)
    network = make().eval()
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    before, names = network(images), list(network.state_dict())
    parts = [[*network.parameters()], [*network.modules()]]
    name_parts(network)
    after = network(images)
    assert torch.equal(before[-1] if isinstance(before, list | tuple) else before, after)
    assert list(network.state_dict()) == names
    assert parts == [[*network.parameters()], [*network.modules()]]
    assert head_prefix(network, name) == head
    assert {n.startswith(head) for n in head_names(network, name)} == {True}
    assert len(head_names(network, name)) < len(names)
    hooks = FeatureHooks(network_stages(network, name))
    network(images)
    features = hooks.features
    assert len(features) == count
    assert all(feature.shape[0] == 2 and feature.dim() == images.dim() for feature in features)
    edges = [feature.shape[-1] for feature in features]
    assert edges == sorted(edges, reverse=True)
    assert edges[0] > edges[-1]


def test_all_known_networks_are_tested():
    assert {kind.__name__ for kind in [*PART_NAMES, *MEDFL_SUBCLASSES]} - {"SwinUNETR"} == set(
        CASES
    )  # einops may be missing


def test_a_copy_has_its_own_parts():
    network = name_parts(nets.BasicUNet(2, 1, 2, features=(2,) * 6))
    other = copy.deepcopy(network)
    assert other.head is other.final_conv
    assert other.head is not network.head
    assert other.feature_layers[0] is other.conv_0
    check_comparable_stages({"a": network, "b": other}, None)


def test_gradients_of_features_reach_the_network_through_activations_in_place():
    """Later layers don't overwrite a stage's output."""
    network = name_parts(CASES["SENet"][0]()).train()
    hooks = FeatureHooks(network.feature_layers)
    network(torch.rand(2, 1, 64, 64))
    sum(feature.square().mean() for feature in hooks.features).backward()
    assert network.layer1[0].conv1.conv.weight.grad.abs().sum() > 0


class Own(nn.Module):
    """A network that is not MONAI's."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 1)

    def forward(self, images):
        return self.last(self.second(self.first(images)))


def test_modules_are_named_where_no_one_knows_them():
    plain = name_parts(Own())
    assert not hasattr(plain, "head")
    assert not hasattr(plain, "feature_layers")
    network = name_parts(Own(), "last", ["first", "second"])
    assert network.head is network.last
    assert network.feature_layers == [network.first, network.second]
    assert name_parts(network).feature_layers == [network.first, network.second]
    other = name_parts(nets.BasicUNet(2, 1, 2, features=(2,) * 6), stages=["conv_0", "down_1"])
    assert other.feature_layers == [other.conv_0, other.down_1]
    with refused(
        SettingsError, "unknown_module", network="Own", name="final", part="head", known=["first", "second", "last"]
    ):
        name_parts(Own(), "final")
    with refused(SettingsError, "unknown_module", name="third", part="stages"):
        name_parts(Own(), "last", ["first", "third"])
