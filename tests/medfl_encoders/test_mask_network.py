"""Segmentation network with a pretrained encoder."""

from __future__ import annotations

import pytest
import torch
from refusals import refused
from torch.nn import functional as F

from medfl.errors import SettingsError
from medfl_encoders.efficientnet_lite import EfficientNetLite0
from medfl_encoders.mask_network import EfficientNetLite0Masks, repeat_positions


def test_encoder_has_the_tensors_of_the_classifier_without_the_last_convolution() -> None:
    own = EfficientNetLite0Masks(size=64, encoder_size=64).state_dict()
    classifier = EfficientNetLite0().state_dict()
    expected = {n: t.shape for n, t in classifier.items() if n.startswith("body.") and not n.startswith("body.final.")}
    assert {name: tensor.shape for name, tensor in own.items() if name.startswith("body.")} == expected


def test_joined_maps_are_those_of_the_classifier_s_stages() -> None:
    torch.manual_seed(0)
    network, classifier = EfficientNetLite0Masks(size=64, encoder_size=64).eval(), EfficientNetLite0(size=64).eval()
    weights = {name: t for name, t in network.state_dict().items() if name.startswith("body.")}
    classifier.load_state_dict(weights, strict=False)
    maps: dict[int, torch.Tensor] = {}
    for number in (2, 4, 6):
        stage = classifier.feature_layers[number]
        stage.register_forward_hook(lambda _, __, output, number=number: maps.update({number: output}))
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        classifier(images)
        joined = network.body(images)
    expected = torch.cat([F.interpolate(maps[number], size=(8, 8)) for number in (2, 4, 6)], dim=1)
    assert torch.equal(joined, expected)


@pytest.mark.parametrize(("size", "encoder_size"), [(64, 64), ([128, 128], 64), (32, 128)])
def test_logits_have_the_size_of_the_images(size: int | list[int], encoder_size: int) -> None:
    network = EfficientNetLite0Masks(1, 3, size, encoder_size).eval()
    edge = size if isinstance(size, int) else size[0]
    images = torch.rand(2, 1, edge, edge)
    logits = network(images)
    assert logits.shape == (2, 3, edge, edge)
    assert torch.equal(logits, network.head(network.body(images)))
    torch.testing.assert_close(torch.jit.script(network)(images), logits)


def test_repeated_positions_equal_nearest_neighbours() -> None:
    maps = torch.randn(2, 3, 4, 5)
    assert torch.equal(repeat_positions(maps, 3), F.interpolate(maps, scale_factor=3, mode="nearest"))


@pytest.mark.parametrize("options", [{"size": 16}, {"size": 48}, {"size": [64, 32]}, {"size": 64, "width": 3}])
def test_sizes_that_no_power_of_two_reaches_are_refused(options: dict[str, object]) -> None:
    with refused(SettingsError, "setting_out_of_range"):
        EfficientNetLite0Masks(encoder_size=128, **options)  # type: ignore[arg-type]
