"""Composition: the common guarantee of several releases, exact for Gaussian releases and numerical with subsampling.

Release: one noised value that leaves the site. A step of DP-SGD draws each image with a probability, the sampling rate,
and adds Gaussian noise to the sum of the clipped gradients. With rate 1 it is a Gaussian release, and such releases
compose exactly (`medfl.privacy.gaussian`). With a rate below 1, subsampling amplifies the guarantee. Then Opacus
composes the privacy loss random variables of all releases numerically (PRV accountant; Gopi, Lee, Wutschitz, "Numerical
composition of differential privacy", NeurIPS 2021). The result is at most `RESOLUTION` above the true epsilon.

The PRV accountant is for the adjacency ``add_remove``. A replacement is a removal and an addition, so for ``replace``,
(epsilon, delta) becomes (2 epsilon, (1 + e^epsilon) delta), which is an upper bound.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from medfl.errors import SettingsError, pip_install
from medfl.privacy import gaussian
from medfl.privacy.concentrated import concentrated_epsilon, rho_of
from medfl.records.ledger import LedgerEntry
from medfl.records.privacy_account import PrivacyAccount

RESOLUTION = 0.01
"""Maximum error of the numerical accountant: the computed epsilon is at most this much above the true epsilon."""

MIN_EPSILON = 5 * RESOLUTION
"""Smallest privacy budget for which the numerical accountant is precise enough."""

MAX_LOSS = 500.0
"""Privacy loss above which the numerical accountant returns infinity, because the computation would take minutes."""


@dataclass(frozen=True)
class NoisedReleases:
    """A number of noised releases with equal noise and sampling rate.

    For DP-SGD, each noised step counts as one release here.

    Attributes:
        sigma: Noise multiplier: standard deviation of the noise over the clipping bound, > 0.
        count: Number of releases, >= 0.
        rate: Probability with which a privacy unit (a site or an image) takes part in a release (sampling rate), in
            (0, 1].
        concentrated: Whether the noise is a sum of discrete shares of several sites. Then the guarantee is a bound from
            concentrated differential privacy (`medfl.privacy.concentrated`) instead of an exact value.
    """

    sigma: float
    count: int
    rate: float = 1.0
    concentrated: bool = False

    @classmethod
    def from_entry(cls, entry: LedgerEntry) -> Self:
        """Return the noised steps of all releases in a ledger's entry.

        A ledger is a file that lists the releases of one data set; an entry lists those of one run.
        """
        return cls(
            sigma=entry.sigma,
            count=entry.steps * len(entry.releases),
            rate=entry.rate,
            concentrated=entry.mechanism == "distributed discrete gaussian",
        )

    @classmethod
    def from_account(cls, account: PrivacyAccount) -> Self:
        """Return the noised steps of all releases that a site's privacy account reports.

        The account must not be redacted: it must state its noise.
        """
        assert account.sigma is not None
        assert account.steps is not None
        assert account.rate is not None
        return cls(
            sigma=account.sigma,
            count=account.steps * account.releases,
            rate=account.rate,
            concentrated=account.threshold is not None,
        )


@lru_cache(maxsize=256)
def epsilon(parts: tuple[NoisedReleases, ...], delta: float, adjacency: str = "add_remove") -> float:
    """Return the smallest known epsilon of all releases together, for a given delta.

    Args:
        parts: The releases, in groups of equal ones.
        delta: Delta of the guarantee, in (0, 1).
        adjacency: ``add_remove`` or ``replace``.

    Returns:
        The exact epsilon if all rates are 1 and no group is concentrated, otherwise an upper bound. 0 without releases,
        and infinity if a release has no noise.

    Raises:
        SettingsError: If Opacus is needed and not installed.
    """
    parts = tuple(part for part in parts if part.count and not math.isinf(part.sigma))
    if any(part.sigma == 0 for part in parts):
        return math.inf
    sensitivity = gaussian.SENSITIVITY[adjacency]
    if any(part.concentrated for part in parts):
        if any(part.rate < 1 for part in parts):
            return math.inf  # no bound for the composition of both kinds is implemented
        return concentrated_epsilon(math.fsum(rho_of(part.sigma, part.count, sensitivity) for part in parts), delta)
    if all(part.rate == 1 for part in parts):
        precision = math.fsum(part.count / part.sigma**2 for part in parts)  # the squares of mu add up
        return gaussian.epsilon(1 / math.sqrt(precision) if precision else math.inf, 1, delta, sensitivity)
    if adjacency == "add_remove":
        return _numerical_epsilon(parts, delta)
    return _replace_epsilon(lambda smaller: _numerical_epsilon(parts, smaller), delta)


@lru_cache(maxsize=256)
def calibrate(budget: float, count: int, rate: float, delta: float, adjacency: str = "add_remove") -> float:
    """Return a noise multiplier with which a number of releases keeps a privacy budget.

    With rate 1 it is the smallest such multiplier. Otherwise the releases spend at least 99.5 % of the budget.

    Args:
        budget: Epsilon of all releases together, > 0.
        count: Number of releases, >= 1.
        rate: Sampling rate, in (0, 1].
        delta: Delta of the guarantee, in (0, 1).
        adjacency: ``add_remove`` or ``replace``.

    Raises:
        SettingsError: If the budget is too small for the accountant.
    """
    if rate == 1:
        return gaussian.calibrate(budget, count, delta, gaussian.SENSITIVITY[adjacency])
    added, added_delta = budget, delta  # budget for the adjacency add_remove
    if adjacency == "replace":
        added, added_delta = budget / 2, delta / (1 + math.exp(min(budget / 2, 700)))
    if added < MIN_EPSILON:
        raise SettingsError(
            "unreachable_budget",
            f"A privacy budget of epsilon {added:g} for an image that is added or removed can't be reached: the "
            f"accountant 'prv' is exact to {RESOLUTION:g} only. Choose an epsilon of at least {MIN_EPSILON:g} for "
            f"'add_remove', or {2 * MIN_EPSILON:g} for 'replace'.",
            epsilon=budget,
            adjacency=adjacency,
            minimum=2 * MIN_EPSILON if adjacency == "replace" else MIN_EPSILON,
        )
    # In the limit of many small steps, they compose to a Gaussian release, mu = rate sqrt(count (e^(1 / sigma^2) - 1)).
    mu = 1 / gaussian.calibrate(added, 1, added_delta)
    guess = math.log1p((mu / rate) ** 2 / count) ** -0.5
    return _search_sigma(lambda sigma: epsilon((NoisedReleases(sigma, count, rate),), delta, adjacency), budget, guess)


def _search_sigma(spent: Callable[[float], float], budget: float, guess: float) -> float:
    """Return a noise multiplier that spends between 99.5 % and all of a budget, by secant steps on logarithmic axes.

    Args:
        spent: Returns the epsilon of a noise multiplier.
        budget: Largest epsilon, > 0.
        guess: Start of the search.
    """
    sigma, slope = guess, -1.0
    cost = spent(sigma)
    for _ in range(30):
        if 0.995 * budget <= cost <= budget:
            break
        change = (0.9975 * budget / cost) ** (1 / slope) if math.isfinite(cost) else 2.0
        step = min(max(change, 0.25), 4.0)
        before, sigma = cost, sigma * step
        cost = spent(sigma)
        if math.isfinite(before) and math.isfinite(cost):
            slope = min(max(math.log(cost / before) / math.log(step), -4.0), -0.25)
    while not cost <= budget:
        sigma *= 1.01
        cost = spent(sigma)
    return sigma


def _replace_epsilon(added: Callable[[float], float], delta: float) -> float:
    """Return epsilon for the adjacency ``replace`` from a function for ``add_remove``, for the same delta.

    It is twice the smallest x that satisfies added(delta / (1 + e^x)) <= x. The search approaches x from below, by
    steps that shrink about geometrically.

    Args:
        added: Returns epsilon for the adjacency ``add_remove``, given delta.
        delta: Delta of the guarantee, in (0, 1).
    """
    bound = added(delta)
    step = 0.0
    while bound < MAX_LOSS:
        missing = added(delta / (1 + math.exp(bound))) - bound
        if missing <= 0:
            return 2 * bound
        ratio = min(missing / step, 0.9) if step else 0.0
        step = missing
        bound += missing / (1 - ratio) + min(RESOLUTION / 4, bound / 1000)
    return math.inf


def _numerical_epsilon(parts: tuple[NoisedReleases, ...], delta: float) -> float:
    """Return epsilon for ``add_remove`` by the PRV accountant, at most `RESOLUTION` above the true epsilon."""
    prv, error = opacus("accountants.analysis.prv"), delta / 1000
    counts = [part.count for part in parts]
    mesh = RESOLUTION / math.sqrt(sum(counts) * math.log(12 / error) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # logarithms of 0 and overflowing exponentials are infinite, as they should be
        largest_loss = _largest_loss(parts, error)
        if largest_loss > MAX_LOSS:
            return math.inf
        domain = prv.Domain.create_aligned(-largest_loss, largest_loss, mesh)
        losses = [prv.PoissonSubsampledGaussianPRV(part.rate, part.sigma) for part in parts]
        truncated = [prv.TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max) for loss in losses]
        composed = prv.compose_heterogeneous(
            dprvs=[prv.discretize(loss, domain) for loss in truncated], num_self_compositions=counts
        )
        try:
            upper = float(composed.compute_epsilon(delta, error, RESOLUTION)[2])
        except (RuntimeError, ValueError):  # epsilon is too large for floating-point numbers
            return math.inf
    return upper if math.isfinite(upper) else math.inf


def _largest_loss(parts: tuple[NoisedReleases, ...], error: float) -> float:
    """Return a bound that the privacy loss exceeds with a probability of at most `error` (remark 5.6 of the paper).

    The bound comes from RDP accounting. It is Opacus' `compute_safe_domain_size` with fewer fractional orders, which
    take most of its time.
    """
    rdp = opacus("accountants.analysis.rdp")
    orders = [1.05, 1.1, 1.25, 1.5, *range(2, 65), 128, 256, 512]
    single = [rdp.compute_rdp(q=p.rate, noise_multiplier=p.sigma, steps=1, orders=orders) for p in parts]
    each = error / (8 * sum(part.count for part in parts))
    bounds = [rdp.get_privacy_spent(orders=orders, rdp=curve, delta=each)[0] for curve in single]
    total = sum(part.count * curve for part, curve in zip(parts, single, strict=True))
    bounds.append(rdp.get_privacy_spent(orders=orders, rdp=total, delta=error / 4)[0])
    return float(max(*bounds, RESOLUTION)) + 3


def opacus(part: str) -> Any:
    """Import and return a module of Opacus.

    Args:
        part: Dotted name of the module below ``opacus``, such as ``accountants.analysis.prv``.

    Raises:
        SettingsError: If Opacus is not installed.
    """
    try:
        return importlib.import_module(f"opacus.{part}")
    except ModuleNotFoundError as error:
        raise SettingsError(
            "missing_package",
            "Privacy with the unit 'sample' needs Opacus, which is not installed. Install the extra: "
            f"{pip_install('privacy')}.",
            package="opacus",
            extra="privacy",
        ) from error
