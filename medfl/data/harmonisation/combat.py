"""ComBat without covariates: an affine map of each feature and site, from sums that the sites send to a server.

A site sends the number of its images, and two sums for each feature (`FeatureSums`). The server pools them
(`pool_sums`). From its own sums and the pooled moments, each site computes its own map (`fit_map`). The result equals
ComBat on the concatenated features of all sites.

For site s and feature g, with the grand mean alpha_g and the pooled variance sigma_g^2 of the deviations from the
sites' own means, z = (x - alpha_g) / sigma_g has the site's mean gamma_sg and variance delta_sg. Empirical Bayes
shrinks both towards their values for the site's other features. Harmonised features are::

    x' = sigma_g (z - gamma*_sg) / sqrt(delta*_sg) + alpha_g

n is the number of a site's images and d the number of features.

Sources: Johnson, Li, Rabinovic, Biostatistics 2007, for the estimates (parametric priors); Chen et al., NeuroImage
2022, for their computation from sums of the sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from medfl.errors import DataError

TOLERANCE = 1e-8
"""Maximum change of an estimate in the last iteration: absolute for gamma, relative for delta."""

MAX_ITERATIONS = 1000
"""Maximum number of iterations; about ten are usual."""

RESOLUTION = 1e-6
"""Standard deviation of a feature, relative to its mean, up to which it counts as constant: rounding of float32."""


@dataclass(frozen=True)
class FeatureSums:
    """Sums over the features of a site's training images, which the site sends to the server.

    Attributes:
        count: Number of images.
        total: Sum of each feature, (d,), float64.
        squares: Sum of squared deviations of each feature from the site's mean, (d,), float64.
    """

    count: int
    total: torch.Tensor
    squares: torch.Tensor

    @property
    def mean(self) -> torch.Tensor:
        """Mean of each feature, (d,)."""
        return self.total / self.count

    @property
    def varies(self) -> torch.Tensor:
        """True for each feature that varies over the site's images, (d,), bool."""
        return (self.squares / self.count).sqrt() > RESOLUTION * self.mean.abs()


@dataclass(frozen=True)
class PooledMoments:
    """Moments of the features of all sites, which the server sends to each site.

    Attributes:
        mean: Grand mean of each feature over all images, (d,), float64.
        variance: Mean over all images of the squared deviation from the mean of the image's site, (d,), float64.
        varies: Whether a feature varies at every site, (d,), bool. The others are not harmonised.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    varies: torch.Tensor


@dataclass(frozen=True)
class FeatureMap:
    """Map of a site from its features x to harmonised features, ``scale * x + shift``.

    Attributes:
        scale: Factor of each feature, (d,), float64, > 0.
        shift: Summand of each feature, (d,), float64.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def harmonise(self, features: torch.Tensor) -> torch.Tensor:
        """Return the harmonised features (n, d), of the same type as the features (n, d)."""
        return (features.double() * self.scale + self.shift).to(features.dtype)

    def fold(self, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight and bias of a linear layer that takes features as they are, and has the same outputs.

        Args:
            weight: Weight (K, d) of a linear layer that takes harmonised features.
            bias: Its bias (K,).
        """
        weight_64 = weight.double()
        return (weight_64 * self.scale).to(weight.dtype), (bias.double() + weight_64 @ self.shift).to(bias.dtype)


def compute_sums(features: torch.Tensor) -> FeatureSums:
    """Return the sums of a site's features (n, d), n >= 2."""
    values = features.double()
    total = values.sum(0)
    return FeatureSums(len(values), total, (values - total / len(values)).square().sum(0))


def pool_sums(sites: Sequence[FeatureSums]) -> PooledMoments:
    """Return the moments of the features of all sites, from the sums of each site."""
    count = sum(site.count for site in sites)
    mean = torch.stack([site.total for site in sites]).sum(0) / count
    variance = torch.stack([site.squares for site in sites]).sum(0) / count
    return PooledMoments(mean, variance, torch.stack([site.varies for site in sites]).all(0))


def fit_map(own: FeatureSums, pooled: PooledMoments) -> FeatureMap:
    """Return the map of a site.

    Args:
        own: Sums of the site.
        pooled: Moments of all sites. A site that joined a run later is not included.

    Raises:
        DataError: If a feature is constant at this site and varies at the others, or the estimates don't converge.
    """
    chosen = pooled.varies
    if constant := int((chosen & ~own.varies).sum()):
        raise DataError(
            "constant_features",
            f"Expected features that vary at this site as at the sites that are harmonised with it; {constant} of "
            f"{len(chosen)} features are equal for all its training images. Train without harmonisation of features, "
            "without this site, or with another encoder.",
            constant=constant,
            features=len(chosen),
        )
    alpha, sigma = pooled.mean[chosen], pooled.variance[chosen].sqrt()
    gamma = (own.mean[chosen] - alpha) / sigma
    delta = own.squares[chosen] / (own.count - 1) / sigma.square()
    if len(gamma) > 1:  # otherwise there is no other feature to shrink towards
        gamma, delta = _shrink(gamma, delta, own.count)
    scale, shift = torch.ones_like(pooled.mean), torch.zeros_like(pooled.mean)
    scale[chosen] = delta.rsqrt()
    shift[chosen] = alpha - (alpha + sigma * gamma) * delta.rsqrt()
    return FeatureMap(scale, shift)


def _shrink(gamma_hat: torch.Tensor, delta_hat: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the posterior estimates gamma* and delta* of a site, by the iteration of Johnson et al.

    The priors are a normal distribution of gamma and an inverse gamma distribution of delta over the features. Their
    means and variances are those of `gamma_hat` and `delta_hat`. In the formula for delta, numerator and denominator
    are multiplied by the variance of `delta_hat`. If it is 0, all features get the prior's mean.

    Args:
        gamma_hat: Means of the site's standardised features, (d,), d >= 2.
        delta_hat: Their variances, (d,), > 0.
        count: Number of images of the site.
    """
    prior_mean, prior_variance = gamma_hat.mean(), gamma_hat.var()
    delta_mean, delta_variance = delta_hat.mean(), delta_hat.var()
    gamma, delta = gamma_hat, delta_hat
    for _ in range(MAX_ITERATIONS):
        last_gamma, last_delta = gamma, delta
        gamma = (count * prior_variance * gamma_hat + delta * prior_mean) / (count * prior_variance + delta)
        squares = (count - 1) * delta_hat + count * (gamma_hat - gamma).square()
        delta = (delta_variance * (squares / 2 + delta_mean) + delta_mean**3) / (
            delta_variance * (count / 2 + 1) + delta_mean**2
        )
        if max((gamma - last_gamma).abs().max(), ((delta - last_delta) / last_delta).abs().max()) < TOLERANCE:
            return gamma, delta
    raise DataError(
        "not_converged",
        f"Expected ComBat's estimates for the features of a site to converge within {MAX_ITERATIONS} iterations. "
        "Train without harmonisation of features, or with another encoder.",
        iterations=MAX_ITERATIONS,
    )
