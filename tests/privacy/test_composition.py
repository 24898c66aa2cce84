"""Test composition against published numbers, exact accounting, and numerical integration of the definition."""

import importlib
import math
import warnings

import pytest
import torch
from refusals import refused

from medfl.errors import SettingsError
from medfl.privacy import composition, gaussian
from medfl.privacy.composition import NoisedReleases, calibrate, epsilon
from medfl.settings import Privacy

DELTA = 1e-5


def rdp(sigma: float, releases: int, delta: float = DELTA) -> float:
    """Return epsilon of Gaussian releases by RDP with orders in (1, 200] (Canonne, Kamath, Steinke 2020)."""
    orders = torch.arange(1.01, 200.005, 0.01, dtype=torch.float64)
    epsilons = orders * releases / (2 * sigma**2) + torch.log1p(-1 / orders)
    return float((epsilons - (math.log(delta) + orders.log()) / (orders - 1)).min())


def zcdp(sigma: float, releases: int, delta: float = DELTA) -> float:
    """Return epsilon of Gaussian releases by concentrated differential privacy (Bun, Steinke 2016)."""
    rho = releases / (2 * sigma**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


@pytest.mark.parametrize(
    ("sigma", "releases", "adjacency", "exact"),
    [
        (3.98856, 20, "add_remove", 5.0),
        (3.98856, 20, "replace", 11.52),
        (7.977, 20, "replace", 5.0),
        (0.96896, 20, "add_remove", 29.63),
        (0.96896, 1, "add_remove", 4.54),
        (0.89187, 1, "add_remove", 5.0),
    ],
)
def test_published_table(sigma, releases, adjacency, exact):
    assert epsilon((NoisedReleases(sigma, releases),), DELTA, adjacency) == pytest.approx(exact, abs=0.005)


@pytest.mark.parametrize(("bound", "sigma", "at_code"), [(rdp, 4.26025, 31.43), (zcdp, 4.71602, 32.80)])
def test_looser_accountants_are_upper_bounds_with_the_published_numbers(bound, sigma, at_code):
    assert bound(sigma, 20) == pytest.approx(5.0, abs=1e-4)
    assert bound(0.96896, 20) == pytest.approx(at_code, abs=0.005)
    for noise in (0.5, 1.0, 3.98856, 20.0):
        assert bound(noise, 20) > epsilon((NoisedReleases(noise, 20),), DELTA)


@pytest.mark.parametrize(("sigma", "releases"), [(3.98856, 20), (7.977, 20), (0.96896, 1), (0.96896, 20), (30.0, 400)])
def test_numerical_composition_is_within_a_fiftieth_of_the_exact_one(sigma, releases):
    exact = gaussian.epsilon(sigma, releases, DELTA)
    assert 0 <= composition._numerical_epsilon((NoisedReleases(sigma, releases),), DELTA) - exact <= 0.02


def test_unlike_gaussian_releases_add_in_squares():
    together = epsilon((NoisedReleases(2.0, 3), NoisedReleases(5.0, 40), NoisedReleases(math.inf, 7)), DELTA)
    assert together == pytest.approx(gaussian.epsilon(1 / math.sqrt(3 / 4 + 40 / 25), 1, DELTA), rel=1e-9)
    numerical = composition._numerical_epsilon((NoisedReleases(2.0, 3), NoisedReleases(5.0, 40)), DELTA)
    assert 0 <= numerical - together <= 0.02


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.7, 0.5), (2.0, 0.9)])
def test_one_drawn_release_is_what_the_definition_says(sigma, rate):
    x = torch.linspace(-12 * sigma, 1 + 12 * sigma, 400_001, dtype=torch.float64)
    out, moved = (torch.distributions.Normal(torch.tensor(m).double(), sigma).log_prob(x).exp() for m in (0.0, 1.0))
    mixed = (1 - rate) * out + rate * moved

    def delta(budget: float) -> float:
        pairs = ((mixed, out), (out, mixed))
        return max(float(torch.trapezoid((p - math.exp(budget) * q).clamp(min=0), x)) for p, q in pairs)

    spent = epsilon((NoisedReleases(sigma, 1, rate),), 1e-3)
    assert delta(spent) <= 1e-3, "what is stated holds"
    assert delta(spent - 0.02) > 1e-3, "and hardly less would"


@pytest.mark.parametrize(("sigma", "rate", "count"), [(1.0, 0.05, 200), (2.0, 0.3, 50)])
def test_numerical_composition_is_opacus_and_below_rdp(sigma, rate, count):
    accountants = importlib.import_module("opacus.accountants")
    spent = epsilon((NoisedReleases(sigma, count, rate),), DELTA)
    for kind, within in ((accountants.PRVAccountant, (-1e-4, 1e-4)), (accountants.RDPAccountant, (0.0, math.inf))):
        accountant = kind()
        accountant.history = [(sigma, rate, count)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert within[0] <= accountant.get_epsilon(DELTA) - spent <= within[1]


def test_drawing_helps_and_replacing_costs():
    parts = [(NoisedReleases(4.0, 30, rate),) for rate in (0.1, 0.4, 1.0)]
    added = [epsilon(part, DELTA) for part in parts]
    assert added == sorted(added)
    for part, single in zip(parts[:2], added, strict=False):
        assert epsilon(part, DELTA, "replace") > 2 * single


@pytest.mark.parametrize(
    ("budget", "count", "rate", "adjacency"),
    [
        (5.0, 200, 0.1, "add_remove"),
        (4.0, 15, 5 / 21, "replace"),
        (0.05, 20, 0.2, "add_remove"),
        (0.1, 20, 0.2, "replace"),
        (0.2, 100, 0.1, "replace"),
        (1.0, 600, 0.02, "replace"),
        (5.0, 20, 1.0, "replace"),
    ],
)
def test_calibrated_noise_keeps_the_budget_and_is_hardly_more_than_needed(budget, count, rate, adjacency):
    sigma = calibrate(budget, count, rate, DELTA, adjacency)
    assert epsilon((NoisedReleases(sigma, count, rate),), DELTA, adjacency) <= budget * (1 + 1e-9)
    assert epsilon((NoisedReleases(0.97 * sigma, count, rate),), DELTA, adjacency) > budget


def test_edges():
    assert epsilon((), DELTA) == epsilon((NoisedReleases(1.0, 0, 0.1),), DELTA) == 0.0
    assert epsilon((NoisedReleases(0.0, 1, 0.1), NoisedReleases(1.0, 1)), DELTA) == math.inf
    assert epsilon((NoisedReleases(0.05, 100, 0.5),), DELTA) == math.inf, "too much to reckon with"


@pytest.mark.parametrize(("adjacency", "budget", "least"), [("add_remove", 0.04, 0.05), ("replace", 0.08, 0.1)])
def test_a_budget_below_the_accountants_precision_is_refused(adjacency, budget, least):
    with refused(SettingsError, "unreachable_budget", epsilon=budget, adjacency=adjacency, minimum=least):
        calibrate(budget, 10, 0.1, DELTA, adjacency)


def test_a_budget_that_rounding_swallows_is_refused():
    with refused(SettingsError, "unreachable_budget", epsilon=1e-200, delta=1e-200, releases=20):
        gaussian.noise_multiplier(Privacy(epsilon=1e-200, delta=1e-200, clip=1.0), 20)


def test_without_opacus_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with refused(SettingsError, "missing_package", package="opacus", extra="privacy") as caught:
        calibrate(4.9, 10, 0.123, DELTA)
    assert "medfl-monai[privacy]" in str(caught.value)
