"""Comparison of methods over several data sets: Friedman's test, Nemenyi's critical difference, Bayesian test.

The unit is a data set: each method has one score on each data set, such as its mean over sites and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from medfl.errors import SettingsError
from medfl_report.statistics.intervals import LEVEL
from medfl_report.statistics.procedures import MIN_DATA_SETS


@dataclass(frozen=True)
class RankComparison:
    """Comparison of the ranks of K methods on N data sets.

    Attributes:
        ranks: Maps each method to its mean rank; 1 is the best. The best method comes first.
        data_sets: Number of data sets.
        p: P-value of Friedman's test that all methods are equal; NaN if all scores are equal.
        critical_difference: Difference of mean ranks from which two methods differ, by Nemenyi's test at 5 %.
    """

    ranks: Mapping[str, float]
    data_sets: int
    p: float
    critical_difference: float

    @property
    def can_decide(self) -> bool:
        """True if there are enough data sets for a claim."""
        return self.data_sets >= MIN_DATA_SETS

    def differ(self, first: str, second: str) -> bool:
        """Return whether two methods differ: both tests are significant, on enough data sets."""
        gap = abs(self.ranks[first] - self.ranks[second])
        return self.can_decide and self.p <= LEVEL and gap >= self.critical_difference

    def groups(self) -> list[tuple[str, ...]]:
        """Return the largest groups of consecutive methods that do not differ, for a critical-difference diagram."""
        names, groups = list(self.ranks), []
        for start, name in enumerate(names):
            end = max(place for place in range(start, len(names)) if not self.differ(name, names[place]))
            if end > start and (not groups or end > groups[-1][1]):
                groups.append((start, end))
        return [tuple(names[start : end + 1]) for start, end in groups]


def compare_ranks(scores: Mapping[str, Sequence[float]], larger_is_better: bool = True) -> RankComparison:
    """Rank methods on each data set, and test their mean ranks. Ties share the mean of their ranks.

    Source: Friedman 1937, The use of ranks to avoid the assumption of normality; Nemenyi 1963, Distribution-free
    multiple comparisons; Demsar 2006, Statistical comparisons of classifiers over multiple data sets.

    Args:
        scores: Maps each method to its scores, one for each data set in the same order. At least 3 methods and 2 data
            sets.
        larger_is_better: False for errors.

    Raises:
        SettingsError: If there are too few methods or data sets, if a score is missing or a number of scores differs.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    lengths = sorted({len(values) for values in scores.values()})
    if len(scores) < 3 or len(lengths) != 1 or lengths[0] < 2 or not np.isfinite(list(scores.values())).all():
        raise SettingsError(
            "unequal_scores",
            "Ranks need at least 3 methods with a finite score on each of at least 2 data sets, got "
            f"{len(scores)} methods with {lengths} scores. Leave out the methods or data sets with a missing score.",
            methods=len(scores),
            scores=lengths,
        )
    table = np.array(list(scores.values()))
    means = rankdata(-table if larger_is_better else table, axis=0).mean(axis=1)
    methods, data_sets = table.shape
    is_tied = bool((table == table[0]).all())
    p = math.nan if is_tied else float(friedmanchisquare(*table).pvalue)
    quantile = float(studentized_range.isf(LEVEL, methods, np.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(methods * (methods + 1) / (6 * data_sets))
    order = np.argsort(means, kind="stable")
    names = list(scores)
    return RankComparison({names[place]: float(means[place]) for place in order}, data_sets, p, critical)


@dataclass(frozen=True)
class SignedRankPosterior:
    """Posterior probabilities of the Bayesian signed-rank test of two methods. The three add up to 1.

    Attributes:
        first: Probability that the first method is practically better.
        equivalent: Probability that the methods are practically equivalent.
        second: Probability that the second method is practically better.
    """

    first: float
    equivalent: float
    second: float


def bayesian_signed_rank(
    differences: Sequence[float], rope: float, samples: int = 20000, seed: int = 0
) -> SignedRankPosterior:
    """Compute posterior probabilities of the differences first - second over data sets.

    Weights of the data sets are drawn from a Dirichlet distribution, with a pseudo data set of the difference 0 and the
    prior strength 0.5. In a sample the mean of two data sets counts as better, worse, or equivalent if its absolute
    value is at most `rope`, with the product of both weights; the largest of the three sums wins the sample.

    Source: Benavoli, Corani, Mangili, Zaffalon and Ruggeri 2014, A Bayesian Wilcoxon signed-rank test based on the
    Dirichlet process; Benavoli, Corani, Demsar and Zaffalon 2017, Time for a change.

    Args:
        differences: One difference for each data set, larger is better for the first method.
        rope: Largest absolute difference that is practically none, >= 0: the region of practical equivalence.
        samples: Number of samples of the posterior.
        seed: Seed of the samples.
    """
    values = np.concatenate([[0.0], differences])
    means = (values[:, None] + values) / 2
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet([0.5, *np.ones(len(differences))], size=samples)
    regions = (means > rope, np.abs(means) <= rope, means < -rope)
    sums = np.stack([np.einsum("si,ij,sj->s", weights, region.astype(float), weights) for region in regions])
    counts = np.bincount(sums.argmax(axis=0), minlength=3) / samples
    return SignedRankPosterior(*(float(share) for share in counts))
