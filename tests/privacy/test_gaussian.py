"""Test the Gaussian accountant against the definition of privacy, scaling laws and edge cases."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from refusals import refused

from medfl.errors import SettingsError
from medfl.privacy.gaussian import calibrate, epsilon, noise_multiplier
from medfl.privacy.policy import policy_of
from medfl.settings import Privacy, Settings


def hockey_stick(epsilon: float, sigma: float) -> float:
    """Return delta by numerical integration of max(0, p - e^epsilon q) for N(1, sigma^2) and N(0, sigma^2)."""
    x = torch.linspace(-15 * sigma, 1 + 15 * sigma, 2_000_001, dtype=torch.float64)
    p, q = (torch.distributions.Normal(torch.tensor(m, dtype=torch.float64), sigma).log_prob(x).exp() for m in (1, 0))
    return float(torch.trapezoid((p - math.exp(epsilon) * q).clamp(min=0), x))


@pytest.mark.parametrize(("sigma", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (2.0, 1e-3), (5.0, 1e-2), (3.0, 1e-7)])
def test_epsilon_is_what_the_definition_says(sigma, delta):
    assert hockey_stick(epsilon(sigma, 1, delta), sigma) == pytest.approx(delta, rel=1e-4)


@settings(max_examples=80, deadline=None)
@given(
    budget=some.floats(1e-3, 1e3),
    log_delta=some.floats(-200, -0.5),
    releases=some.integers(1, 100_000),
    far=some.sampled_from([0.5, 1.0, 2.0]),
)
def test_calibrate_and_epsilon_are_inverse_and_never_over_budget(budget, log_delta, releases, far):
    delta = math.exp(log_delta)
    sigma = calibrate(budget, releases, delta, far)
    assert epsilon(sigma, releases, delta, far) == pytest.approx(budget, rel=1e-6)
    assert epsilon(sigma, releases, delta, far) <= budget * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(budget=some.floats(0.01, 50), releases=some.integers(1, 1000))
def test_scaling_laws(budget, releases):
    sigma = calibrate(budget, releases, 1e-5)
    assert calibrate(budget, 2 * releases, 1e-5) == pytest.approx(sigma * math.sqrt(2), rel=1e-9)
    assert calibrate(budget, releases, 1e-5, sensitivity=2.0) == pytest.approx(2 * sigma, rel=1e-9)
    assert calibrate(2 * budget, releases, 1e-5) < sigma
    assert calibrate(budget, releases, 1e-6) > sigma


def test_edges():
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(math.inf, 1, 1e-5) == 0.0
    assert epsilon(1.0, 0, 1e-5) == 0.0
    assert epsilon(100.0, 1, 0.1) == 0.0, "so much noise that delta alone covers it"
    assert 1000 < epsilon(0.02, 1, 1e-5) < 2000


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (lambda: epsilon(-1.0, 1, 1e-5), {"setting": "sigma", "found": -1.0}),
        (lambda: epsilon(math.nan, 1, 1e-5), {"setting": "sigma", "minimum": 0}),
        (lambda: epsilon(1.0, -1, 1e-5), {"releases": -1}),
        (lambda: epsilon(1.0, 1, 0.0), {"delta": 0.0}),
        (lambda: epsilon(1.0, 1, 1e-5, 0.0), {"sensitivity": 0.0}),
        (lambda: calibrate(0.0, 1, 1e-5), {"epsilon": 0.0}),
        (lambda: calibrate(1.0, 0, 1e-5), {"releases": 0}),
        (lambda: calibrate(math.inf, 1, 1e-5), {"epsilon": math.inf}),
        (lambda: calibrate(1.0, 1, 1.0), {"delta": 1.0}),
    ],
)
def test_out_of_range_is_refused(call, fields):
    with refused(SettingsError, "setting_out_of_range", **fields):
        call()


@pytest.mark.parametrize(("adjacency", "sigma"), [("add_remove", 3.98856), ("replace", 7.97711)])
def test_noise_of_a_run_keeps_its_budget_under_its_own_adjacency(adjacency, sigma):
    privacy = Privacy(epsilon=5.0, clip=2.5, adjacency=adjacency)
    assert noise_multiplier(privacy, 20) == pytest.approx(sigma, abs=1e-4)


def test_the_sentence_says_everything():
    text = policy_of(Settings(rounds=20, privacy=Privacy(epsilon=5.0, clip=2.5, adjacency="add_remove"))).statement()
    parts = [
        "Unit site",
        "L2 norm 2.5",
        "9.971",
        "3.989",
        "20 releases",
        "delta 1e-05",
        "epsilon 5 ",
        "'add_remove', the",
    ]
    for part in [
        *parts,
        "epsilon 11.52",
        "'replace'",
        "accountant 'gaussian'",
        "not the scores, training losses and numbers",
    ]:
        assert part in text
    replace = policy_of(Settings(rounds=20, privacy=Privacy(epsilon=5.0, clip=2.5))).statement()
    assert "epsilon 5 for a site that is replaced" in replace
    assert "7.977" in replace
