"""Confidence intervals of an attack over patients: copies of images don't narrow them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from medfl_attacks.membership.metrics import AttackScores, auc_interval, measure_attack
from medfl_report.statistics import Interval

COPIES = 4
PATIENTS = 60


def width(interval: Interval | tuple[float, float] | None) -> float:
    assert interval is not None
    low, high = (interval.low, interval.high) if isinstance(interval, Interval) else interval
    return high - low


def test_copies_of_images_don_t_narrow_the_auc_of_an_attack() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(1, 1, PATIENTS), rng.normal(0, 1, PATIENTS)
    alone, numbers = auc_interval(members, others), np.arange(PATIENTS)
    assert auc_interval(members, others, (numbers, numbers)) == pytest.approx(alone, abs=1e-12)
    patients = numbers.repeat(COPIES)
    copied = members.repeat(COPIES), others.repeat(COPIES)
    assert auc_interval(*copied, (patients, patients)) == pytest.approx(alone, abs=1e-12)
    naive = auc_interval(*copied)
    assert width(alone) / width(naive) == pytest.approx(math.sqrt(COPIES), rel=0.02)
    assert auc_interval(members, others, (np.zeros(PATIENTS), numbers)) == (0.0, 1.0), "one patient says nothing"
    over = [
        measure_attack(AttackScores(*copied, 0.5, known)).interval_over for known in ((None, None), (patients, None))
    ]
    assert over == ["images", "patients"]


def test_an_interval_over_patients_holds_the_truth_as_often_as_it_says() -> None:
    """The images of a patient are correlated, so intervals over images contain the true value far too rarely."""
    rng, held, naive = np.random.default_rng(3), [], []
    patients = np.arange(50).repeat(4)
    for _ in range(200):
        shift = rng.normal(0, 1, (2, 50)).repeat(4, axis=1)
        scores = shift + rng.normal(0, 1, (2, 200)) + np.array([[2.0], [0.0]])
        truth = 0.8413447461  # of N(2, 2) over N(0, 2): Phi(2 / 2)
        for ends, kept in ((auc_interval(*scores, (patients, patients)), held), (auc_interval(*scores), naive)):
            kept.append(ends[0] <= truth <= ends[1])
    assert np.mean(held) >= 0.9
    assert np.mean(naive) <= 0.85
