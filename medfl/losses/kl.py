"""Divergence of a latent from the standard normal distribution."""

from __future__ import annotations

import torch


def kl_to_standard_normal(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    """KL(N(mean, variance) || N(0, 1)), the mean over images and latent numbers.

    Of one number it is (mean^2 + variance - 1 - log variance) / 2.

    Args:
        mean: Shape (B, d).
        log_variance: Natural logarithm of the variance, the same shape.

    Returns:
        A scalar, >= 0; 0 for mean 0 and variance 1.

    Source: Kingma and Welling, ICLR 2014. FedFed's code divides by three times as many elements.
    """
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
