"""Significance tests of paired differences over folds, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from medfl.report.statistics import ROUNDING

HEADER = ("p (t)", "p (corrected t)", "p (Wilcoxon)")
"""Columns of a table in Markdown, in the order of the attributes of `PairedTests`."""


@dataclass(frozen=True)
class PairedTests:
    """Two-sided p-values for "the difference is 0"; NaN where a test says nothing.

    Attributes:
        t: Paired t test.
        corrected: The same with a variance for folds, whose training data overlap.
        wilcoxon: Wilcoxon's signed-rank test.
    """

    t: float
    corrected: float
    wilcoxon: float


def paired_tests(differences: Sequence[float], folds: int | None) -> PairedTests:
    """Tests of paired differences over the folds of one or several cross-validations.

    The corrected test has the variance of `medfl.report.statistics.paired_t` over folds.

    Args:
        differences: One for each pair, n of them.
        folds: K, the number of folds, >= 2; None where the pairs are not of several folds: nothing is tested.
    """
    n = len(differences)
    if n < 2 or folds is None:
        return PairedTests(math.nan, math.nan, math.nan)
    wilcoxon = signed_rank(differences)
    if max(differences) - min(differences) <= ROUNDING:
        return PairedTests(math.nan, math.nan, wilcoxon)
    from scipy.stats import t as student

    plain, shared = (
        2 * float(student.sf(abs(fmean(differences)) / (stdev(differences) * math.sqrt(variance)), n - 1))
        for variance in (1 / n, 1 / n + 1 / (folds - 1))
    )
    return PairedTests(plain, shared, wilcoxon)


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test, exact for any number of pairs, also with ties.

    Differences of 0 are left out. With n others the p-value is at least 2^(1 - n). Source: Wilcoxon 1945, Individual
    comparisons by ranking methods. scipy turns to a normal approximation at the first tie, which is wrong for few.

    Args:
        differences: One for each pair.

    Returns:
        In (0, 1]; NaN if all are 0.
    """
    moved = np.round([value for value in differences if abs(value) > ROUNDING], 12)
    if not len(moved):
        return math.nan
    from scipy.stats import rankdata

    ranks = np.rint(2 * rankdata(np.abs(moved))).astype(np.int64)  # twice the ranks: ties have halves
    shares = np.zeros(ranks.sum() + 1)  # of all signs, those with this sum of the positive ranks
    shares[0] = 1.0
    for rank in ranks:
        shares = (shares + np.concatenate([np.zeros(rank), shares[:-rank]])) / 2
    positive = int(ranks[moved > 0].sum())
    return min(1.0, 2 * float(shares[: min(positive, len(shares) - 1 - positive) + 1].sum()))


def p_value(value: float) -> str:
    """As it stands in a table: four decimals, ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.4f}" if value >= 0.00005 else "< 0.0001"


def explain(pairs: int) -> str:
    """What the columns of `HEADER` say, as sentences.

    Args:
        pairs: The most that any row has, >= 2.
    """
    return (
        "Each run of a seed and a fold counts as one. Folds share training images: the interval, the verdict and "
        "p (corrected t) allow for that with the variance of Nadeau and Bengio (2003); p (t) does not and is too sure "
        f"of itself. p (Wilcoxon): signed-rank test, exact; with {pairs} pairs it cannot go below "
        f"{2.0 ** (1 - pairs):.4g}."
    )
