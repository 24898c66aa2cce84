"""Attacks by gradient descent on models whose inverse is known in closed form."""

import pytest
import torch
from torch import nn

from medfl.privacy.release import ImageRelease
from medfl.settings import SecureAggregation
from medfl.utils.rng import SecretStream
from medfl_attacks.image_metrics import compare_images
from medfl_attacks.inversion.gradient import (
    DEFAULT_SMOOTHNESS,
    batch_gradient,
    invert_classes,
    invert_items,
    invert_update,
    smoothness_for,
    total_variation,
)
from medfl_attacks.inversion.targets import mask_update


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


X = torch.rand(1, 1, 6, 6, generator=generator())


def softmax_model():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator(1)))
    return model


def test_the_gradient_of_a_linear_model_holds_the_image():
    """Row c of the weights' gradient is (p_c - y_c) x, and the bias' gradient is p_c - y_c.

    Their ratio is the image.
    """
    model, label = softmax_model(), torch.tensor([2])

    def gradient(images):
        return batch_gradient(model, nn.functional.cross_entropy, images, label)

    true = {name: tensor.detach() for name, tensor in gradient(X).items()}
    ratio = (true["1.weight"][2] / true["1.bias"][2]).view(1, 1, 6, 6)
    torch.testing.assert_close(ratio, X)
    update = {name: -0.1 * tensor for name, tensor in true.items()}  # a step of SGD; its length does not matter
    image = invert_update(update, gradient, torch.full_like(X, 0.5), 0.0, 100)
    assert float(compare_images(image, X).mse) < 1e-3
    noisy = {name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator(2)) for name, tensor in update.items()}
    worse = invert_update(noisy, gradient, torch.full_like(X, 0.5), 0.0, 100)
    assert float(compare_images(worse, X).mse) > 10 * float(compare_images(image, X).mse)


@pytest.mark.parametrize("bits", [32, pytest.param(40, marks=pytest.mark.slow)])
def test_a_masked_update_is_worth_no_more_than_noise(bits):
    """Over ten masks the reconstruction error is as large as for noise, and far larger than for the unmasked update."""
    model, label = softmax_model(), torch.tensor([2])

    def gradient(images):
        return batch_gradient(model, nn.functional.cross_entropy, images, label)

    update = {name: -0.1 * tensor.detach() for name, tensor in gradient(X).items()}

    def error(sent):
        return float(compare_images(invert_update(sent, gradient, torch.full_like(X, 0.5), 0.0, 100), X).mse)

    secure = SecureAggregation(threshold=3, bits=bits)
    streams = [SecretStream(b"a secret of a site", number) for number in range(10)]
    hidden = [error(mask_update(update, secure, 1.0, stream)) for stream in streams]
    noise = [
        error({name: torch.rand(t.shape, generator=generator(number)) - 0.5 for name, t in update.items()})
        for number in range(10)
    ]
    assert error(update) < 1e-3
    assert min(hidden) > 0.01
    assert sum(hidden) / sum(noise) == pytest.approx(1.0, abs=0.35)


class Half(nn.Module):
    def forward(self, images):
        return images - 0.5 * images


@pytest.mark.parametrize("clip", [None, 1.0])
def test_items_without_noise_lead_back_to_the_image(clip):
    release = ImageRelease("none", 0.0, clip)
    item = release.apply(Half()(X), SecretStream(b"0" * 16))
    image = invert_items(item, Half(), release, torch.full((1, 6, 6), 0.5), 0.0, 120)
    if clip is None:
        assert float(compare_images(image, X).mse) < 1e-4
    else:  # the length is lost, the direction is not
        assert float(torch.cosine_similarity(image.flatten(), X.flatten(), dim=0)) > 0.999


def test_noise_makes_it_worse_and_the_usual_image_is_what_remains():
    prior = torch.full((1, 6, 6), 0.3)
    release = ImageRelease("gaussian", 0.25, None)
    items = {"clean": Half()(X), "noisy": release.apply(Half()(X), SecretStream(b"0" * 16))}
    images = {name: invert_items(item, Half(), None, prior, DEFAULT_SMOOTHNESS, 80) for name, item in items.items()}
    assert float(compare_images(images["noisy"], X).mse) > 10 * float(compare_images(images["clean"], X).mse)
    lost = invert_items(items["noisy"] * 0 + 0.15, Half(), release, prior, 100.0, 50)  # 0.15 is the usual image's part
    torch.testing.assert_close(lost[0], prior, atol=1e-3, rtol=0)


def test_smoothness_grows_with_the_noise():
    assert smoothness_for(0.0) == DEFAULT_SMOOTHNESS
    assert smoothness_for(0.25) == pytest.approx(0.6)


def test_a_linear_class_is_its_positive_weights():
    """The image is the sign of w_c minus the mean of the other weights, along which log p grows in a linear model."""
    model = softmax_model()
    with torch.no_grad():
        model[1].weight[1:] = 0
    images = invert_classes(model, torch.full((3, 1, 6, 6), 0.5), 0.0, 150)
    assert torch.equal(images[0].flatten().round(), (model[1].weight[0] > 0).float())


def test_total_variation_of_images_and_volumes():
    ramp = torch.linspace(0, 1, 5).view(1, 1, 1, 5)
    torch.testing.assert_close(total_variation(ramp.expand(1, 2, 4, 5)), torch.tensor([0.25]))
    torch.testing.assert_close(total_variation(ramp.unsqueeze(2).expand(1, 1, 3, 4, 5)), torch.tensor([0.25]))
    assert total_variation(torch.rand(2, 1, 1, 1)).tolist() == [0, 0]
