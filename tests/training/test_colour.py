"""Tests of colour augmentation: closed forms, and valid pixel values."""

from __future__ import annotations

import pytest
import torch
from refusals import refused

from medfl.errors import SettingsError
from medfl.training.augment import Augmentation
from medfl.training.colour import LUMA, RandColourd

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def normalised(image: torch.Tensor) -> torch.Tensor:
    return (image - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def changed(image: torch.Tensor, seed: int = 0, **options) -> torch.Tensor:
    """Return the augmented image in [0, 1] for an image in [0, 1]."""
    transform = RandColourd(["image"], MEAN, STD, **options)
    transform.set_random_state(seed)
    item = transform({"image": normalised(image), "label": 3})
    assert item["label"] == 3
    return item["image"] * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]


def grey(image: torch.Tensor) -> torch.Tensor:
    return torch.einsum("c,chw->hw", torch.tensor(LUMA), image)


def test_without_strength_nothing_changes():
    assert torch.allclose(changed(pixels(3, 4, 5)), pixels(3, 4, 5), atol=1e-6)


def test_grey_has_one_value_in_all_channels_the_pixels_brightness():
    image = changed(pixels(3, 4, 5), grey=1.0)
    assert torch.allclose(image, grey(pixels(3, 4, 5)).expand(3, -1, -1), atol=1e-6)


def test_a_share_of_the_images_loses_its_colour():
    lost = sum(bool((changed(pixels(3, 2, 2), seed, grey=0.25).std(dim=0) < 1e-5).all()) for seed in range(400))
    assert lost / 400 == pytest.approx(0.25, abs=0.07)


def test_brightness_multiplies_by_a_factor_in_its_range():
    image = 0.1 + 0.5 * pixels(3, 4, 5)  # nothing is cut off
    ratios = torch.stack([changed(image, seed, brightness=0.4) / image for seed in range(60)])
    factors = ratios.flatten(1).mean(dim=1)
    assert torch.allclose(ratios, factors[:, None, None, None].expand_as(ratios), rtol=1e-4)
    assert 0.6 <= factors.min() < 0.7
    assert 1.3 < factors.max() <= 1.4


def test_contrast_scales_around_the_mean_brightness_and_saturation_around_each_pixels():
    image = 0.3 + 0.4 * pixels(3, 4, 5)
    for options, centre in (({"contrast": 0.5}, grey(image).mean()), ({"saturation": 0.5}, grey(image)[None])):
        ratios = (changed(image, 1, **options) - centre) / (image - centre)
        assert ratios.std() < 1e-3
        assert abs(float(ratios.mean()) - 1) > 0.01


def test_images_stay_between_0_and_1():
    images = torch.stack(
        [changed(pixels(3, 4, 5), seed, brightness=1.0, contrast=1.0, saturation=1.0) for seed in range(20)]
    )
    assert -1e-6 <= images.min() < 0.01
    assert 0.99 < images.max() <= 1 + 1e-6


@pytest.mark.parametrize("shape", [(1, 4, 5), (1, 3, 4, 5)])
def test_images_of_one_channel_have_no_colour_to_lose(shape):
    transform = RandColourd(["image"], saturation=1.0, grey=0.5)
    image = 2 * pixels(*shape) - 1
    assert torch.allclose(transform({"image": image})["image"], image, atol=1e-6)


def test_in_an_augmentation_it_draws_from_the_streams_numbers():
    def run(seed: int, strength: float = 0.3) -> torch.Tensor:
        from monai.transforms import Compose

        augment = Augmentation(Compose([RandColourd(["image"], MEAN, STD, brightness=strength, grey=0.5)]))
        assert augment.facts["0"]["strengths"] == repr((strength, 0.0, 0.0))
        return augment(normalised(pixels(3, 4, 5)).expand(4, -1, -1, -1), None, torch.Generator().manual_seed(seed))[0]

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert len({float(image.sum()) for image in run(0)}) == 4, "each image on its own"


@pytest.mark.parametrize("options", [{"brightness": 1.5}, {"grey": -0.1}])
def test_impossible_strengths_are_named(options):
    with refused(SettingsError, "setting_out_of_range", settings=["strengths", "grey"], minimum=0, maximum=1):
        RandColourd(["image"], **options)
