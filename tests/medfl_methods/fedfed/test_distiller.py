"""Distiller network: inputs of generator and classifier, in the normalisation of the task (O-TP-1)."""

import pytest
import torch
from torch import nn

from medfl.data.pooled import TensorData
from medfl.task import ImageScale
from medfl_methods.fedfed.distiller import Distiller, SharedPart
from medfl_methods.fedfed.distiller_training import evaluate_distiller, reconstruction_errors
from medfl_methods.fedfed.generators import GeneratorOutput, build_generator

SCALE = ImageScale((3, 6, 6), (0.4, 0.5, 0.6), (0.2, 0.25, 0.5))
SHAPES = [(1, 6, 6), (3, 7, 5), (1, 8, 8, 8)]


class Times(nn.Module):
    """Generator whose reconstruction is a fraction of the image."""

    def __init__(self, share):
        super().__init__()
        self.share = nn.Parameter(torch.tensor(share))

    def forward(self, images):
        return GeneratorOutput(self.share * images)


class Seen(nn.Module):
    """Classifier whose logits are the channel means of its input."""

    def forward(self, images):
        return images.flatten(2).mean(2)


def test_parts_and_images_are_seen_as_the_task_normalises_them():
    """Residuals are normalised without the mean: the difference of two normalised images is a normalised residual."""
    torch.manual_seed(0)
    model = Distiller(Times(0.3), Seen(), SCALE)
    x, y = torch.rand(2, 4, 3, 6, 6)
    mean, std = torch.tensor(SCALE.mean), torch.tensor(SCALE.std)
    torch.testing.assert_close(model.classify_images(x), (x.flatten(2).mean(2) - mean) / std)
    torch.testing.assert_close(model.classify(x), x.flatten(2).mean(2) / std)
    torch.testing.assert_close(model.classify(x - y), model.classify_images(x) - model.classify_images(y))
    torch.testing.assert_close(model.classify_both(x, y), torch.cat([model.classify(x), model.classify_images(y)]))


def test_a_batch_norm_sees_parts_and_images_together():
    classifier = nn.Sequential(nn.BatchNorm2d(3, affine=False), Seen())
    model = Distiller(Times(0.3), classifier, SCALE)
    logits = model.classify_both(torch.zeros(2, 3, 6, 6), torch.rand(2, 3, 6, 6))
    torch.testing.assert_close(logits.mean(0), torch.zeros(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["vae", "resnet"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tp_1_private_and_shared_part_make_the_image(kind, shape):
    torch.manual_seed(1)
    model = Distiller(build_generator(kind, shape, 4, 2), nn.Flatten(), ImageScale(shape))
    images = torch.rand(3, *shape)
    part = SharedPart(model, "x_p")(images)
    torch.testing.assert_close(model.generator(images).images + part, images, atol=1e-6, rtol=0)
    torch.testing.assert_close(SharedPart(model, "x_s")(images), part)
    assert part.abs().max() > 0.01


def test_tp_1_a_perfect_generator_shares_nothing_and_a_zero_one_all():
    images = torch.rand(2, 3, 6, 6)
    assert SharedPart(Distiller(Times(1.0), Seen(), SCALE), "x_p")(images).abs().max() == 0
    assert torch.equal(SharedPart(Distiller(Times(0.0), Seen(), SCALE), "x_s")(images), images)
    assert torch.equal(SharedPart(Distiller(Times(1.0), Seen(), SCALE), "raw+noise")(images), images)


def test_what_is_shared_stays_in_evaluation_mode():
    """The latent is the mean, the residual of an image does not depend on its batch, and statistics do not change."""
    torch.manual_seed(2)
    model = Distiller(build_generator("vae", (1, 6, 6), 4, 2), nn.Flatten(), ImageScale((1, 6, 6)))
    part, images = SharedPart(model.train(), "x_p").train(), torch.rand(4, 1, 6, 6)
    statistics = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    together = part(images)
    assert torch.equal(together, part(images))
    torch.testing.assert_close(together[1:2], part(images[1:2]))
    assert all(torch.equal(statistics[name], tensor) for name, tensor in model.state_dict().items())


def test_an_attacker_gets_gradients_by_the_image_but_moves_no_parameter():
    model = Distiller(Times(0.25), Seen(), SCALE)
    images = torch.rand(1, 3, 6, 6, requires_grad=True)
    SharedPart(model, "x_p")(images).sum().backward()
    torch.testing.assert_close(images.grad, torch.full_like(images, 0.75))
    assert model.generator.share.grad is None


def mixed_data(count):
    """Return a data set of normalised images, and the same images in [0, 1]."""
    raw = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(5))
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (SCALE.mean, SCALE.std))
    return TensorData((raw - mean) / std, torch.arange(count) % 3), raw


@pytest.mark.parametrize("batch_size", [1, 2, 5, 99])
def test_a_judgement_is_a_mean_over_images_however_they_are_batched(batch_size):
    """Shared and private part have the same direction, so |cos| is 1 for every batch size."""
    data, raw = mixed_data(5)
    model = Distiller(Times(0.25), Seen(), SCALE)
    right = (0.75 * raw / torch.tensor(SCALE.std).view(3, 1, 1)).flatten(2).mean(2).argmax(1) == data.class_labels
    accuracy, cosine = evaluate_distiller(model, data, SCALE, batch_size, "cpu")
    assert accuracy == pytest.approx(float(right.double().mean()))
    assert cosine == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 99])
def test_errors_are_means_over_images_and_say_which_is_the_generators(batch_size):
    data, raw = mixed_data(5)
    usual = torch.full((3, 6, 6), 0.5)
    reconstructed, same = reconstruction_errors(Distiller(Times(0.25), Seen(), SCALE), data, usual, SCALE, batch_size)
    assert reconstructed == pytest.approx(float((0.75 * raw).square().mean()), rel=1e-5)
    assert same == pytest.approx(float((raw - 0.5).square().mean()), rel=1e-5)
