"""Features in which the images of a group, such as a site or a scanner, differ from those of most other groups.

Each pair of groups is compared by the Mann-Whitney test, an exchange test on ranks, of the patients' means. Holm's
procedure covers all pairs of groups and all features. A claim needs, for more than half of the other groups, an
adjusted p-value of at most `ERROR_RATE`, and in the same direction a probability of superiority of at least
`MIN_SUPERIORITY` and a difference of medians of at least `MIN_DIFFERENCE`. Every such claim contains a rejected
hypothesis, so the probability of one or more false claims is at most `ERROR_RATE`.

Sources: Mann and Whitney 1947, On a test of whether one of two random variables is stochastically larger than the
other; Vargha and Delaney 2000, A critique and improvement of the CL common language effect size statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import mannwhitneyu

from medfl_report.statistics import holm

ERROR_RATE = 0.05
"""Largest probability of one or more false claims among all groups and features."""

MIN_SUPERIORITY = 0.71
"""Smallest probability that an image of the group has the larger (or the smaller) number; 0.71 is a large effect
(Vargha and Delaney 2000)."""

MIN_DIFFERENCE = 0.02
"""Smallest difference between the medians of two groups. Features have the unit of the range of pixel values, or are
shares of the frame or of colours, so smaller differences can't be seen."""

MIN_PATIENTS = 5
"""Smallest number of patients of a group that is compared."""


@dataclass(frozen=True)
class GroupDifference:
    """A feature in which a group differs from most other groups.

    Attributes:
        group: Name of the group.
        feature: Index of the feature.
        larger: True if the group has larger numbers.
        others: Names of the other groups from which it differs.
        compared: Number of other groups with at least `MIN_PATIENTS` patients, with which the group was compared.
        superiority: Probability that a random patient of the group has a larger number (a smaller one if not `larger`)
            than a random patient of `others`; ties count half. Mean over `others`.
        median: Median over the patients of the group.
        other_median: Median over `others` of their medians.
        p: Largest adjusted p-value of the comparisons with `others`.
    """

    group: str
    feature: int
    larger: bool
    others: tuple[str, ...]
    compared: int
    superiority: float
    median: float
    other_median: float
    p: float


@dataclass(frozen=True)
class _PairTest:
    """Mann-Whitney test of one feature between two groups; `superiority` refers to the first group."""

    first: int
    second: int
    feature: int
    superiority: float
    p: float


def compare_groups(values: np.ndarray, groups: Sequence[str], patients: Sequence[int]) -> list[GroupDifference]:
    """Return the features in which groups differ from most other groups, the clearest difference of a group first.

    Args:
        values: Features of the images, (n, F); NaN for an unknown value, which is left out.
        groups: Group of each image.
        patients: Patient of each image. A patient with images in two groups counts once in each.
    """
    names = sorted(set(groups))
    means = [_patient_means(values, groups, patients, name) for name in names]
    medians = [_medians(rows) for rows in means]
    tests = []
    for first, second in combinations(range(len(names)), 2):
        for feature in range(values.shape[1]):
            a, b = (rows[~np.isnan(rows[:, feature]), feature] for rows in (means[first], means[second]))
            if min(len(a), len(b)) < MIN_PATIENTS:
                continue
            result = mannwhitneyu(a, b)
            p = 1.0 if np.isnan(result.pvalue) else float(result.pvalue)  # all numbers are equal
            tests.append(_PairTest(first, second, feature, float(result.statistic) / (len(a) * len(b)), p))
    adjusted = holm([test.p for test in tests])
    differences = []
    for group, name in enumerate(names):
        for feature in range(values.shape[1]):
            own = [
                (test.superiority, p, test.second) if test.first == group else (1 - test.superiority, p, test.first)
                for test, p in zip(tests, adjusted, strict=True)
                if test.feature == feature and group in (test.first, test.second)
            ]
            for sign in (1, -1):
                chosen = [
                    (share if sign > 0 else 1 - share, p, other)
                    for share, p, other in own
                    if p <= ERROR_RATE
                    and sign * (share - 0.5) >= MIN_SUPERIORITY - 0.5
                    and sign * (medians[group][feature] - medians[other][feature]) >= MIN_DIFFERENCE
                ]
                if 2 * len(chosen) > len(own):
                    differences.append(
                        GroupDifference(
                            group=name,
                            feature=feature,
                            larger=sign > 0,
                            others=tuple(names[other] for _, _, other in chosen),
                            compared=len(own),
                            superiority=float(np.mean([share for share, _, _ in chosen])),
                            median=float(medians[group][feature]),
                            other_median=float(np.median([medians[other][feature] for _, _, other in chosen])),
                            p=max(p for _, p, _ in chosen),
                        )
                    )
    return sorted(differences, key=lambda each: (each.group, -each.superiority, each.feature))


def _patient_means(values: np.ndarray, groups: Sequence[str], patients: Sequence[int], name: str) -> np.ndarray:
    """Return the mean features of each patient of a group, (patients, F); NaN where a patient has no known value."""
    places = np.flatnonzero(np.asarray(groups, dtype=object) == name)
    _, owner = np.unique(np.asarray(patients)[places], return_inverse=True)
    known = ~np.isnan(values[places])
    sums, counts = (np.zeros((int(owner.max()) + 1, values.shape[1])) for _ in range(2))
    np.add.at(sums, owner, np.where(known, values[places], 0.0))
    np.add.at(counts, owner, known)
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


def _medians(rows: np.ndarray) -> np.ndarray:
    """Return the median of each column without NaN, (F,); NaN for a column without a number."""
    known = [column[~np.isnan(column)] for column in rows.T]
    return np.array([np.median(column) if len(column) else np.nan for column in known])
