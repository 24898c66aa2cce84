"""Clip updates by their L2 norm, and compute the exact guarantee of Gaussian noise and the noise of a guarantee.

Release: one noised value that leaves the site. k releases of sensitivity s with noise of standard deviation sigma
compose to one Gaussian release with mu = s sqrt(k) / sigma (Dong, Roth & Su, "Gaussian Differential Privacy", 2022).
They are (epsilon, delta)-private if and only if delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
(Balle & Wang, "Improving the Gaussian Mechanism", ICML 2018, theorem 8). This is exact, while RDP and zCDP accounting
are bounds that need more noise for the same guarantee.

Sigma and sensitivity are in units of the clipping bound. Adjacency: under ``add_remove``, the update of one unit is
present or absent (sensitivity 1). Under ``replace``, it is replaced by any other (sensitivity 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from medfl.errors import RefusedError, SettingsError
from medfl.settings import Privacy
from medfl.types import Tensors
from medfl.utils.memory import pieces

SENSITIVITY = {"add_remove": 1.0, "replace": 2.0}
"""Maps each adjacency to its sensitivity: the largest change of a clipped update, in units of the clipping bound."""


MIN_MU = 1e-9
"""Minimum mu of all releases together, where mu = s sqrt(k) / sigma as above.

Below it, rounding errors exceed the differences of probabilities that epsilon and delta depend on.
"""


def epsilon(sigma: float, releases: int, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest epsilon of a number of releases together, for a given delta.

    Args:
        sigma: Noise multiplier (standard deviation over clipping bound), >= 0. For 0, epsilon is infinite.
        releases: Number of releases, >= 0. For 0, epsilon is 0.
        delta: Delta of the guarantee, in (0, 1).
        sensitivity: Sensitivity in units of the clipping bound, > 0.

    Raises:
        SettingsError: If an argument is out of range.
    """
    _check(releases, delta, sensitivity)
    if not sigma >= 0:
        raise SettingsError(
            "setting_out_of_range",
            f"expected a noise multiplier >= 0, got {sigma}.",
            setting="sigma",
            minimum=0,
            found=sigma,
        )
    if releases == 0 or math.isinf(sigma):
        return 0.0
    if sigma == 0:
        return math.inf
    mu, log_delta = sensitivity * math.sqrt(releases) / sigma, math.log(delta)
    if _log_delta(0.0, mu) <= log_delta:
        return 0.0
    upper = mu * mu / 2 + mu * math.sqrt(-2 * log_delta)  # from Phi(-x) <= exp(-x^2 / 2)
    return _bisect(lambda candidate: _log_delta(candidate, mu) > log_delta, 0.0, upper)[1]


def calibrate(epsilon: float, releases: int, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest noise multiplier (standard deviation over clipping bound) that keeps a privacy budget.

    Args:
        epsilon: Budget of all releases together, > 0.
        releases: Number of releases, >= 1. Twice as many need sqrt(2) times the noise.
        delta: Delta of the guarantee, in (0, 1).
        sensitivity: Sensitivity in units of the clipping bound, > 0.

    Raises:
        SettingsError: If an argument is out of range, or the budget is too small for floating-point numbers.

    Example:
        >>> round(calibrate(5.0, releases=20, delta=1e-5), 4)
        3.9886
    """
    _check(releases, delta, sensitivity)
    if not (0 < epsilon < math.inf and releases >= 1):
        raise SettingsError(
            "setting_out_of_range",
            f"expected a finite epsilon > 0 and releases >= 1, got {epsilon} and {releases}.",
            epsilon=epsilon,
            releases=releases,
        )
    log_delta = math.log(delta)
    high = 1.0
    while _log_delta(epsilon, high) <= log_delta:
        high *= 2
    mu = _bisect(lambda candidate: _log_delta(epsilon, candidate) <= log_delta, 0.0, high)[0]
    if mu < MIN_MU:
        raise SettingsError(
            "unreachable_budget",
            f"A privacy budget of epsilon {epsilon:g} with delta {delta:g} over {releases} releases can't be reached: "
            f"it needs noise of more than {sensitivity * math.sqrt(releases) / MIN_MU:.3g} times the clipping bound. "
            "Raise epsilon or delta.",
            epsilon=epsilon,
            delta=delta,
            releases=releases,
        )
    return sensitivity * math.sqrt(releases) / mu


def noise_multiplier(privacy: Privacy, releases: int) -> float:
    """Return the smallest noise multiplier for the privacy setting of a run, under its adjacency.

    Args:
        privacy: Privacy setting of the run.
        releases: Number of releases, >= 1.
    """
    return calibrate(privacy.epsilon, releases, privacy.delta, SENSITIVITY[privacy.adjacency])


def _check(releases: int, delta: float, sensitivity: float) -> None:
    if not (releases >= 0 and 0 < delta < 1 and 0 < sensitivity < math.inf):
        raise SettingsError(
            "setting_out_of_range",
            "expected releases >= 0, delta in (0, 1) and a finite sensitivity > 0, got "
            f"{releases}, {delta} and {sensitivity}.",
            releases=releases,
            delta=delta,
            sensitivity=sensitivity,
        )


def _log_delta(epsilon: float, mu: float) -> float:
    """Return the log of the smallest delta for which a mu-Gaussian release is (epsilon, delta)-private.

    The result increases with mu.
    """
    if mu == 0:
        return -math.inf
    larger = _log_phi(mu / 2 - epsilon / mu)
    smaller = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    gap = -math.expm1(min(smaller - larger, 0.0))
    return larger + math.log(gap) if gap > 0 else -math.inf


def _log_phi(x: float) -> float:
    """Return the log of the standard normal distribution function, which is accurate far in the tail too."""
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return the two adjacent floating-point numbers between which a condition changes from true to false.

    Args:
        holds: Condition, which is true at `low` and false at `high`.
        low: Lower end of the search interval.
        high: Upper end of the search interval.
    """
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low, high
        low, high = (middle, high) if holds(middle) else (low, middle)


def l2_norm(tensors: Tensors) -> float:
    """Return the joint L2 norm of all floating tensors, computed in float64. Integer and bool tensors are ignored."""
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(piece, dtype=torch.float64))
            for t in tensors.values()
            if t.is_floating_point()
            for (piece,) in pieces(t.detach())
        )
    )


def clip_by_norm(tensors: Tensors, bound: float) -> Tensors:
    """Scale all floating tensors by min(1, bound / norm), where norm is their joint L2 norm.

    Clipping each tensor separately would allow the whole update to exceed the bound, for which the noise is calibrated.

    Args:
        tensors: Tensors of an update, any shapes. Integer and bool tensors stay unchanged and do not count.
        bound: Largest allowed L2 norm, > 0.

    Returns:
        New tensors of the same dtypes and shapes; the same tensor objects if the norm is within the bound.

    Raises:
        RefusedError: If the norm is not finite.

    Example:
        >>> clip_by_norm({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([0.0, 4.0])}, 2.5)
        {'a': tensor([1.5000, 0.0000]), 'b': tensor([0., 2.])}
    """
    norm = l2_norm(tensors)
    if not math.isfinite(norm):
        raise RefusedError(
            "not_finite",
            f"expected an update of finite norm to clip, got {norm}. The training diverged.",
            found=str(norm),
        )
    if norm <= bound:
        return dict(tensors)
    scale = bound / norm
    return {name: (t.double() * scale).to(t.dtype) if t.is_floating_point() else t for name, t in tensors.items()}
