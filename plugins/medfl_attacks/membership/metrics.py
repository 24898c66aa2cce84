"""Measures of a membership attack: how well its scores separate members from non-members.

A higher score always means "member". Both groups should have equally many images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from medfl.errors import SettingsError
from medfl_attacks.attack_files import Histogram, MembershipMeasures

LOW_FPR = 0.01
"""False positive rate at which the true positive rate is reported (Carlini et al., S&P 2022)."""

ROC_POINTS = 60
"""Number of ROC points in the results file, evenly spaced on a logarithmic axis of the false positive rate."""

HISTOGRAM_BINS = 30
"""Number of bins of the histogram in the results file."""


@dataclass(frozen=True)
class AttackScores:
    """Scores of an attack on members and non-members, with the threshold above which the attack predicts "member".

    Attributes:
        members: Scores of the members, (m,), m >= 2, finite.
        others: Scores of the non-members, (n,), n >= 2, finite.
        threshold: The attack's own threshold.
        patients: Patient numbers of the members and of the non-members, (m,) and (n,); images of one patient have the
            same number. None means that each image is of a different patient. No patient is in both groups.
    """

    members: np.ndarray
    others: np.ndarray
    threshold: float
    patients: tuple[np.ndarray | None, np.ndarray | None] = (None, None)

    def __post_init__(self) -> None:
        if min(len(self.members), len(self.others)) < 2:
            raise SettingsError(
                "too_few_images",
                f"expected at least 2 members and 2 non-members, got {len(self.members)} and {len(self.others)}.",
                minimum=2,
                found=(len(self.members), len(self.others)),
            )


def measure_attack(scores: AttackScores) -> MembershipMeasures:
    """Compute all measures of an attack."""
    members, others, threshold = scores.members, scores.others, scores.threshold
    recall, false_alarms = float((members > threshold).mean()), float((others > threshold).mean())
    return MembershipMeasures(
        members=len(members),
        non_members=len(others),
        auc=auc(members, others),
        auc_interval=auc_interval(members, others, scores.patients),
        interval_over="images" if all(part is None for part in scores.patients) else "patients",
        tpr_at_1_fpr=tpr_at(members, others, LOW_FPR),
        recall=recall,
        false_alarms=false_alarms,
        accuracy=(recall + 1 - false_alarms) / 2,
        recall_balanced=recall_balanced(members, others),
        roc=roc(members, others),
        histogram=histogram(members, others),
    )


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """Return the area under the ROC curve.

    This is the probability that a random member has a higher score than a random non-member; a tie counts half.
    """
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def auc_interval(
    members: np.ndarray,
    others: np.ndarray,
    patients: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
    level: float = 0.95,
) -> tuple[float, float]:
    """Compute a confidence interval of the AUC from the variance of DeLong et al. (Biometrics 1988), clipped to [0, 1].

    Images of one patient form a cluster, as in Obuchowski, Nonparametric analysis of clustered ROC curve data
    (Biometrics 1997). With one image for each patient this equals DeLong's variance. If the scores of the groups don't
    overlap, the variance is 0 and the interval has length 0, which overstates the certainty for few images.

    Args:
        members: Scores of the members.
        others: Scores of the non-members.
        patients: Patient numbers of the members and of the non-members, or None if each image is of another patient.
        level: Confidence level.

    Returns:
        Lower and upper limit.
    """
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    below = (ranks[:m] - rankdata(members)) / n  # the share of others below each member
    above = 1 - (ranks[m:] - rankdata(others)) / m  # the share of members above each other
    spread = math.sqrt(_variance(below, patients[0]) + _variance(above, patients[1]))
    middle, half = float(below.mean()), float(norm.ppf((1 + level) / 2)) * spread
    return max(0.0, middle - half), min(1.0, middle + half)


def _variance(shares: np.ndarray, patients: np.ndarray | None) -> float:
    """Return the variance of a mean of shares, with patients as clusters; infinite for a single patient."""
    if patients is None:
        return float(shares.var(ddof=1)) / len(shares)
    sums = np.bincount(np.unique(patients, return_inverse=True)[1], shares - shares.mean())
    return float((sums**2).sum()) * len(sums) / (len(sums) - 1) / len(shares) ** 2 if len(sums) > 1 else math.inf


def tpr_at(members: np.ndarray, others: np.ndarray, rate: float) -> float:
    """Return the largest true positive rate with a false positive rate of at most `rate`, without interpolation.

    With fewer than 1 / rate non-members no false positive is allowed at all.
    """
    allowed = math.floor(rate * len(others) + 1e-9)
    if allowed >= len(others):
        return 1.0
    return float((members > np.sort(others)[::-1][allowed]).mean())


def recall_balanced(members: np.ndarray, others: np.ndarray) -> float:
    """Return the share of members among the m images with the highest scores, where m is the number of members.

    The number of images that are classified as members is fixed, so an attack gains nothing by predicting "member" more
    often. Guessing finds m / (m + n) of the members, for n non-members. Images that tie at the threshold count in
    proportion.
    """
    m = len(members)
    cut = np.sort(np.concatenate([members, others]))[::-1][m - 1]
    over, tied = int((members > cut).sum()), int((members == cut).sum())
    all_over, all_tied = over + int((others > cut).sum()), tied + int((others == cut).sum())
    return (over + tied * (m - all_over) / all_tied) / m


def roc(members: np.ndarray, others: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Return points (false positive rate, true positive rate) of the ROC curve.

    At the first point one non-member is a false positive; at the last point all non-members are.
    """
    n = len(others)
    counts = sorted({round(count) for count in np.geomspace(1, n, ROC_POINTS)})
    return tuple((count / n, tpr_at(members, others, count / n)) for count in counts)


def histogram(members: np.ndarray, others: np.ndarray) -> Histogram:
    """Return the histogram of the scores of both groups.

    The outermost 1 % of the scores on each side are counted in the outermost bins.
    """
    both = np.concatenate([members, others])
    low, high = np.quantile(both, [0.01, 0.99])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, HISTOGRAM_BINS + 1)
    counts = [tuple(np.histogram(group.clip(low, high), edges)[0].tolist()) for group in (members, others)]
    return Histogram(edges=tuple(edges.tolist()), members=counts[0], non_members=counts[1])
