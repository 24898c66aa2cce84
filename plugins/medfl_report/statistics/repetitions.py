"""Intervals and tests over repeated runs, which differ in seed, in the split of the patients, or in fold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from medfl_report.statistics import students_t
from medfl_report.statistics.intervals import ROUNDING, Interval


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the standard deviation (ddof = 1); the latter is None for a single value.

    Args:
        values: At least one value, for example one for each seed.
    """
    return fmean(values), stdev(values) if len(values) > 1 else None


def fold_ratio(folds: int) -> float:
    """Return the size of a test set divided by the number of all other images, for K >= 2 folds."""
    return 1 / (folds - 1)


def paired_t(differences: Sequence[float], level: float = 0.95, ratio: float | None = None) -> Interval | None:
    """Return the mean of paired differences, or of scores, with its interval by Student's t, for example over seeds.

    If the runs have different splits of the same patients, any two training sets share patients. The variance of the
    mean is then not s^2 / n but about s^2 (1 / n + r), where r is the size of a test set divided by the number of all
    other images: the corrected resampled t test. For K folds r = 1 / (K - 1).

    Source: Nadeau and Bengio 2003, Inference for the generalization error; for several cross-validations Bouckaert and
    Frank 2004, Evaluating the replicability of significance tests.

    Args:
        differences: One difference for each pair.
        level: Confidence level in (0, 1).
        ratio: The ratio r, if each run has its own split, such as a fold; None if all runs have the same split.

    Returns:
        The interval; None if the spread is not known: for fewer than two differences, and if all are the same, as can
        happen with few seeds and few images.
    """
    if len(differences) < 2 or max(differences) - min(differences) <= ROUNDING:
        return None
    mean = fmean(differences)
    share = 1 / len(differences) + (ratio or 0.0)
    half = students_t.quantile((1 + level) / 2, len(differences) - 1) * stdev(differences) * math.sqrt(share)
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True)
class RunsTest:
    """Test of a mean difference over runs.

    Attributes:
        interval: Mean difference with its interval; None if the spread over the runs is not known.
        p: Two-sided p-value; NaN without an interval.
    """

    interval: Interval | None = None
    p: float = math.nan


def runs_test(differences: Sequence[float], ratio: float | None = None) -> RunsTest:
    """Test the mean of paired differences over runs by Student's t, corrected if the runs have different splits.

    Args:
        differences: One difference for each pair.
        ratio: As in `paired_t`.
    """
    interval = paired_t(differences, ratio=ratio)
    if interval is None:
        return RunsTest()
    return RunsTest(interval, _p_of_t(differences, 1 / len(differences) + (ratio or 0.0)))


def seeds_and_patients_test(
    differences: Sequence[float], patient_variance: float, patients: int, level: float = 0.95
) -> RunsTest:
    """Test a mean difference over seeds and patients, for seeds that all have the same test patients.

    The result is about other seeds and other patients. Seeds and patients are crossed, like readers and cases in
    studies of diagnostic readers. The mean over S seeds has the variance s^2 / S + v, where s is the standard deviation
    of the differences over the seeds and v the variance of their mean from the choice of patients. The interval is the
    mean +- sqrt(t_1^2 s^2 / S + t_2^2 v), with the quantiles t_1 of Student's t for S - 1 degrees of freedom and t_2
    for one less than the number of patients. For normal differences its coverage is at least the level. A test over
    the seeds that ignores v, together with a test over the patients that ignores s, makes up to 16 % false claims.

    Source: for the variance Obuchowski and Rockette 1995, Hypothesis testing of diagnostic accuracy for multiple
    readers and multiple tests; for the interval Banerjee 1960, Approximate confidence interval for linear functions of
    means of k populations when the population variances are not equal.

    Args:
        differences: One difference for each seed.
        patient_variance: Variance v, >= 0.
        patients: Number of patients, >= 2.
        level: Confidence level in (0, 1).
    """
    seeds = len(differences)
    if seeds < 2 or max(differences) - min(differences) <= ROUNDING:
        return RunsTest()
    from scipy.optimize import brentq

    mean, of_seeds = fmean(differences), stdev(differences) ** 2 / seeds

    def half_width(log_tail: float) -> float:
        for_seeds, for_patients = (students_t.quantile(math.exp(log_tail), units - 1) for units in (seeds, patients))
        return math.sqrt(for_seeds**2 * of_seeds + for_patients**2 * patient_variance)

    half = half_width(math.log((1 - level) / 2))
    lowest, highest = math.log(1e-12), math.log(0.5)
    if abs(mean) >= half_width(lowest):
        p = 2e-12
    else:
        p = 2 * math.exp(brentq(lambda log_tail: half_width(log_tail) - abs(mean), lowest, highest))
    return RunsTest(Interval(mean, mean - half, mean + half), min(1.0, p))


def _p_of_t(differences: Sequence[float], share: float) -> float:
    """Return the two-sided p-value of Student's t for a variance of the mean of `share` times that of a difference."""
    error = stdev(differences) * math.sqrt(share)
    return students_t.two_sided_p(fmean(differences) / error, len(differences) - 1)


HEADER = ("p (t)", "p (corrected t)", "p (Wilcoxon)")
"""Column heads of the tests in Markdown tables, in the order of the attributes of `PairedTests`."""


@dataclass(frozen=True)
class PairedTests:
    """Two-sided p-values of tests of a zero difference; NaN if a test is not defined.

    Attributes:
        t: Paired t test.
        corrected: Paired t test with the corrected variance for splits whose training data overlap (see `paired_t`).
        wilcoxon: Wilcoxon's signed-rank test.
    """

    t: float
    corrected: float
    wilcoxon: float


def paired_tests(differences: Sequence[float], folds: int | None) -> PairedTests:
    """Test paired differences over the folds of one or several cross-validations.

    Args:
        differences: One difference for each pair.
        folds: Number of folds K, >= 2; None if the pairs are not of several folds, which gives NaN for all tests.
    """
    if len(differences) < 2 or folds is None:
        return PairedTests(math.nan, math.nan, math.nan)
    wilcoxon = signed_rank(differences)
    if max(differences) - min(differences) <= ROUNDING:
        return PairedTests(math.nan, math.nan, wilcoxon)
    plain, shared = (_p_of_t(differences, 1 / len(differences) + more) for more in (0.0, fold_ratio(folds)))
    return PairedTests(plain, shared, wilcoxon)


def signed_rank(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test, exact for any number of pairs, also with ties.

    Differences of 0 are left out. With n others the p-value is at least 2^(1 - n). scipy uses a normal approximation
    if there are ties, which is wrong for few pairs. Source: Wilcoxon 1945, Individual comparisons by ranking methods.

    Args:
        differences: One difference for each pair.

    Returns:
        The p-value in (0, 1]; NaN if all differences are 0.
    """
    moved = np.round([value for value in differences if abs(value) > ROUNDING], 12)
    if not len(moved):
        return math.nan
    from scipy.stats import rankdata

    ranks = np.rint(2 * rankdata(np.abs(moved))).astype(np.int64)  # twice the ranks: ties have halves
    shares = np.zeros(ranks.sum() + 1)  # share of all sign patterns by their sum of positive ranks
    shares[0] = 1.0
    for rank in ranks:
        shares = (shares + np.concatenate([np.zeros(rank), shares[:-rank]])) / 2
    positive = int(ranks[moved > 0].sum())
    return min(1.0, 2 * float(shares[: min(positive, len(shares) - 1 - positive) + 1].sum()))


def explain(pairs: int) -> str:
    """Return sentences that explain the columns of `HEADER`, for rows of at most `pairs` >= 2 pairs."""
    return (
        "Each run of a seed and a fold counts as one. Folds share training images: the interval, the effect and "
        "p (corrected t) account for that with the variance of Nadeau and Bengio (2003); p (t) does not and is too "
        f"small. p (Wilcoxon): exact signed-rank test; with {pairs} pairs it cannot be below "
        f"{2.0 ** (1 - pairs):.4g}."
    )
