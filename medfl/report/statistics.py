"""How sure a difference is: over the patients of a test set, and over the seeds of a run.

Images of one patient are alike, so they go together; where nobody knows patients, each image counts as one.

Nothing here looks at which result is wanted: an interval that holds 0 means that the data don't decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import numpy as np
import torch

from medfl.metrics.weighted import weighted

ROUNDING = 1e-12
"""Below this a difference of scores is rounding."""

CHUNK = 128
"""Resamples that are scored at once, to bound the memory."""


@dataclass(frozen=True)
class Interval:
    """A difference with its confidence interval.

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


def paired_bootstrap(
    metric: str,
    probs_a: torch.Tensor,
    probs_b: torch.Tensor,
    labels: torch.Tensor,
    num_classes: int,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
    patients: torch.Tensor | None = None,
) -> Interval | None:
    """The difference a - b of a metric between two models, with a percentile interval over the patients.

    Patients are drawn with replacement, each with all images, and the same ones for both models, so what makes an image
    hard for both cancels.
    Resamples in which the metric is not defined, such as those without a positive image, are left out. The interval
    is about these two models, not about the methods that made them: another seed gives other models.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3; for patients with several images
    Davison and Hinkley 1997, Bootstrap Methods and their Application, section 3.8.

    Args:
        metric: Its name.
        probs_a: (N, C), floating, of the one model.
        probs_b: (N, C), floating, of the other, for the same images in the same order.
        labels: (N,), int64.
        num_classes: C.
        seed: Of the draws.
        resamples: How many, >= 1.
        level: Share of the intervals that hold the true difference, in (0, 1); approximate for few patients.
        patients: (N,), int64: numbers that images of one patient share; None if each image is of another patient.

    Returns:
        None where the metric is not defined for both models. For 3000 images of 8 classes it takes a second or two.
    """
    here = torch.ones(len(labels), 1, dtype=torch.float64)
    difference = float(_difference(metric, probs_a, probs_b, labels, num_classes, here)[0])
    if math.isnan(difference):
        return None
    who = torch.arange(len(labels)) if patients is None else patients.unique(return_inverse=True)[1]
    rng, units = np.random.default_rng(seed), int(who.max()) + 1
    sizes = [min(CHUNK, resamples - done) for done in range(0, resamples, CHUNK)]
    with _one_thread():
        parts = [
            _difference(metric, probs_a, probs_b, labels, num_classes, _draw(rng, units, size)[who]) for size in sizes
        ]
    low, high = np.nanquantile(torch.cat(parts).numpy(), [(1 - level) / 2, (1 + level) / 2])
    return Interval(difference, float(low), float(high))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small operations: threads cost more than they save, and very much more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _difference(
    metric: str,
    probs_a: torch.Tensor,
    probs_b: torch.Tensor,
    labels: torch.Tensor,
    num_classes: int,
    weights: torch.Tensor,
) -> torch.Tensor:
    a, b = (weighted(metric, probabilities, labels, num_classes, weights) for probabilities in (probs_a, probs_b))
    return a - b


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
