"""What releases guarantee together: exactly where all are Gaussian, numerically where batches are drawn at random.

A step of DP-SGD draws each image with a probability, its rate, and adds Gaussian noise to the sum of the clipped
gradients. At a rate of 1 that is a Gaussian release like any other, and all such compose exactly (`medfl.privacy.
gaussian`). Below 1 it guarantees more than its noise alone, and Opacus composes the privacy loss random variables of
all releases numerically (Gopi, Lee, Wutschitz, "Numerical composition of differential privacy", NeurIPS 2021), to
within `RESOLUTION`, on the safe side.

That reckoning is for an image that is added or removed. Where one is replaced, which is a removal and an addition,
(epsilon, delta) becomes (2 epsilon, (1 + e^epsilon) delta): an upper bound.
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
"""How far above the true epsilon the numerical accountant may answer."""

SMALLEST = 5 * RESOLUTION
"""The smallest budget for which the numerical accountant is precise enough."""

FARTHEST = 500.0
"""A privacy loss beyond which the numerical accountant says that nothing is promised; it would take minutes."""


@dataclass(frozen=True)
class Part:
    """Releases of one kind.

    Attributes:
        sigma: Noise multiplier: standard deviation of the noise over the clipping bound, > 0.
        count: How many, >= 0.
        rate: The probability with which a unit takes part in one of them, in (0, 1].
        concentrated: Whether the noise is the sum of several sites' discrete shares: what it guarantees is known by
            concentrated differential privacy (`medfl.privacy.concentrated`), not exactly.
    """

    sigma: float
    count: int
    rate: float = 1.0
    concentrated: bool = False

    @classmethod
    def from_entry(cls, entry: LedgerEntry) -> Self:
        """Return the noised steps of all releases in a ledger's entry."""
        return cls(
            sigma=entry.sigma,
            count=entry.steps * len(entry.releases),
            rate=entry.rate,
            concentrated=entry.mechanism == "distributed discrete gaussian",
        )

    @classmethod
    def from_account(cls, account: PrivacyAccount) -> Self:
        """Return the noised steps of all releases in an account that is not redacted."""
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
def epsilon(parts: tuple[Part, ...], delta: float, adjacency: str = "add_remove") -> float:
    """The smallest epsilon known to hold with delta for all releases together.

    Args:
        parts: The releases.
        delta: In (0, 1).
        adjacency: ``add_remove`` or ``replace``.

    Returns:
        Exact where all rates are 1 and no part is concentrated, otherwise an upper bound. 0 without releases, infinity
        where one has no noise.

    Raises:
        SettingsError: If Opacus is needed and not installed.
    """
    parts = tuple(part for part in parts if part.count and not math.isinf(part.sigma))
    if any(part.sigma == 0 for part in parts):
        return math.inf
    far = gaussian.SENSITIVITY[adjacency]
    if any(part.concentrated for part in parts):
        if any(part.rate < 1 for part in parts):
            return math.inf  # no bound for both kinds together is known here
        return concentrated_epsilon(math.fsum(rho_of(part.sigma, part.count, far) for part in parts), delta)
    if all(part.rate == 1 for part in parts):
        precision = math.fsum(part.count / part.sigma**2 for part in parts)  # mu's add in squares
        return gaussian.epsilon(1 / math.sqrt(precision) if precision else math.inf, 1, delta, far)
    if adjacency == "add_remove":
        return _numerical(parts, delta)
    return _replaced(lambda smaller: _numerical(parts, smaller), delta)


@lru_cache(maxsize=256)
def calibrate(budget: float, count: int, rate: float, delta: float, adjacency: str = "add_remove") -> float:
    """A noise multiplier that keeps the budget; the smallest one at a rate of 1, otherwise at most 0.5 % above it.

    Args:
        budget: Epsilon over all releases, > 0.
        count: How many, >= 1.
        rate: As in `Part`.
        delta: In (0, 1).
        adjacency: ``add_remove`` or ``replace``.

    Raises:
        SettingsError: If the budget is too small for the accountant.
    """
    if rate == 1:
        return gaussian.calibrate(budget, count, delta, gaussian.SENSITIVITY[adjacency])
    added, added_delta = budget, delta  # what to keep for an image that is added or removed
    if adjacency == "replace":
        added, added_delta = budget / 2, delta / (1 + math.exp(min(budget / 2, 700)))
    if added < SMALLEST:
        raise SettingsError(
            "unreachable_budget",
            f"A privacy budget of epsilon {added:g} for an image that is added or removed can't be reached: the "
            f"accountant 'prv' is exact to {RESOLUTION:g} only. Choose an epsilon of at least {SMALLEST:g} for "
            f"'add_remove', or {2 * SMALLEST:g} for 'replace'.",
            epsilon=budget,
            adjacency=adjacency,
            minimum=2 * SMALLEST if adjacency == "replace" else SMALLEST,
        )
    # in the limit of many small steps all is one Gaussian release of mu = rate sqrt(count (e^(1 / sigma^2) - 1))
    mu = 1 / gaussian.calibrate(added, 1, added_delta)
    guess = math.log1p((mu / rate) ** 2 / count) ** -0.5
    return _smallest(lambda sigma: epsilon((Part(sigma, count, rate),), delta, adjacency), budget, guess)


def _smallest(spent: Callable[[float], float], budget: float, guess: float) -> float:
    """A noise multiplier that spends between 99.5 % and all of the budget; secant steps on logarithmic axes."""
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


def _replaced(added: Callable[[float], float], delta: float) -> float:
    """Epsilon where a unit is replaced, from that where it is added or removed, for the same delta.

    It is twice the smallest number that is enough for delta / (1 + e^number), which is met from below by steps that
    shrink about geometrically.
    """
    bound = added(delta)
    step = 0.0
    while bound < FARTHEST:
        missing = added(delta / (1 + math.exp(bound))) - bound
        if missing <= 0:
            return 2 * bound
        ratio = min(missing / step, 0.9) if step else 0.0
        step = missing
        bound += missing / (1 - ratio) + min(RESOLUTION / 4, bound / 1000)
    return math.inf


def _numerical(parts: tuple[Part, ...], delta: float) -> float:
    """Epsilon of an image that is added or removed, at most `RESOLUTION` above the true one."""
    prv, error = opacus("accountants.analysis.prv"), delta / 1000
    counts = [part.count for part in parts]
    mesh = RESOLUTION / math.sqrt(sum(counts) * math.log(12 / error) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of logarithms of 0 and exponentials that overflow, rightly infinite
        reach = _reach(parts, error)
        if reach > FARTHEST:
            return math.inf
        domain = prv.Domain.create_aligned(-reach, reach, mesh)
        losses = [prv.PoissonSubsampledGaussianPRV(part.rate, part.sigma) for part in parts]
        cut = [prv.TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max) for loss in losses]
        together = prv.compose_heterogeneous(
            dprvs=[prv.discretize(loss, domain) for loss in cut], num_self_compositions=counts
        )
        try:
            upper = float(together.compute_epsilon(delta, error, RESOLUTION)[2])
        except (RuntimeError, ValueError):  # so large that it is outside of floating point
            return math.inf
    return upper if math.isfinite(upper) else math.inf


def _reach(parts: tuple[Part, ...], error: float) -> float:
    """Bound on the privacy loss, but for a probability of `error` (remark 5.6 of the paper).

    It is Opacus' `compute_safe_domain_size` with few broken orders, which take most of its time.
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
    """A part of Opacus, loaded when it is needed first.

    Raises:
        SettingsError: If it is not installed.
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
