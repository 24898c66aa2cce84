"""The discrete Gaussian: whole numbers k with probabilities proportional to exp(-k^2 / (2 sigma^2)).

By rejection from a discrete Laplace distribution (Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential
Privacy", NeurIPS 2020, algorithms 2 and 3), in float64 where the paper has fractions: as everywhere in medfl the
guarantee is one for real numbers.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from medfl.utils.rng import SecretStream


def discrete_gaussian(sigma: float, count: int, stream: SecretStream) -> torch.Tensor:
    """Independent draws.

    Args:
        sigma: The parameter, >= 1 and below 2^40; for such sigma also the standard deviation, to many digits.
        count: How many.
        stream: The site's own; the same stream gives the same draws.

    Returns:
        (count,), int64.

    Raises:
        ValueError: If sigma is out of range.
    """
    if not 1 <= sigma < 2**40:
        raise ValueError(f"expected a sigma in [1, 2^40), got {sigma}")
    scale = math.floor(sigma) + 1
    parts: list[np.ndarray] = []
    missing = count
    while missing > 0:
        size = int(missing * 1.4) + 16  # about 0.76 of them are taken
        laplace = _discrete_laplace(scale, size, stream)
        far = (np.abs(laplace) - sigma**2 / scale) ** 2 / (2 * sigma**2)
        taken = laplace[stream.uniform((size,)).numpy() < np.exp(-far)]
        parts.append(taken[:missing])
        missing -= len(parts[-1])
    return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))


def _discrete_laplace(scale: int, size: int, stream: SecretStream) -> np.ndarray:
    """Whole numbers k with probabilities proportional to exp(-|k| / scale): the difference of two geometric draws."""
    first, second = (np.floor(-scale * np.log(stream.uniform((size,)).numpy())) for _ in range(2))
    difference: np.ndarray = (first - second).astype(np.int64)
    return difference
