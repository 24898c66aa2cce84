"""What the sum of all sites' updates guarantees where each site adds a share of discrete Gaussian noise.

The sum of t such shares is concentrated differentially private as one Gaussian of t times the variance is (Kairouz,
Liu, Steinke, "The Distributed Discrete Gaussian Mechanism", ICML 2021, theorem 1; the term tau is nothing here, see
`medfl.engine.secure.fixed_point.FAINTEST_NOISE`). Releases add up in rho, and rho gives epsilon (Canonne,
Kamath, Steinke, NeurIPS 2020, corollary 13). More sites than t add more noise, so the guarantee holds as long as t of
them add their share and keep it to themselves.
"""

from __future__ import annotations

import math

from medfl.errors import SettingsError
from medfl.privacy.gaussian import SENSITIVITY
from medfl.settings import Privacy


def rho_of(sigma: float, releases: int, sensitivity: float = 1.0) -> float:
    """Concentrated differential privacy of releases together.

    Args:
        sigma: Noise multiplier of the sum, > 0.
        releases: How many.
        sensitivity: In units of the clipping bound.
    """
    return releases * (sensitivity / sigma) ** 2 / 2


def concentrated_epsilon(rho: float, delta: float) -> float:
    """The smallest epsilon that rho-concentrated differential privacy is known to give with delta.

    It is the minimum over alpha > 1 of alpha rho + log(1 / (alpha delta)) / (alpha - 1) + log(1 - 1 / alpha), which
    has one minimum; it is sought on the logarithm of alpha - 1.

    Args:
        rho: >= 0; 0 promises all.
        delta: In (0, 1).

    Returns:
        >= 0.
    """
    if rho <= 0:
        return 0.0
    if math.isinf(rho):
        return math.inf

    def at(place: float) -> float:
        less = math.exp(place)  # alpha - 1
        alpha = 1 + less
        return alpha * rho - (math.log(alpha) + math.log(delta)) / less + place - math.log(alpha)

    middle = math.log(math.sqrt(-math.log(delta) / rho))
    low, high = middle - 12, middle + 12
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(100):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if at(left) < at(right) else (left, high)
    return max(0.0, at((low + high) / 2))


def calibrated(privacy: Privacy, releases: int) -> float:
    """The smallest noise multiplier of the sum, standard deviation over clip, that keeps the budget.

    Args:
        privacy: The run's setting.
        releases: How many sums leave, >= 1.

    Raises:
        SettingsError: If the budget is too small to be reckoned with.
    """
    low, high = 0.0, 1.0
    while concentrated_epsilon(high, privacy.delta) < privacy.epsilon:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if concentrated_epsilon(middle, privacy.delta) <= privacy.epsilon else (low, middle)
    if low < 1e-15:
        raise SettingsError(
            "unreachable_budget",
            f"A privacy budget of epsilon {privacy.epsilon:g} with delta {privacy.delta:g} can't be reached by "
            "distributed noise. Raise epsilon or delta.",
            epsilon=privacy.epsilon,
            delta=privacy.delta,
        )
    return SENSITIVITY[privacy.adjacency] * math.sqrt(releases / (2 * low))


def sum_epsilon(sigma: float, releases: int, delta: float, adjacency: str) -> float:
    """Epsilon of releases of the sum with noise multiplier `sigma`, for an adjacency."""
    return concentrated_epsilon(rho_of(sigma, releases, SENSITIVITY[adjacency]), delta)
