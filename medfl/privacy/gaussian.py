"""Clipping by the norm over all tensors, what Gaussian noise then guarantees, and how much a guarantee needs.

k releases of sensitivity s with noise of standard deviation sigma are together one Gaussian release with
mu = s sqrt(k) / sigma (Dong, Roth & Su, "Gaussian Differential Privacy", 2022), and they are (epsilon, delta)-private
exactly when delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle & Wang, "Improving the Gaussian
Mechanism", ICML 2018, theorem 8). No bound is involved: RDP and zCDP ask for more noise for the same guarantee.

Sigma and sensitivity are in units of the clipping bound. One unit's update is present or absent under ``add_remove``
(sensitivity 1) and exchanged for any other under ``replace`` (sensitivity 2).
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
"""Adjacency to how far one unit can move a clipped update, in units of the clipping bound."""


FAINTEST = 1e-9
"""The smallest mu of all releases together; below it differences of probabilities drown in rounding."""


def epsilon(sigma: float, releases: int, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest epsilon that holds with delta for so many releases.

    Args:
        sigma: Noise multiplier: standard deviation over clipping bound, >= 0. With 0 nothing is promised: infinity.
        releases: How often an update leaves, >= 0. With 0 all is promised: 0.
        delta: In (0, 1).
        sensitivity: In units of the clipping bound, > 0.

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
    enough = mu * mu / 2 + mu * math.sqrt(-2 * log_delta)  # from Phi(-x) <= exp(-x^2 / 2)
    return _boundary(lambda candidate: _log_delta(candidate, mu) > log_delta, 0.0, enough)[1]


def calibrate(epsilon: float, releases: int, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest noise multiplier that keeps the budget.

    Args:
        epsilon: Budget over all releases, > 0.
        releases: How often an update leaves, >= 1. Twice as many need sqrt(2) times the noise.
        delta: In (0, 1).
        sensitivity: In units of the clipping bound, > 0.

    Returns:
        Standard deviation of the noise over the clipping bound.

    Raises:
        SettingsError: If an argument is out of range, or the budget is too small to be reckoned with.

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
    mu = _boundary(lambda candidate: _log_delta(epsilon, candidate) <= log_delta, 0.0, high)[0]
    if mu < FAINTEST:
        raise SettingsError(
            "unreachable_budget",
            f"A privacy budget of epsilon {epsilon:g} with delta {delta:g} over {releases} releases can't be reached: "
            f"it asks for noise of more than {sensitivity * math.sqrt(releases) / FAINTEST:.3g} times the clipping "
            "bound. Raise epsilon or delta.",
            epsilon=epsilon,
            delta=delta,
            releases=releases,
        )
    return sensitivity * math.sqrt(releases) / mu


def noise_multiplier(privacy: Privacy, releases: int) -> float:
    """`calibrate` for the settings of a run, under the adjacency that they name."""
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
    """Log of the smallest delta for which a mu-Gaussian release is (epsilon, delta)-private; grows with mu."""
    if mu == 0:
        return -math.inf
    larger = _log_phi(mu / 2 - epsilon / mu)
    smaller = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    gap = -math.expm1(min(smaller - larger, 0.0))
    return larger + math.log(gap) if gap > 0 else -math.inf


def _log_phi(x: float) -> float:
    """Log of the standard normal distribution function, also far in its tail."""
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))


def _boundary(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """The two neighbouring numbers between which `holds`, true at `low` and not at `high`, changes."""
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low, high
        low, high = (middle, high) if holds(middle) else (low, middle)


def l2_norm(tensors: Tensors) -> float:
    """L2 norm over all floating tensors together, in float64; 0 if there are none. Integers and bools don't count."""
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(piece, dtype=torch.float64))
            for t in tensors.values()
            if t.is_floating_point()
            for (piece,) in pieces(t.detach())
        )
    )


def clip_by_norm(tensors: Tensors, bound: float) -> Tensors:
    """Scale all floating tensors by min(1, bound / norm), where the norm goes over all of them together.

    Clipping each tensor on its own would let the whole update be larger than the bound, which the noise is made for.

    Args:
        tensors: An update, of any shapes. Integer and bool tensors pass unchanged and don't count.
        bound: Largest L2 norm allowed, > 0.

    Returns:
        New tensors of the same dtypes and shapes; the very same ones when the norm is within the bound.

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
