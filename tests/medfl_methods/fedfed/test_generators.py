"""Generators: sizes from 4 to 224 pixels, bounded numbers of weights, randomness, and learning."""

from __future__ import annotations

import pytest
import torch
from refusals import refused
from resnet_toys import numbers
from torch import nn

from medfl.errors import SettingsError
from medfl.networks.norms import has_batch_norm
from medfl_methods.fedfed.generator_layers import DoublingConv, HalvingConv, halve_edges
from medfl_methods.fedfed.generators import GENERATOR_KINDS, VAE, ResidualGenerator, build_generator

NETWORKS = {"vae": "VAE", "resnet": "ResidualGenerator"}

PLANES = [(1, 4, 4), (3, 6, 6), (1, 28, 28), (2, 31, 31), (1, 64, 64), (3, 224, 224), (1, 4, 65), (1, 9, 33)]
VOLUMES = [(1, 6, 6, 6), (2, 28, 28, 28), (1, 40, 40, 40), (1, 5, 9, 17)]
SHAPES = [*PLANES, *VOLUMES]


def pictures(n: int, *shape: int) -> torch.Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))


def tiny(kind: str, shape: tuple[int, ...], norm: str = "batch", latent: int = 5, width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return build_generator(kind, shape, latent, width, norm)


def counted(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", GENERATOR_KINDS)
def test_reconstructions_have_the_shape_of_the_images(kind, shape):
    model = tiny(kind, shape, width=2)
    reconstructed = model(pictures(2, *shape))
    assert reconstructed.images.shape == (2, *shape)
    assert reconstructed.images.dtype == torch.float32
    assert ((reconstructed.images > 0) & (reconstructed.images < 1)).all()
    numbers_of_latent = [reconstructed.mean, reconstructed.log_variance, reconstructed.latent]
    if kind == "vae":
        assert [tuple(part.shape) for part in numbers_of_latent] == [(2, 5)] * 3
    else:
        assert numbers_of_latent == [None] * 3


@pytest.mark.parametrize(
    ("shape", "halvings", "positions"),
    [
        ((1, 4, 4), 1, 2 * 2),
        ((1, 16, 16), 1, 8 * 8),
        ((1, 28, 28), 2, 7 * 7),
        ((3, 32, 32), 2, 8 * 8),
        ((1, 33, 20), 3, 5 * 3),
        ((1, 64, 64), 3, 8 * 8),
        ((1, 224, 224), 5, 7 * 7),
        ((1, 4, 224), 5, 1 * 7),
        ((1, 28, 28, 28), 3, 4**3),
        ((1, 40, 40, 40), 4, 3**3),
    ],
    ids=str,
)
def test_the_linear_layers_see_a_small_map(shape, halvings, positions):
    model = VAE(shape, latent=3, width=4)
    assert sum(isinstance(layer, HalvingConv) for layer in model.encoder) == halvings
    assert sum(isinstance(layer, DoublingConv) for layer in model.decoder) == halvings
    assert model.to_mean.in_features == model.back.out_features == 4 * positions


def test_weights_stay_bounded_whatever_the_size():
    """The linear layers are bounded. Each further halving adds a convolution and its transpose, with two norms."""
    width, latent = 6, 7
    for dims, edges in ((2, (32, 57, 100, 224, 500)), (3, (16, 20, 40, 100))):
        before = None
        for edge in edges:
            model = VAE((1, *[edge] * dims), latent, width)
            linear = sum(counted(layer) for layer in (model.to_mean, model.to_log_variance, model.back))
            assert linear <= 3 * 64 * width * latent + 2 * latent + 64 * width
            now = (sum(isinstance(layer, HalvingConv) for layer in model.encoder), counted(model) - linear)
            if before is not None:
                more = now[0] - before[0]
                assert now[1] - before[1] == more * (2 * 4**dims * width**2 + 2 * 2 * width)
            before = now
    assert counted(ResidualGenerator((1, 28, 28))) == counted(ResidualGenerator((1, 224, 224)))
    assert counted(VAE((1, 28, 28, 28), 512)) < 4e6


def test_known_numbers_at_fedfeds_size():
    """Convolutions and linear layers of FedFed at 32 pixels, with d = 32 and 2048 latent variables."""
    model = VAE((3, 32, 32), 2048)
    convolutions = [p.numel() for p in model.parameters() if p.dim() == 4]
    halving, block = [3 * 16 * 16, 16 * 32 * 16], [32 * 32 * 9, 32 * 32]
    assert convolutions == [*halving, *block, *block, *block, *block, *reversed(halving)]
    assert [p.numel() for p in model.parameters() if p.dim() == 2] == [2048 * 2048] * 3


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("kind", GENERATOR_KINDS)
def test_in_evaluation_nothing_is_random_and_each_image_is_for_itself(kind, norm):
    model, images = tiny(kind, (1, 9, 12), norm).eval(), pictures(4, 1, 9, 12)
    reconstructed = model(images)
    assert torch.equal(reconstructed.images, model(images).images)
    assert torch.allclose(reconstructed.images[1:2], model(images[1:2]).images, atol=1e-6)
    if kind == "vae":
        assert torch.equal(reconstructed.latent, reconstructed.mean)
        assert torch.equal(reconstructed.images, model.decode(reconstructed.mean))


def test_in_training_the_latent_is_a_sample():
    """latent = mean + exp(log variance / 2) * standard normal numbers of torch's global generator."""
    model, images = tiny("vae", (1, 8, 8), "group"), pictures(3, 1, 8, 8)
    torch.manual_seed(5)
    first = model(images)
    torch.manual_seed(5)
    drawn = torch.randn(3, 5)
    assert torch.allclose(first.latent, first.mean + torch.exp(first.log_variance / 2) * drawn, atol=1e-6)
    assert not torch.equal(model(images).images, first.images)
    mean, log_variance = model.encode(images)
    assert torch.equal(mean, first.mean)
    assert torch.equal(log_variance, first.log_variance)


@pytest.mark.parametrize("kind", GENERATOR_KINDS)
def test_with_group_norm_each_image_is_for_itself_in_training_too(kind):
    model, images = tiny(kind, (2, 10, 10), "group").train(), pictures(4, 2, 10, 10)
    assert not has_batch_norm(model)
    assert has_batch_norm(tiny(kind, (2, 10, 10)))

    def found(batch: torch.Tensor) -> torch.Tensor:
        return model.decode(model.encode(batch)[0]) if kind == "vae" else model(batch).images

    assert torch.allclose(found(images[:1]), found(images)[:1], atol=1e-6)


@pytest.mark.parametrize("kind", GENERATOR_KINDS)
def test_brightness_is_not_lost_in_groups(kind):
    """Group normalisation without bias would map an image and a copy of half the brightness to the same result."""
    model, images = tiny(kind, (1, 9, 9), "group", width=8).eval(), pictures(3, 1, 9, 9)
    bright, dark = model(images).images, model(images / 2).images
    assert (bright - dark).abs().amax((1, 2, 3)).min() > 1e-3


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 4, 4, 4)], ids=str)
@pytest.mark.parametrize("kind", GENERATOR_KINDS)
def test_one_smallest_image_is_enough_for_training(kind, shape, norm):
    model = tiny(kind, shape, norm).train()
    model(pictures(1, *shape)).images.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", GENERATOR_KINDS)
def test_gradients_by_the_image_can_be_differentiated_again(kind):
    """An attack that optimises an image through a generator needs second derivatives, so no layer works in place."""
    model, images = tiny(kind, (1, 6, 6), "group").double().eval(), pictures(2, 1, 6, 6).double().requires_grad_()
    (slope,) = torch.autograd.grad(model(images).images.square().sum(), images, create_graph=True)
    (bend,) = torch.autograd.grad(slope.square().sum(), images)
    assert bend.isfinite().all()
    step = 1e-6 * numbers(2, 1, 6, 6).double()

    def squared_slope(at: torch.Tensor) -> float:
        at = at.detach().requires_grad_()
        (slope_at,) = torch.autograd.grad(model(at).images.square().sum(), at)
        return float(slope_at.square().sum())

    expected = (squared_slope(images + step) - squared_slope(images - step)) / 2
    assert float((bend * step).sum()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("edge", range(1, 10))
def test_maps_of_any_size_are_halved_and_doubled(edge):
    x = numbers(2, 3, edge, 6)
    down, up = HalvingConv(2, 3, 4, bias=True), DoublingConv(4, 3, (edge, 6), bias=True)
    maps = down(x)
    assert list(maps.shape[2:]) == halve_edges([edge, 6]) == [-(-edge // 2), 3]
    assert up(maps).shape == x.shape
    padded = torch.cat([x, torch.zeros(2, 3, edge % 2, 6)], dim=2)
    assert torch.equal(maps, nn.functional.conv2d(padded, down.conv.weight, down.conv.bias, stride=2, padding=1))


@pytest.mark.parametrize("kind", GENERATOR_KINDS)
@pytest.mark.parametrize(
    ("shape", "code", "size"),
    [
        ((28, 28), "wrong_shape", [28, 28]),
        ((1, 8, 8, 8, 8), "wrong_shape", [1, 8, 8, 8, 8]),
        ((0, 8, 8), "wrong_shape", [0, 8, 8]),
        ((1, 3, 28), "image_too_small", [3, 28]),
        ((1, 8, 8, 2), "image_too_small", [8, 8, 2]),
    ],
    ids=str,
)
def test_impossible_shapes_are_named(kind, shape, code, size):
    with refused(SettingsError, code, network=NETWORKS[kind], found=size):
        build_generator(kind, shape, 5)


@pytest.mark.parametrize("kind", GENERATOR_KINDS)
def test_impossible_options_are_named(kind):
    with refused(SettingsError, "setting_out_of_range", network=NETWORKS[kind], setting="width", minimum=2, found=1):
        build_generator(kind, (1, 8, 8), 5, width=1)
    with refused(SettingsError, "unknown_choice", what=f"norm of {NETWORKS[kind]}", choice="groop"):
        build_generator(kind, (1, 8, 8), 5, norm="groop")
    with refused(SettingsError, "wrong_shape", expected=[1, 8, 8], found=[2, 1, 8, 9]):
        tiny(kind, (1, 8, 8))(pictures(2, 1, 8, 9))


def test_other_impossible_options_are_named():
    with refused(SettingsError, "setting_out_of_range", network="VAE", setting="latent", minimum=1, found=0):
        VAE((1, 8, 8), 0)
    with refused(
        SettingsError, "setting_out_of_range", network="ResidualGenerator", setting="blocks", minimum=1, found=0
    ):
        ResidualGenerator((1, 8, 8), blocks=0)
    with refused(SettingsError, "unknown_choice", what="generator", choice="gan"):
        build_generator("gan", (1, 8, 8), 5)
