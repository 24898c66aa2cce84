"""How sure a difference is: over the patients of a test set, over the seeds of a run, and over folds.

Images of one patient are alike, so they go together; where nobody knows patients, each image counts as one. Nothing
here looks at which result is wanted: an interval that holds 0 means that the data don't decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
import torch

Score = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A score (B,) of what models say (N, K), targets (N, ...), and B weightings of the images, (N, B), float64."""

ROUNDING = 1e-12
"""Below this a difference of scores is rounding."""

CHUNK, WEIGHTS = 128, 2**20
"""Resamples that are drawn at once, and weights that are scored at once, 8 MB, unless a chunk has more."""


@dataclass(frozen=True)
class Interval:
    """A difference, or another number, with its confidence interval.

    Attributes:
        difference: As measured.
        low: Lower end of the interval.
        high: Upper end.
    """

    difference: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        """Whether 0 lies outside, by more than what rounding leaves over."""
        return self.low > ROUNDING or self.high < -ROUNDING


def bootstrap(
    score: Score,
    judged: torch.Tensor,
    targets: torch.Tensor,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
    patients: torch.Tensor | None = None,
) -> Interval | None:
    """A score with a percentile interval over the patients.

    Patients are drawn with replacement, each with all images. Resamples without a defined score are left out.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3; for patients with several images
    Davison and Hinkley 1997, Bootstrap Methods and their Application, section 3.8.

    Args:
        score: For any weights of the images.
        judged: (N, K), floating: what it needs to know of each image beside its target, such as probabilities.
        targets: (N, ...).
        seed: Of the draws.
        resamples: How many, >= 1.
        level: Share of the intervals that hold the true score, in (0, 1); approximate for few patients.
        patients: (N,), int64: numbers that images of one patient share; None if each image is of another patient.

    Returns:
        None where the score is not defined.
    """
    value = float(score(judged, targets, torch.ones(len(targets), 1, dtype=torch.float64))[0])
    if math.isnan(value):
        return None
    who = torch.arange(len(targets)) if patients is None else patients.unique(return_inverse=True)[1]
    rng, units = np.random.default_rng(seed), int(who.max()) + 1
    with _one_thread():
        draws = (_draw(rng, units, min(CHUNK, resamples - done)) for done in range(0, resamples, CHUNK))
        together = max(1, WEIGHTS // (CHUNK * len(who)))
        batches = iter(lambda: tuple(islice(draws, together)), ())
        parts = [score(judged, targets, torch.cat(batch, dim=1)[who]) for batch in batches]
    low, high = np.nanquantile(torch.cat(parts).numpy(), [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def paired_bootstrap(
    score: Score, judged_a: torch.Tensor, judged_b: torch.Tensor, targets: torch.Tensor, **options: Any
) -> Interval | None:
    """The difference a - b of a score between two models, with its interval over the patients.

    The same patients are drawn for both models, so what makes an image hard for both cancels. The interval is about
    these two models, not about the methods that made them: another seed gives other models. None where the score is
    not defined for both.

    Args:
        score: As for `bootstrap`, like `targets` and the options.
        judged_a: (N, K), floating, of the one model.
        judged_b: (N, K), floating, of the other, for the same images in the same order.

    """
    size = judged_a.shape[1]

    def difference(both: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return score(both[:, :size], targets, weights) - score(both[:, size:], targets, weights)

    return bootstrap(difference, torch.cat([judged_a, judged_b], dim=1), targets, **options)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small operations: threads cost more than they save, and very much more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _draw(rng: np.random.Generator, units: int, size: int) -> torch.Tensor:
    """How often each patient is in each resample: (units, size), float64, columns with the sum `units`."""
    drawn = rng.integers(units, size=(units, size)) * size + np.arange(size)
    counts = np.bincount(drawn.ravel(), minlength=units * size).reshape(units, size)
    return torch.from_numpy(counts.astype(np.float64))


def wilson(correct: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a share, such as an accuracy; usable for small n and shares near 0 and 1.

    Source: Wilson 1927, Probable Inference, the Law of Succession, and Statistical Inference.

    Args:
        correct: Images that are right, 0 to `n`.
        n: All images, or as many as they are worth; 0 tells nothing, which is the interval (0, 1).
        level: In (0, 1).

    Returns:
        Lower and upper end, in [0, 1].
    """
    if not n:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, shrink = correct / n, 1 + z**2 / n
    centre = (share + z**2 / (2 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def wilson_over_patients(right: torch.Tensor, patients: torch.Tensor | None) -> tuple[float, float]:
    """The interval of `wilson` for images of which several are of one patient: with as many as they are worth.

    The number of images is divided by the design effect: by how much the variance of the share is larger than that of
    as many patients with one image each. It is at least 1. Where all are right, or all wrong, only patients count.

    Source: Korn and Graubard 1998, Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data; for Wilson's interval Dean and Pagano 2015, Evaluating confidence interval methods for
    binomial proportions in clustered surveys.

    Args:
        right: (N,), bool: whether each image is right.
        patients: As in `paired_bootstrap`.
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


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation (ddof = 1); the deviation of one value is None.

    Args:
        values: At least one, for example one for each seed.
    """
    return fmean(values), stdev(values) if len(values) > 1 else None


def paired_t(differences: Sequence[float], level: float = 0.95, folds: int | None = None) -> Interval | None:
    """Mean of paired differences with its interval by Student's t, for example over seeds.

    Over K folds any two training sets share images, so the variance of the mean is not s^2 / n but about
    s^2 (1 / n + r), where r = 1 / (K - 1) is the size of a test set over that of all other images.

    Source: Nadeau and Bengio 2003, Inference for the generalization error; for several cross-validations Bouckaert and
    Frank 2004, Evaluating the replicability of significance tests.

    Args:
        differences: One for each pair.
        level: In (0, 1).
        folds: K, >= 2, where the pairs are folds of one or several cross-validations.

    Returns:
        None where nothing is known of the spread: for fewer than two, and if all are the same, as it happens with few
        seeds and few images. An interval without width would promise what nobody knows.
    """
    if len(differences) < 2 or max(differences) - min(differences) <= ROUNDING:
        return None
    from scipy.stats import t

    mean = fmean(differences)
    share = 1 / len(differences) + (0.0 if folds is None else 1 / (folds - 1))
    half = float(t.ppf((1 + level) / 2, len(differences) - 1)) * stdev(differences) * math.sqrt(share)
    return Interval(mean, mean - half, mean + half)


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
