"""Test distributed noise: the distribution of the samples, and the accounting against dp-accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from medfl.engine.secure.discrete_gaussian import discrete_gaussian
from medfl.privacy import gaussian
from medfl.privacy.concentrated import calibrate_sum, concentrated_epsilon, rho_of
from medfl.privacy.gaussian import SENSITIVITY
from medfl.settings import Privacy
from medfl.utils.rng import SecretStream

SECRET = b"a secret of a site"


@pytest.mark.parametrize("sigma", [1.0, 2.5, 10.0])
def test_draws_are_of_the_discrete_gaussian(sigma: float) -> None:
    draws = discrete_gaussian(sigma, 40_000, SecretStream(SECRET, "draws")).numpy()
    edge = round(3 * sigma)
    weights = {k: math.exp(-(k**2) / (2 * sigma**2)) for k in range(-60 * math.ceil(sigma), 60 * math.ceil(sigma) + 1)}
    shares = np.array([weights[k] for k in range(-edge, edge + 1)]) / sum(weights.values())
    counts = np.array([(draws == k).sum() for k in range(-edge, edge + 1)])
    rest, expected = len(draws) - counts.sum(), len(draws) * shares
    assert stats.chisquare([*counts, rest], [*expected, len(draws) - expected.sum()]).pvalue > 1e-3


def test_large_draws_are_normal_and_repeat() -> None:
    first, second = (discrete_gaussian(3e6, 20_000, SecretStream(SECRET, "large")).numpy() for _ in range(2))
    assert (first == second).all()
    assert stats.kstest(first / 3e6, "norm").pvalue > 1e-3
    assert discrete_gaussian(5.0, 0, SecretStream(SECRET, "none")).numel() == 0


def test_the_sum_of_shares_has_the_variance_of_all() -> None:
    total = sum(discrete_gaussian(20.0, 30_000, SecretStream(SECRET, site)).numpy() for site in range(9))
    assert total.std() == pytest.approx(60.0, rel=0.02)


def test_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"sigma in \[1, 2\^40\)"):
        discrete_gaussian(0.5, 3, SecretStream(SECRET))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_calibration_keeps_the_budget_and_no_more(epsilon: float, adjacency: str) -> None:
    privacy = Privacy.model_validate({"epsilon": epsilon, "clip": 1.0, "adjacency": adjacency})
    sigma = calibrate_sum(privacy, 20)
    rho = rho_of(sigma, 20, SENSITIVITY[adjacency])
    assert concentrated_epsilon(rho, 1e-5) == pytest.approx(epsilon, rel=1e-9)
    exact = gaussian.noise_multiplier(privacy, 20)
    assert 1.0 < sigma / exact < 1.35, "concentrated differential privacy asks for more than the exact reckoning"


def test_limits() -> None:
    assert concentrated_epsilon(0.0, 1e-5) == 0.0
    assert concentrated_epsilon(math.inf, 1e-5) == math.inf
    assert rho_of(2.0, 8, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("sigma", [2.0, 10.0, 40.0])
@pytest.mark.parametrize("releases", [1, 20])
def test_epsilon_is_that_of_dp_accounting(sigma: float, releases: int) -> None:
    """Compare with its RDP accountant on a fine grid of orders, and with its exact one for one coordinate."""
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism
    from dp_accounting.rdp import RdpAccountant

    orders = list(1 + np.exp(np.linspace(-4, 8, 4000)))
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), releases)
    known = RdpAccountant(orders=orders).compose(event).get_epsilon(1e-5)
    ours = concentrated_epsilon(rho_of(sigma, releases), 1e-5)
    assert ours == pytest.approx(known, rel=1e-4)
    exact = from_discrete_gaussian_mechanism(sigma).self_compose(releases).get_epsilon_for_delta(1e-5)
    assert exact <= ours * 1.001


@pytest.mark.parametrize("epsilon", [15.0, 150.0, 1500.0])
@pytest.mark.parametrize("rounds", [10, 20])
def test_ten_sites_need_a_third_of_the_epsilon_for_the_same_noise_in_the_mean(epsilon: float, rounds: int) -> None:
    """Compare a sum with the noise of seven of ten sites with a mean of ten separately noised updates."""
    alone, shared = (Privacy(epsilon=budget, clip=1.0) for budget in (epsilon, epsilon / 3))
    of_mean = calibrate_sum(shared, rounds) * math.sqrt(10 / 7) / 10
    assert of_mean <= gaussian.noise_multiplier(alone, rounds) / math.sqrt(10)
