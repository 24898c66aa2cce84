"""Encoders: body and head, images of any size, one channel, TorchScript, deterministic gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn import functional as F

from medfl.engine.plan import identify_task
from medfl.errors import SettingsError
from medfl.networks.parts import feature_count, single_linear
from medfl.testing.cohort import make_task
from medfl_encoders import IMAGENET_MEAN, IMAGENET_STD
from medfl_encoders.efficientnet_lite import EfficientNetLite0
from medfl_encoders.image_input import ImageInput
from medfl_encoders.inverted_residual import SamePadding
from medfl_encoders.mobilenet import MobileNetV2
from medfl_encoders.vision_transformer import GRID, ViTS14, interpolation_matrix

FEATURES = {EfficientNetLite0: 1280, MobileNetV2: 1280, ViTS14: 384}
SIZE = {EfficientNetLite0: 64, MobileNetV2: 64, ViTS14: 42}  # small, for speed

kinds = pytest.mark.parametrize("kind", FEATURES)


def made(kind: Callable[..., nn.Module], **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(**{"size": SIZE[kind], "num_classes": 3} | options).eval()


known = cache(made)
"""`made`, once for all tests that do not change the network: to draw its weights takes longest."""


@kinds
def test_logits_are_head_of_body(kind: Callable[..., nn.Module]) -> None:
    network = known(kind)
    images = torch.rand(2, 3, 50, 61)
    assert feature_count(network, "n") == FEATURES[kind]
    assert single_linear(network, "n", "test")[1] == "head."
    features = network.body(images)
    assert features.shape == (2, FEATURES[kind])
    torch.testing.assert_close(network(images), network.head(features))


@kinds
def test_parameters_are_those_of_the_papers(kind: Callable[..., nn.Module]) -> None:
    published = {
        EfficientNetLite0: 4_652_008,
        MobileNetV2: 3_504_872,
        ViTS14: 22_056_576 - 384 + 385_000,  # without the mask token, with a classifier
    }
    with torch.device("meta"):
        network = kind(num_classes=1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == published[kind]


@kinds
def test_one_channel_equals_three_equal_channels(kind: Callable[..., nn.Module]) -> None:
    images = torch.rand(2, 1, 30, 40)
    grey, colour = known(kind, in_channels=1), known(kind)
    assert grey.state_dict().keys() == colour.state_dict().keys()
    torch.testing.assert_close(grey(images), colour(images.repeat(1, 3, 1, 1)))


@kinds
def test_an_image_is_scored_alone_as_in_a_batch(kind: Callable[..., nn.Module]) -> None:
    network, images = known(kind), torch.rand(3, 3, 33, 47)
    each = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(network(images), each, atol=1e-5, rtol=1e-4)


@kinds
def test_it_can_be_scripted(kind: Callable[..., nn.Module]) -> None:
    network, images = known(kind, in_channels=1), torch.rand(2, 1, 40, 30)
    torch.testing.assert_close(torch.jit.script(network)(images), network(images))


@kinds
def test_gradients_are_the_same_twice(kind: Callable[..., nn.Module]) -> None:
    network, images = known(kind), torch.rand(2, 3, 40, 40, generator=torch.Generator().manual_seed(1))
    parameters = list(network.parameters())
    first, second = (torch.autograd.grad(network(images).sum(), parameters) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", [EfficientNetLite0, MobileNetV2])
def test_stages_shrink_the_maps(kind: Callable[..., nn.Module]) -> None:
    network, shapes = made(kind), []
    for layer in network.feature_layers:
        layer.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:])))
    network(torch.rand(1, 3, 64, 64))
    assert [edge for _, edge, _ in shapes] == [32, 16, 8, 4, 4, 2, 2]
    assert shapes[-1][0] == 320


@pytest.mark.parametrize(
    ("kind", "channels"), [(EfficientNetLite0, [40, 80, 112, 192, 320]), (MobileNetV2, [32, 64, 96, 160, 320])]
)
def test_features_of_the_stages_are_the_mean_of_their_maps(kind: Callable[..., nn.Module], channels: list[int]) -> None:
    network, last, maps = made(kind, features="stages"), made(kind), []
    network.load_state_dict(network.rename_weights(last.state_dict()) | {"head.weight": network.head.weight})
    for layer in last.feature_layers[2:]:
        layer.register_forward_hook(lambda _module, _inputs, output: maps.append(output.mean(dim=(2, 3))))
    images = torch.rand(2, 3, 50, 61)
    last(images)
    assert [each.shape[1] for each in maps] == channels
    torch.testing.assert_close(network.body(images), torch.cat(maps, dim=1))
    assert feature_count(network, "n") == sum(channels)
    torch.testing.assert_close(torch.jit.script(network)(images), network(images))
    assert not any("final" in name for name in network.state_dict())


# ---- input


def test_images_are_resized_repeated_and_normalised() -> None:
    images = torch.rand(2, 1, 90, 50)
    out = ImageInput("n", 1, size=32)(images)
    small = F.interpolate(images, (32, 32), mode="bilinear", antialias=True)
    for channel in range(3):
        expected = (small[:, 0] - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel]
        torch.testing.assert_close(out[:, channel], expected)


def test_an_image_of_the_right_size_is_not_interpolated() -> None:
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(ImageInput("n", 3, size=32, mean=[0.0] * 3, std=[1.0] * 3)(images), images)


def test_shrinking_averages() -> None:
    stripes = torch.arange(640).remainder(2).float().expand(1, 1, 640, 640)
    out = ImageInput("n", 1, size=32, mean=[0.0] * 3, std=[1.0] * 3)(stripes)
    torch.testing.assert_close(out, torch.full_like(out, 0.5), atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("kind", "options", "code", "fields"),
    [
        (ViTS14, {"size": 50}, "setting_out_of_range", {"setting": "size", "found": 50, "multiple": 14}),
        (MobileNetV2, {"size": 31}, "setting_out_of_range", {"setting": "size", "found": 31}),
        (MobileNetV2, {"size": [64, 64]}, "setting_out_of_range", {"setting": "size", "found": [64, 64]}),
        (EfficientNetLite0, {"in_channels": 2}, "unsupported_channels", {"expected": [1, 3], "found": 2}),
        (EfficientNetLite0, {"spatial_dims": 4}, "unsupported_dimensions", {"expected": [2, 3], "found": 4}),
        (EfficientNetLite0, {"std": [1.0, 0.0, 1.0]}, "setting_out_of_range", {"setting": "mean, std"}),
        (EfficientNetLite0, {"features": "all"}, "unknown_choice", {"what": "features", "choice": "all"}),
        (EfficientNetLite0, {"mean": [0.5]}, "setting_out_of_range", {"setting": "mean, std"}),
    ],
)
def test_wrong_options(kind: Callable[..., nn.Module], options: dict[str, Any], code: str, fields: Any) -> None:
    with refused(SettingsError, code, network=kind.__name__, **fields):
        kind(**options)


@pytest.mark.parametrize(
    ("edge", "kernel", "padding"), [(8, 3, (0, 1)), (7, 3, (1, 1)), (8, 5, (1, 2)), (7, 5, (2, 2))]
)
def test_same_padding_of_tensorflow(edge: int, kernel: int, padding: tuple[int, int]) -> None:
    before, after = padding
    padded = SamePadding(kernel, 2)(torch.ones(1, 1, edge, edge))[0, 0, :, padding[0]]
    assert padded.tolist() == [0.0] * before + [1.0] * edge + [0.0] * after


# ---- volumes


def test_slices_are_in_the_middles_of_equal_parts_of_each_axis() -> None:
    volumes = torch.zeros(2, 1, 6, 9, 12)
    volumes[1] = torch.arange(6).reshape(6, 1, 1) / 10
    inputs = ImageInput("n", 1, spatial_dims=3, size=32, mean=[0.0] * 3, std=[1.0] * 3)
    slices = inputs(volumes)
    assert slices.shape == (18, 3, 32, 32)
    assert not slices[:9].any()
    assert torch.allclose(slices[9:12].mean(dim=(1, 2, 3)), torch.tensor([0.1, 0.3, 0.5]))
    assert torch.allclose(slices[12:].mean(dim=(1, 2, 3)), torch.full((6,), 0.25), atol=1e-3)


@pytest.mark.parametrize("kind", [EfficientNetLite0, MobileNetV2, ViTS14])
def test_features_of_a_volume_are_the_mean_of_its_slices_features(kind: Callable[..., nn.Module]) -> None:
    flat = known(kind, in_channels=1) if SIZE[kind] == 42 else made(kind, in_channels=1, size=42)
    deep = made(kind, in_channels=1, size=42, spatial_dims=3)
    deep.load_state_dict(flat.state_dict())
    volume = torch.rand(1, 1, 42, 42, 42)
    middles = [7, 21, 35]
    slices = torch.cat([volume.select(axis, place) for axis in (2, 3, 4) for place in middles])[:, None].flatten(1, 2)
    with torch.no_grad():
        features = deep.body(volume)
        torch.testing.assert_close(features, flat.body(slices).mean(dim=0, keepdim=True), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.jit.script(deep)(volume), deep(volume))
    assert not getattr(deep, "feature_layers", [])


# ---- position embeddings


def test_position_embeddings_of_the_own_grid_are_unchanged() -> None:
    torch.testing.assert_close(interpolation_matrix(GRID), torch.eye(GRID * GRID))


@pytest.mark.parametrize("edge", [3, 16, 40])
def test_interpolation_keeps_constants_and_lines(edge: int) -> None:
    matrix = interpolation_matrix(edge)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(edge * edge))
    line = torch.arange(GRID).float().expand(GRID, GRID).reshape(-1)
    columns = (matrix @ line).reshape(edge, edge)
    expected = (torch.arange(edge) + 0.5) * GRID / edge - 0.5
    inner = (expected > 1) & (expected < GRID - 2)  # at the border the outermost value is repeated
    torch.testing.assert_close(columns[0, inner], expected[inner], atol=0.35, rtol=0)  # a = -0.75 isn't exact on lines
    torch.testing.assert_close(columns, columns.flip(0))


def test_interpolation_equals_torch() -> None:
    embeddings = torch.randn(1, GRID * GRID, 5)
    grid = embeddings.reshape(1, GRID, GRID, 5).permute(0, 3, 1, 2)
    expected = F.interpolate(grid, size=(16, 16), mode="bicubic").permute(0, 2, 3, 1).reshape(1, 256, 5)
    torch.testing.assert_close(interpolation_matrix(16) @ embeddings, expected, atol=1e-5, rtol=1e-4)


def test_the_conversion_of_images_identifies_a_run_and_the_cached_features() -> None:
    options: list[dict[str, Any]] = [{}, {"size": 32}, {"mean": (0.4,) * 3}, {"std": (0.5,) * 3}]
    builds = [partial(made, MobileNetV2, **chosen) for chosen in options]
    identities = [identify_task(replace(make_task(), networks={"norm": build}), {}) for build in builds]
    assert len({identity.model_dump_json() for identity in identities}) == len(options)
    assert identify_task(replace(make_task(), networks={"norm": builds[0]}), {}) == identities[0]
    assert len({repr(build().body) for build in builds}) == len(options)
    assert identify_task(make_task(), {}).network_facts is None
