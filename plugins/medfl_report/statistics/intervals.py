"""Confidence intervals of numbers and of proportions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch

ROUNDING = 1e-12
"""Absolute differences of scores up to this value are rounding errors."""

LEVEL = 0.05
"""Significance level."""


@dataclass(frozen=True)
class Interval:
    """A difference, or another number, with its confidence interval.

    Attributes:
        difference: Observed value.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    difference: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True if 0 lies outside the interval by more than a rounding error."""
        return self.low > ROUNDING or self.high < -ROUNDING


def wilson(correct: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval (low, high) of a proportion, such as an accuracy, for any n and proportion.

    Source: Wilson 1927, Probable Inference, the Law of Succession, and Statistical Inference.

    Args:
        correct: Number of correct images, 0 to `n`.
        n: Number of images, or effective sample size; 0 gives the interval (0, 1).
        level: Confidence level in (0, 1).
    """
    if not n:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, shrink = correct / n, 1 + z**2 / n
    centre = (share + z**2 / (2 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def wilson_over_patients(right: torch.Tensor, patients: torch.Tensor | None) -> tuple[float, float]:
    """Return the interval of `wilson` for several images of one patient.

    The effective sample size is the number of images divided by the design effect: the variance of the proportion
    relative to as many patients with one image each, at least 1. If all images are correct, or none is, the
    effective sample size is the number of patients.

    Source: Korn and Graubard 1998, Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data; for Wilson's interval Dean and Pagano 2015, Evaluating confidence interval methods for
    binomial proportions in clustered surveys.

    Args:
        right: True for each correct image, (N,), bool.
        patients: Patient number of each image, (N,), int64; None if each image is of another patient.
    """
    n, correct = len(right), int(right.sum())
    if patients is None or not n:
        return wilson(correct, n)
    who = patients.unique(return_inverse=True)[1]
    units, share = int(who.max()) + 1, correct / n
    if correct in (0, n):
        return wilson(share * units, units)
    sums = torch.zeros(units, dtype=torch.float64).index_add_(0, who, right.double() - share)
    effect = max(1.0, float((sums**2).sum()) / (n * share * (1 - share)))
    return wilson(correct / effect, n / effect)
