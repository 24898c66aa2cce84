"""Test the rate of claimed differences with no true difference, and with a clear one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from medfl.metrics.segmentation import mean_over_cases
from medfl.metrics.survival import concordance
from medfl.objectives import Multiclass
from medfl_report.statistics import LEVEL, ExchangeDistribution, exchange_models, mean_exchange, procedures
from medfl_report.statistics import exchange as exchanges

METRICS = ("accuracy", "auc", "dice", "c_index")


def exchange(
    metric: str, patients: int, rng: np.random.Generator, gain: float, correlation: float
) -> ExchangeDistribution | None:
    """A test set with two models whose errors are alike in distribution and correlated; the first may be better.

    The second model's scores are on another scale, which an AUC or a C-index must not notice.
    """
    order = metric in ("auc", "c_index")
    shared = rng.normal(size=patients)
    noises = [
        correlation**0.5 * shared + (1 - correlation) ** 0.5 * rng.normal(size=patients),
        correlation**0.5 * shared + (1 - correlation) ** 0.5 * rng.normal(size=patients),
    ]
    scales = (1.0, 3.0) if order else (1.0, 1.0)
    if metric in ("accuracy", "auc"):
        labels = rng.integers(2, size=patients)
        logits = [
            torch.from_numpy(scale * ((2 * labels - 1) * (0.7 + more) + noise))
            for scale, more, noise in zip(scales, (gain, 0.0), noises, strict=True)
        ]
        pair = [torch.stack([-values, values], dim=1).softmax(dim=1) for values in logits]
        targets, score = torch.from_numpy(labels), partial(Multiclass(2).weighted_score, metric)
    elif metric == "dice":
        pair = [torch.from_numpy(1 + more + noise).sigmoid()[:, None] for more, noise in zip((gain, 0.0), noises)]
        targets, score = torch.zeros(patients, 1), lambda predictions, _, weights: mean_over_cases(predictions, weights)
    else:
        risk = rng.normal(size=patients)
        times, end = rng.exponential(np.exp(-3 * risk)), rng.exponential(10.0, size=patients)
        targets = torch.from_numpy(np.stack([np.minimum(times, end), times <= end], axis=1))
        pair = [
            torch.from_numpy(scale * ((0.7 + more) * risk + noise))[:, None]
            for scale, more, noise in zip(scales, (gain, 0.0), noises, strict=True)
        ]
        score = concordance
    return exchange_models(score, [(pair[0], pair[1])], targets, seed=int(rng.integers(2**31)), order_only=order)


def claims(metric: str, patients: int, sites: int, trials: int, gain: float = 0.0, correlation: float = 0.5) -> int:
    """Return the number of trials that claim a difference of the mean over sites."""
    rng = np.random.default_rng([patients, sites, round(100 * correlation)])
    count = 0
    for trial in range(trials):
        parts = [exchange(metric, patients, rng, gain, correlation) for _ in range(sites)]
        defined = [part for part in parts if part is not None]
        if defined:
            mean = mean_exchange([(1 / len(defined), part) for part in defined], trial)
            count += (mean if sites > 1 else defined[0]).p <= LEVEL
    return count


def most(trials: int) -> float:
    """The largest number of false claims that is likely with a rate of 5 %: 3.3 standard deviations above."""
    return LEVEL * trials + 3.3 * (LEVEL * (1 - LEVEL) * trials) ** 0.5


@pytest.fixture(autouse=True)
def fewer_exchanges(monkeypatch):
    """A p-value is valid with any number of random exchanges; 199 are fast."""
    monkeypatch.setattr(exchanges, "EXCHANGES", 199)
    monkeypatch.setattr(procedures, "EXHAUSTIVE", 7)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("patients", "sites"), [(3, 1), (8, 1), (30, 1), (3, 4)])
def test_at_most_one_in_twenty_claims_is_false(metric, patients, sites):
    trials = 150
    assert claims(metric, patients, sites, trials) <= most(trials)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("patients", "sites"),
    [(n, 1) for n in (3, 4, 5, 6, 10, 20, 100, 500)] + [(n, k) for n in (3, 5, 10, 50) for k in (4, 10)],
)
def test_at_most_one_in_twenty_claims_is_false_over_the_whole_range(metric, patients, sites, correlation):
    trials = 1000 if patients * sites <= 200 else 300
    assert claims(metric, patients, sites, trials, correlation=correlation) <= most(trials)


@pytest.mark.parametrize("metric", METRICS)
def test_a_clear_difference_of_100_patients_is_claimed(metric):
    gain = 4.0 if metric == "c_index" else 2.0
    assert claims(metric, 100, 1, 20, gain) >= 18
    assert claims(metric, 25, 4, 20, gain) >= 18


@pytest.mark.parametrize("metric", METRICS)
def test_of_five_patients_nothing_is_claimed(metric):
    assert claims(metric, 5, 1, 20, gain=20.0) == 0
