"""Guarantee of the sum of updates to which each site adds a share of discrete Gaussian noise.

Here a release is one noised sum that the server learns. Concentrated differential privacy measures privacy by a
parameter rho >= 0; less is more private. The sum of t shares is concentrated differentially private like
one Gaussian with t times the variance (Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism", ICML 2021,
theorem 1; the term tau is negligible here, see `medfl.engine.secure.fixed_point.MIN_SITE_NOISE`). Releases compose by
adding their rho, and rho gives epsilon (Canonne, Kamath, Steinke, NeurIPS 2020, corollary 13). More than t sites add
more noise. So the guarantee holds as long as t sites add their share and keep it secret.
"""

from __future__ import annotations

import math

from medfl.errors import SettingsError
from medfl.privacy.gaussian import SENSITIVITY
from medfl.settings import Privacy


def rho_of(sigma: float, releases: int, sensitivity: float = 1.0) -> float:
    """Return the parameter rho of concentrated differential privacy for several releases together.

    Args:
        sigma: Noise multiplier of each sum: standard deviation of its noise over the clipping bound, > 0.
        releases: Number of releases.
        sensitivity: Largest change of a sum by one unit, in units of the clipping bound.
    """
    return releases * (sensitivity / sigma) ** 2 / 2


def concentrated_epsilon(rho: float, delta: float) -> float:
    """Return the smallest known epsilon for a delta under rho-concentrated differential privacy.

    Epsilon is the minimum over alpha > 1 of alpha rho + log(1 / (alpha delta)) / (alpha - 1) + log(1 - 1 / alpha). This
    function has one minimum, which a golden-section search over log(alpha - 1) finds.

    Args:
        rho: Parameter of concentrated differential privacy, >= 0; 0 is perfect privacy.
        delta: Delta of the guarantee, in (0, 1).

    Returns:
        Epsilon, >= 0.
    """
    if rho <= 0:
        return 0.0
    if math.isinf(rho):
        return math.inf

    def epsilon_at(log_order: float) -> float:
        """Return epsilon for alpha = 1 + exp(log_order)."""
        order = math.exp(log_order)
        alpha = 1 + order
        return alpha * rho - (math.log(alpha) + math.log(delta)) / order + log_order - math.log(alpha)

    middle = math.log(math.sqrt(-math.log(delta) / rho))
    low, high = middle - 12, middle + 12
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(100):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if epsilon_at(left) < epsilon_at(right) else (left, high)
    return max(0.0, epsilon_at((low + high) / 2))


def calibrate_sum(privacy: Privacy, releases: int) -> float:
    """Return the smallest noise multiplier of the sum (standard deviation over clip) that keeps the privacy budget.

    Args:
        privacy: Privacy setting of the run.
        releases: Number of released sums, >= 1.

    Raises:
        SettingsError: If the budget is too small for floating-point numbers.
    """
    low, high = 0.0, 1.0
    while concentrated_epsilon(high, privacy.delta) < privacy.epsilon:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if concentrated_epsilon(middle, privacy.delta) <= privacy.epsilon else (low, middle)
    if low < 1e-15:
        raise SettingsError(
            "unreachable_budget",
            f"A privacy budget of epsilon {privacy.epsilon:g} with delta {privacy.delta:g} can't be reached with "
            "distributed noise. Raise epsilon or delta.",
            epsilon=privacy.epsilon,
            delta=privacy.delta,
        )
    return SENSITIVITY[privacy.adjacency] * math.sqrt(releases / (2 * low))
