"""Number of patients that a future study needs to detect a difference, with a two-sided test.

All functions take the significance level `alpha` and the `power` of the test, both in (0, 1), and use the normal
approximation.
"""

from __future__ import annotations

import math
from statistics import NormalDist

ALPHA, POWER = 0.05, 0.8
"""Usual significance level and power."""


def _quantiles(alpha: float, power: float) -> tuple[float, float]:
    """Return the quantiles of the normal distribution for a two-sided test and its power."""
    return NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)


def patients_for_proportions(first: float, second: float, alpha: float = ALPHA, power: float = POWER) -> int:
    """Return the number of patients in each of two groups, to detect that two proportions differ.

    Source: Fleiss, Levin and Paik 2003, Statistical methods for rates and proportions, equation 4.14 (without
    continuity correction).

    Args:
        first: First proportion in [0, 1], such as a sensitivity.
        second: Second proportion in [0, 1], different from the first.
        alpha: Significance level.
        power: Power.
    """
    level, reach = _quantiles(alpha, power)
    mean = (first + second) / 2
    spread = level * math.sqrt(2 * mean * (1 - mean)) + reach * math.sqrt(first * (1 - first) + second * (1 - second))
    return math.ceil((spread / (first - second)) ** 2)


def patients_for_paired_proportions(first: float, second: float, alpha: float = ALPHA, power: float = POWER) -> int:
    """Return the number of patients on whom two models are both applied, to detect that their proportions differ.

    The errors of both models are taken as independent, which is the least favourable case unless they avoid each
    other: models that fail for the same patients need fewer.

    Source: Connor 1987, Sample size for testing differences in proportions for the paired-sample design (McNemar's
    test).

    Args:
        first: First proportion in [0, 1], such as the sensitivity of one model.
        second: Second proportion in [0, 1], different from the first.
        alpha: Significance level.
        power: Power.
    """
    level, reach = _quantiles(alpha, power)
    difference = first - second
    discordant = first * (1 - second) + second * (1 - first)
    spread = level * math.sqrt(discordant) + reach * math.sqrt(discordant - difference**2)
    return math.ceil((spread / difference) ** 2)


def patients_for_mean(difference: float, deviation: float, alpha: float = ALPHA, power: float = POWER) -> int:
    """Return the number of patients to detect that the mean of paired differences is not 0.

    Source: Armitage, Berry and Matthews 2002, Statistical methods in medical research, section 4.6.

    Args:
        difference: Mean difference to detect, not 0.
        deviation: Standard deviation of a patient's difference, in the same unit.
        alpha: Significance level.
        power: Power.
    """
    level, reach = _quantiles(alpha, power)
    return math.ceil(((level + reach) * deviation / difference) ** 2)


def events_for_hazard_ratio(ratio: float, share: float = 0.5, alpha: float = ALPHA, power: float = POWER) -> int:
    """Return the number of events to detect a hazard ratio between two groups by the log-rank test.

    Source: Schoenfeld 1983, Sample-size formula for the proportional-hazards regression model.

    Args:
        ratio: Hazard ratio > 0, not 1.
        share: Share of the patients in one of the groups, in (0, 1).
        alpha: Significance level.
        power: Power.
    """
    level, reach = _quantiles(alpha, power)
    return math.ceil((level + reach) ** 2 / (share * (1 - share) * math.log(ratio) ** 2))
