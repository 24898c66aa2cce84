"""Sampler of the discrete Gaussian: integers k with probabilities proportional to exp(-k^2 / (2 sigma^2)).

The sampler draws by rejection from a discrete Laplace distribution (Canonne, Kamath, Steinke, "The Discrete Gaussian
for Differential Privacy", NeurIPS 2020, algorithms 2 and 3). It computes in float64 instead of the paper's fractions:
as everywhere in medfl, the guarantee holds for real numbers.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from medfl.utils.rng import SecretStream


def discrete_gaussian(sigma: float, count: int, stream: SecretStream) -> torch.Tensor:
    """Draw independent samples of the discrete Gaussian.

    Args:
        sigma: Parameter of the distribution, in [1, 2^40). For these values it equals the standard deviation to many
            digits.
        count: Number of samples.
        stream: Secret stream of the site. The same stream gives the same samples.

    Returns:
        Samples, shape (count,), int64.

    Raises:
        ValueError: If sigma is out of range.
    """
    if not 1 <= sigma < 2**40:
        raise ValueError(f"expected a sigma in [1, 2^40), got {sigma}")
    scale = math.floor(sigma) + 1
    parts: list[np.ndarray] = []
    missing = count
    while missing > 0:
        size = int(missing * 1.4) + 16  # about 0.76 of them are accepted
        laplace = _discrete_laplace(scale, size, stream)
        exponent = (np.abs(laplace) - sigma**2 / scale) ** 2 / (2 * sigma**2)
        accepted = laplace[stream.uniform((size,)).numpy() < np.exp(-exponent)]
        parts.append(accepted[:missing])
        missing -= len(parts[-1])
    return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))


def _discrete_laplace(scale: int, size: int, stream: SecretStream) -> np.ndarray:
    """Draw integers k with probabilities proportional to exp(-|k| / scale): differences of two geometric samples."""
    first, second = (np.floor(-scale * np.log(stream.uniform((size,)).numpy())) for _ in range(2))
    difference: np.ndarray = (first - second).astype(np.int64)
    return difference
