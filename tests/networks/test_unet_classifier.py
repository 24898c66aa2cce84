"""Tests of the U-Net classifier: the U-Net's levels, body and linear head, comparable stages."""

from __future__ import annotations

import io

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.parts import body_and_head, feature_count, head_names
from medfl.networks.unet import UNet, UNetClassifier
from medfl.toolkit.feature_hooks import FeatureHooks, check_comparable_stages, network_stages

SMALL = {"in_channels": 1, "channels": (4, 6, 8), "num_res_units": 1, "norm": "batch"}


def batch(spatial_dims: int = 2, edge: int = 16) -> torch.Tensor:
    return torch.randn(3, 1, *[edge] * spatial_dims, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spatial_dims", [2, 3])
def test_its_levels_begin_as_those_of_the_unet_for_masks_and_take_its_tensors(spatial_dims: int) -> None:
    torch.manual_seed(1)
    classifier = UNetClassifier(**SMALL, num_classes=3, spatial_dims=spatial_dims)
    torch.manual_seed(1)
    unet = UNet(**SMALL, out_channels=2, spatial_dims=spatial_dims)
    for level, same in zip(classifier.feature_layers, unet.feature_layers, strict=True):
        assert all(torch.equal(t, same.state_dict()[name]) for name, t in level.state_dict().items())
    torch.manual_seed(2)
    trained = UNet(**SMALL, out_channels=2, spatial_dims=spatial_dims)
    for level, other in zip(classifier.feature_layers, trained.feature_layers, strict=True):
        level.load_state_dict(other.state_dict())
    ours, theirs = FeatureHooks(classifier.feature_layers), FeatureHooks(trained.feature_layers)
    logits = classifier.eval()(batch(spatial_dims))
    trained.eval()(batch(spatial_dims))
    assert all(torch.equal(a, b) for a, b in zip(ours.features, theirs.features, strict=True))
    means = theirs.features[-1].flatten(2).mean(dim=2)
    assert torch.allclose(logits, classifier.head(means), atol=1e-6)
    assert logits.shape == (3, 3)


def test_its_parts_are_a_body_and_a_linear_head() -> None:
    model = UNetClassifier(**SMALL)
    body, head = body_and_head(model)
    assert isinstance(head, nn.Linear)
    assert feature_count(model, "encoder") == 8
    assert head_names(model, "encoder") == ["head.weight", "head.bias"]
    assert torch.equal(model.eval()(batch()), head(body(batch())))
    assert len({tensor.data_ptr() for tensor in model.state_dict().values()}) == len(model.state_dict())


def test_networks_of_unlike_widths_can_be_compared() -> None:
    wide = UNetClassifier(**SMALL | {"channels": (6, 9, 12)})
    check_comparable_stages({"encoder": UNetClassifier(**SMALL), "wide": wide}, None)
    hooks = FeatureHooks(network_stages(wide, "wide"))
    wide(batch())
    assert [tuple(features.shape[1:]) for features in hooks.features] == [(6, 8, 8), (9, 4, 4), (12, 4, 4)]


def test_scripted_it_gives_the_same() -> None:
    model, file = UNetClassifier(**SMALL).eval(), io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    assert torch.allclose(torch.jit.load(file)(batch()), model(batch()), atol=1e-6)


def test_impossible_options_are_named() -> None:
    with refused(
        SettingsError, "setting_out_of_range", network="UNetClassifier", setting="num_classes", minimum=2, found=1
    ):
        UNetClassifier(num_classes=1)
    with refused(SettingsError, "edges_not_multiples", expected=[4, 4], found=[16, 18]):
        UNetClassifier(**SMALL, size=[16, 18])
