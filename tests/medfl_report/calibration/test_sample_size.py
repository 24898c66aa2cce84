"""Numbers of patients: published examples, and the power of the tests that they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from medfl_report.calibration.sample_size import (
    events_for_hazard_ratio,
    patients_for_mean,
    patients_for_paired_proportions,
    patients_for_proportions,
)


def test_textbook_examples() -> None:
    assert patients_for_proportions(0.65, 0.45) == 96  # (1.379 + 0.580)^2 / 0.04 = 95.9
    assert patients_for_mean(1.0, 1.0) == 8  # (1.96 + 0.8416)^2 = 7.85
    assert patients_for_mean(0.5, 1.0) == 32
    assert events_for_hazard_ratio(2.0) == 66  # 4 x 7.849 / 0.4805 = 65.3
    assert events_for_hazard_ratio(2.0) == events_for_hazard_ratio(0.5)
    assert patients_for_paired_proportions(0.8, 0.9) == 202  # (0.9994 + 0.4208)^2 / 0.01 = 201.7


def test_the_level_and_the_power_count() -> None:
    assert patients_for_mean(1, 3, alpha=0.01, power=0.9) == math.ceil(9 * (norm.ppf(0.995) + norm.ppf(0.9)) ** 2)
    for function in (patients_for_proportions, patients_for_paired_proportions):
        assert function(0.8, 0.7) == function(0.7, 0.8)
        assert function(0.8, 0.75) > function(0.8, 0.7)


@pytest.mark.slow
def test_mcnemar_has_the_promised_power() -> None:
    rng, first, second = np.random.default_rng(0), 0.9, 0.8
    patients = patients_for_paired_proportions(first, second)
    only_first = rng.random((20000, patients)) < first
    only_second = rng.random((20000, patients)) < second
    gains, losses = (only_first & ~only_second).sum(axis=1), (~only_first & only_second).sum(axis=1)
    statistic = (gains - losses) / np.sqrt(np.maximum(gains + losses, 1))
    assert (np.abs(statistic) > norm.ppf(0.975)).mean() == pytest.approx(0.8, abs=0.02)
