"""The fixed-point attack on generators whose inverse is known (oracle O-TP-11)."""

import torch
from torch import nn

from medfl_attacks.image_metrics import compare_images
from medfl_attacks.inversion.decoder import invert_by_fixed_point


class Part(nn.Module):
    """Shared part x - factor x, or with a power x - factor (1 - x)."""

    def __init__(self, factor, turned=False):
        super().__init__()
        self.factor, self.turned = factor, turned

    def forward(self, images):
        return images - self.factor * ((1 - images) if self.turned else images)


X = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def test_without_a_generator_the_item_is_the_image():
    part = Part(0.0)
    images, converged = invert_by_fixed_point(part(X), part)
    assert torch.equal(images, X)
    assert bool(converged.all())


def test_a_contraction_leads_back_to_the_image():
    part = Part(0.5)
    images, converged = invert_by_fixed_point(part(X), part)
    assert float((images - X).abs().max()) < 1e-4
    assert bool(converged.all())


def test_what_is_no_contraction_does_not_converge_and_keeps_the_best_place():
    part = Part(1.5, turned=True)  # q(x) = 1.5 (1 - x): the iteration jumps between two ends
    images, converged = invert_by_fixed_point(part(X), part)
    assert not bool(converged.any())
    misfit = (part(images) - part(X)).square().flatten(1).mean(dim=1)
    started = (part(part(X).clamp(0, 1)) - part(X)).square().flatten(1).mean(dim=1)
    assert bool((misfit <= started).all())


def test_noise_makes_it_worse():
    part = Part(0.5)
    noise = 0.25**0.5 * torch.randn(X.shape, generator=torch.Generator().manual_seed(1))
    clean, noisy = (invert_by_fixed_point(items, part)[0] for items in (part(X), part(X) + noise))
    assert bool((compare_images(noisy, X).mse > 100 * compare_images(clean, X).mse).all())


def test_a_generator_that_diverged_leaves_finite_images():
    class Broken(nn.Module):
        def forward(self, images):
            return images * torch.nan

    guesses, converged = invert_by_fixed_point(X, Broken())
    assert bool(guesses.isfinite().all())
    assert not bool(converged.any())
