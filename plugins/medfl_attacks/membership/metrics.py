"""How well scores tell members from others: the numbers of a membership attack.

Everywhere a higher score says "member", and both groups should have equally many images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from medfl.errors import SettingsError
from medfl_attacks.attack_files import Histogram, MembershipMeasures

LOW_FPR = 0.01
"""The share of false alarms at which an attack that must not err is judged (Carlini et al., S&P 2022)."""

POINTS = 60
"""Of the ROC curve that is kept: evenly spaced on a logarithmic axis of false alarms."""

BINS = 30
"""Of the histogram that is kept."""


@dataclass(frozen=True)
class Scores:
    """Scores of an attack on members and on others, and the attack's own threshold: above it, it says "member".

    Attributes:
        members: (m,), m >= 2, finite.
        others: (n,), n >= 2, finite.
        threshold: One number.
        patients: Of the members and of the others: numbers that images of one patient share, (m,) and (n,), or None if
            each image is of another patient. Nobody is in both groups.
    """

    members: np.ndarray
    others: np.ndarray
    threshold: float
    patients: tuple[np.ndarray | None, np.ndarray | None] = (None, None)

    def __post_init__(self) -> None:
        if min(len(self.members), len(self.others)) < 2:
            raise SettingsError(
                "too_few_images",
                f"expected at least 2 members and 2 others to tell apart, got {len(self.members)} and "
                f"{len(self.others)}.",
                minimum=2,
                found=(len(self.members), len(self.others)),
            )


def measure(scores: Scores) -> MembershipMeasures:
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
    """How often a member has the higher score of one member and one other; a tie counts half."""
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def auc_interval(
    members: np.ndarray,
    others: np.ndarray,
    patients: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
    level: float = 0.95,
) -> tuple[float, float]:
    """An interval of the AUC, by the variance of DeLong et al. (Biometrics 1988), within [0, 1].

    Images of one patient are taken together, as in Obuchowski, Nonparametric analysis of clustered ROC curve data
    (Biometrics 1997); with one image of each patient that is the same. Where the groups don't overlap the variance is
    0, and so is the interval's length: few images say less than that.
    """
    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    below = (ranks[:m] - rankdata(members)) / n  # the share of others below each member
    above = 1 - (ranks[m:] - rankdata(others)) / m  # the share of members above each other
    spread = math.sqrt(_variance(below, patients[0]) + _variance(above, patients[1]))
    middle, half = float(below.mean()), float(norm.ppf((1 + level) / 2)) * spread
    return max(0.0, middle - half), min(1.0, middle + half)


def _variance(shares: np.ndarray, patients: np.ndarray | None) -> float:
    """Of a mean of shares, where those of one patient go together; infinite for a single patient."""
    if patients is None:
        return float(shares.var(ddof=1)) / len(shares)
    sums = np.bincount(np.unique(patients, return_inverse=True)[1], shares - shares.mean())
    return float((sums**2).sum()) * len(sums) / (len(sums) - 1) / len(shares) ** 2 if len(sums) > 1 else math.inf


def tpr_at(members: np.ndarray, others: np.ndarray, rate: float) -> float:
    """The largest share of members found with at most a share `rate` of the others; nothing is interpolated.

    With fewer than 1 / rate others no false alarm at all is allowed.
    """
    allowed = math.floor(rate * len(others) + 1e-9)
    if allowed >= len(others):
        return 1.0
    return float((members > np.sort(others)[::-1][allowed]).mean())


def recall_balanced(members: np.ndarray, others: np.ndarray) -> float:
    """The share of members found when as many images are called members as there are: those with the highest scores.

    So an attack gains nothing by saying "member" more often. Guessing finds m / (m + n). Ties share what is left.
    """
    m = len(members)
    cut = np.sort(np.concatenate([members, others]))[::-1][m - 1]
    over, tied = int((members > cut).sum()), int((members == cut).sum())
    all_over, all_tied = over + int((others > cut).sum()), tied + int((others == cut).sum())
    return (over + tied * (m - all_over) / all_tied) / m


def roc(members: np.ndarray, others: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Return points (false alarms, members found) of the ROC curve, from one false alarm to all."""
    n = len(others)
    counts = sorted({round(count) for count in np.geomspace(1, n, POINTS)})
    return tuple((count / n, tpr_at(members, others, count / n)) for count in counts)


def histogram(members: np.ndarray, others: np.ndarray) -> Histogram:
    """Return the histogram of both groups; the outermost 1 % on each side is in the outermost bins."""
    both = np.concatenate([members, others])
    low, high = np.quantile(both, [0.01, 0.99])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    counts = [tuple(np.histogram(group.clip(low, high), edges)[0].tolist()) for group in (members, others)]
    return Histogram(edges=tuple(edges.tolist()), members=counts[0], non_members=counts[1])
